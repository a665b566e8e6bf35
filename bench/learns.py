"""Does it learn? A small model on the sources of the standard library, against pairs of neighbours.

    python bench/learns.py                     # about a minute on two cores

A vocabulary is learnt, the text tokenized, a model trained; its loss on held-out files is compared with that of
a bigram model that counted every pair of the same training tokens. Exits 1 when it is not clearly below.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import sysconfig
import tempfile
import time

import lowtide
from lowtide.events import Evaluated, Event
from lowtide.model.shape import ModelShape
from lowtide.stages.train import train
from lowtide.training.bigram import bigram_loss
from lowtide.training.settings import TrainSettings

VOCABULARY = 512
CLEARLY_NATS = 0.1
SHAPE = ModelShape(layers=2, heads=4, width=96, context=128, vocabulary_size=VOCABULARY)


def make_data(folder: Path) -> Path:
    """Tokens of the library's top-level modules, by a vocabulary learnt from them."""
    sources = sysconfig.get_path("stdlib") + "/*.py"
    learnt = lowtide.TokenizerSettings(vocab_size=VOCABULARY)
    lowtide.train_tokenizer([sources], folder / "tokenizer", learnt)
    wanted = lowtide.TokenizeSettings(tokenizer=str(folder / "tokenizer"), val=0.1)
    lowtide.tokenize([sources], folder / "tokens", wanted)
    return folder / "tokens"


def pairs_loss(data: Path) -> float:
    """What a bigram model has on the held-out tokens."""
    splits = lowtide.open_dataset(data).splits
    train_ids, val_ids = (splits[name].read(0, splits[name].tokens) for name in ("train", "val"))
    return bigram_loss(train_ids, val_ids, VOCABULARY)


def tell(event: Event) -> None:
    if isinstance(event, Evaluated):
        print(f"step {event.step:5}  val loss {event.loss:.3f}", flush=True)


def main() -> int:
    """0 when the model knows more than pairs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        data = make_data(Path(name))
        pairs = pairs_loss(data)
        print(f"pairs of neighbours  val loss {pairs:.3f}")
        settings = TrainSettings(
            model="custom",
            shape=SHAPE,
            data=str(data),
            batch_tokens=16 * SHAPE.context,
            micro_batch=16,
            steps=chosen.steps,
            learning_rate=4e-3,
            final_learning_rate=2e-4,
            warmup_steps=chosen.steps // 10,
            compiled=False,
            precision="float32",
            device="cpu",
            evaluate_every=max(1, chosen.steps // 6),
            evaluate_windows=256,
            checkpoint_every=0,
            sample_every=0,
        )
        began = time.monotonic()
        best = train(Path(name) / "run", settings, listen=tell).state.best_loss
        assert best is not None
        print(
            f"{time.monotonic() - began:.0f} s; {pairs - best:+.3f} nats better than pairs of neighbours"
        )
    return 0 if best < pairs - CLEARLY_NATS else 1


if __name__ == "__main__":
    sys.exit(main())
