"""`dolma tokens` in two processes over two files.

    python tokenize_dolma.py FOLDER_OF_JSONL VOCABULARY OUT

dolma strips blanks around every text, so some tokens are missing. The modules that its taggers need (fastText
and the like) are stood in for by empty ones: importing dolma imports every tagger, and tokens use none.
"""

from __future__ import annotations

import sys
from unittest.mock import MagicMock

for name in ("blingfire", "fasttext", "fasttext.FastText", "jq", "jsonpath_ng", "jsonpath_ng.ext"):
    sys.modules.setdefault(name, MagicMock())

from dolma.cli.main import main

PROCESSES = 2

if __name__ == "__main__":
    parts, vocabulary, out = sys.argv[1:]
    sys.argv[1:] = ["tokens", "--documents", f"{parts}/*.jsonl", "--destination", f"{out}/tokens"]
    sys.argv += ["--tokenizer.name_or_path", f"{vocabulary}/tokenizer.json"]
    sys.argv += ["--tokenizer.eos_token_id", "50256", "--dtype", "uint16"]
    sys.argv += ["--fields.id_field_type", "int", "--processes", str(PROCESSES)]
    main()
