"""tokenizers' BpeTrainer on an iterator of documents.

Called as `python train_tokenizers.py CORPUS.txt VOCAB_SIZE OUT PATTERN EXPRESSION`.
"""

from __future__ import annotations

import sys

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from train_documents import SEPARATOR, documents

text, size, out, pattern, expression = sys.argv[1:]
is_gpt2 = pattern == "gpt2"
letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=is_gpt2)
split = pre_tokenizers.Split(Regex(expression), "isolated")
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = letters if is_gpt2 else pre_tokenizers.Sequence([split, letters])
trainer = trainers.BpeTrainer(
    vocab_size=int(size),
    special_tokens=[SEPARATOR],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
)
tokenizer.train_from_iterator(documents(text), trainer)
tokenizer.model.save(out)
