"""`tokenizers`' own trainer on an iterator of documents: every distinct word is held in memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lowtide.tools.baselines.progress import Progress

VOCABULARY = 32_000


def main(out: str, progress_file: str, files: list[str]) -> None:
    progress = Progress(progress_file, files)

    def documents() -> Iterator[str]:
        for name in files:
            with open(name, encoding="utf-8") as file:  # noqa: PTH123 - as it is written
                for line in file:
                    text = json.loads(line)["text"]
                    yield text
                    progress.add(text)
        progress.begin("learning merges")

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(), trainer)
    tokenizer.save(f"{out}/tokenizer.json")


if __name__ == "__main__":
    main(sys.argv[2], sys.argv[3], sys.argv[4:])
