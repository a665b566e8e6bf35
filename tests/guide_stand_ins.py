"""What a guide takes for granted, made small: files under the names it uses, and a cluster's commands."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import lowtide
from lowtide.journal import LOG_NAME

_SEA = """the tide moon boat harbour rises falls water stone light over under and of a in it was
old grey sea gull rope sail wind twice day comes what is breathing The What A sand"""
_CUDA = """step 1000: train loss 3.4
batch_size = 8
block_size = 1024
vocab_size = 50304
Traceback (most recent call last):
  File "train.py", line 262, in <module>
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB. GPU 0 has a total capacity of \
11.76 GiB of which 320.12 MiB is free.
"""
_PLAN = """model = "custom"
data = "tokens"
batch_tokens = 64
micro_batch = 2
steps = 80
learning_rate = 1e-3
final_learning_rate = 1e-4
warmup_steps = 2
compiled = false
precision = "float32"
device = "cpu"
evaluate_every = 0
sample_every = 0
checkpoint_every = 0
[shape]
layers = 1
heads = 1
width = 8
context = 32
vocabulary_size = 50257
"""
_SBATCH = """
import os, signal, subprocess, sys, time
from pathlib import Path

def requeued():
    return requeues.read_text().count("requeue") if requeues.exists() else 0

def has_stepped():
    return log.exists() and '"event":"step"' in log.read_text().replace(" ", "")

words = sys.argv[1:]
while words[0].startswith("-"):
    words.pop(0)
requeues, log = Path(sys.argv[0]).with_name("scontrol.txt"), Path("run/log.jsonl")
restarts, grant = 0, dict(os.environ)
while True:
    before, job = requeued(), subprocess.Popen(["bash", *words], env=grant)
    if "train" in words and not before:
        while not has_stepped() and job.poll() is None:
            time.sleep(0.02)
        job.send_signal(signal.SIGTERM)
    code = job.wait()
    if requeued() == before:
        sys.exit(code)
    restarts += 1
    grant["SLURM_RESTART_COUNT"] = str(restarts)
"""
_SRUN = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
exec "$@"
"""


def sentences(source: random.Random, words: int) -> str:
    """Words about the sea, which a small vocabulary is soon learnt from."""
    return " ".join(source.choice(_SEA.split()) for _ in range(words)).capitalize() + ".\n"


def write_parquet(folder: Path, *, files: int = 2, documents: int = 200) -> None:
    """FineWeb's shape: a column `text` among others, some files."""
    source = random.Random(0)
    folder.mkdir(parents=True)
    for number in range(files):
        texts = [sentences(source, source.randint(10, 120)) for _ in range(documents)]
        table = pa.table({"text": texts, "id": [f"<urn:{row}>" for row in range(documents)]})
        pq.write_table(table, folder / f"{number:03}_00000.parquet")


def write_made_up_words(folder: Path) -> None:
    """Text with so many different words that a vocabulary of 32,000 is learnt from it."""
    source = random.Random(3)
    letters = "abcdefghijklmnoprstuvwy"
    words = ["".join(source.choices(letters, k=10)) for _ in range(8000)]
    folder.mkdir(parents=True)
    for number in range(3):
        source.shuffle(words)
        lines = (" ".join(words[at : at + 20]) for at in range(0, len(words), 20))
        (folder / f"part-{number}.txt").write_text("\n".join(lines) + "\n")


def write_text(folder: Path) -> None:
    """Some text files, in which the usual words come often."""
    source = random.Random(1)
    folder.mkdir(parents=True)
    for number in range(3):
        text = "".join(sentences(source, 60) for _ in range(200))
        (folder / f"part-{number}.txt").write_text(text)


def write_chats(path: Path, *, count: int, seed: int = 2) -> None:
    """Conversations of one question and one answer."""
    source = random.Random(seed)
    with path.open("w") as file:
        for _ in range(count):
            turns = [
                {"role": role, "content": sentences(source, 4)} for role in ("user", "assistant")
            ]
            file.write(json.dumps({"messages": turns}) + "\n")


def write_tokens(folder: Path) -> None:
    """A dataset of a small vocabulary, so that a model on it is small."""
    write_text(folder / "corpus")
    wanted = lowtide.TokenizerSettings(vocab_size=(400,))
    lowtide.train_tokenizer([folder / "corpus"], folder / "small", wanted, memory="256MiB")
    settings = lowtide.TokenizeSettings(tokenizer=str(folder / "small"), separator="line", val=0.1)
    lowtide.tokenize([folder / "corpus"], folder / "tokens", settings, memory="256MiB")


def write_gpt2(folder: Path) -> None:
    """A GPT-2 of one narrow layer, as `save_pretrained` writes it."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    config = GPT2Config(n_layer=1, n_head=1, n_embd=8, n_positions=32)
    GPT2LMHeadModel(config).save_pretrained(folder)


def write_killed_run(folder: Path) -> None:
    """A run whose record has no end, as one looks that was killed."""
    write_text(folder / "corpus")
    lowtide.tokenize([folder / "corpus"], folder / "run", memory="256MiB")
    log = folder / "run" / LOG_NAME
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if json.loads(line)["event"] != "end"))


def write_commands(folder: Path) -> None:
    """`lowtide` and `python` as those that run this test, and a cluster that runs everything at once.

    Its `sbatch` waits for the job. The time of the first job that trains is up after its first step: the
    script is warned, and nobody else. What asks to be requeued runs again, and is told how often it did.
    """
    folder.mkdir()
    commands = {
        "lowtide": f'#!/bin/sh\nexec {sys.executable} -m lowtide "$@"\n',
        "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        "sbatch": f"#!{sys.executable}\n{_SBATCH}",
        "srun": _SRUN,
        "scontrol": f'#!/bin/sh\necho "$@" >> {folder / "scontrol.txt"}\n',
    }
    for name, text in commands.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def for_fineweb(folder: Path) -> None:
    """As `hf download` leaves it, with its notes in a hidden folder."""
    write_parquet(folder / "fineweb" / "sample" / "10BT", documents=4000)  # some fall to val
    notes = folder / "fineweb" / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    (notes / "000_00000.parquet.metadata").write_text("0\n")


def for_tokenizer(folder: Path) -> None:
    write_made_up_words(folder / "corpus")


def for_finetuning(folder: Path) -> None:
    write_gpt2(folder / "gpt2")
    for name, count in (("chats", 24), ("week-01", 80), ("week-02", 12)):
        write_chats(folder / f"{name}.jsonl", count=count, seed=count)


def for_slurm(folder: Path) -> None:
    write_parquet(folder / "data", files=1)
    (folder / "plan.toml").write_text(_PLAN)


def for_killed(folder: Path) -> None:
    write_parquet(folder / "data")
    write_killed_run(folder)
    (folder / "train.log").write_text(_CUDA)
    (folder / "train.py").write_text("print('trained')\n")


def a_place_of_its_own(root: Path) -> Iterator[Path]:
    """An empty folder, removed afterwards: checkpoints are large, and pytest keeps three rounds of them."""
    root.mkdir()
    yield root
    shutil.rmtree(root, ignore_errors=True)
