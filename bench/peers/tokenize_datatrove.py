"""datatrove's DocumentTokenizer, as in its examples: two tasks over two files, each in a process of its own.

    python tokenize_datatrove.py FOLDER_OF_PARQUET VOCABULARY OUT

All is left as it is by default (batches of 10,000 documents), but documents are not shuffled afterwards.
"""

from __future__ import annotations

import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer

TASKS = 2


def main(parts: str, vocabulary: str, out: str) -> None:
    tokenizer = DocumentTokenizer(
        output_folder=f"{out}/tokens",
        tokenizer_name_or_path=f"{vocabulary}/tokenizer.json",
        eos_token="<|endoftext|>",
        shuffle_documents=False,
    )
    executor = LocalPipelineExecutor(
        pipeline=[ParquetReader(parts, glob_pattern="*.parquet"), tokenizer],
        tasks=TASKS,
        workers=TASKS,
        logging_dir=f"{out}/logs",
    )
    executor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
