"""The stages of the demo: which command each one is, what it reads and what it makes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from lowtide.child import python_command
from lowtide.units import MIB, round_up_to_mib

Key: TypeAlias = Literal[
    "corpus",
    "tokenizer",
    "tokenize",
    "verify",
    "plan",
    "train",
    "sample",
    "export",
    "compare",
    "report",
]
TITLES: dict[Key, str] = {
    "corpus": "collect text",
    "tokenizer": "learn a tokenizer",
    "tokenize": "tokenize",
    "verify": "verify",
    "plan": "plan",
    "train": "train a GPT",
    "sample": "sample from it",
    "export": "export it",
    "compare": "compare",
    "report": "report",
}
"""What each stage does, in order."""
DEFAULT_FOLDER = "lowtide-demo"
VOCABULARY = 1024
TRAINING_BYTES = 640 * MIB
"""Budget of training: torch alone is larger than the budget that text needs."""
PROMPT = "def main("
_CONTEXT, _BATCH_TOKENS = 128, 2048
_MODULE = "lowtide.tools.demo.corpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What a demo is made of."""

    memory_bytes: int
    library: Path
    """The folder whose sources are the text."""
    with_torch: bool
    """Whether a model is trained, which needs torch."""
    steps: int = 300
    """Half a minute on one core of a laptop."""
    compares: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One command of the demo, run in its folder."""

    key: Key
    arguments: tuple[str, ...]
    """Arguments of `lowtide`, or of a module of ours if there is no such command."""
    reads: tuple[Key, ...] = ()
    """Stages that it needs: if one of them is made again, so is this."""
    makes: tuple[str, ...] = ()
    """Paths in the folder that no other stage writes."""
    budget_bytes: int | None = None
    """Memory budget; None if the command has none."""
    resumes: bool = False
    """Whether the command, run again, resumes where it stopped."""
    needs_torch: bool = False

    @property
    def title(self) -> str:
        """What it does, in a few words."""
        return TITLES[self.key]

    @property
    def shown(self) -> str | None:
        """The command as a person types it."""
        if self.key == "corpus":
            return None
        return shlex.join(["lowtide", *self.arguments])

    @property
    def command(self) -> list[str]:
        """The command as it is run: nothing in the folder can replace a module or change a default."""
        if self.key == "corpus":
            return python_command("-m", _MODULE, *self.arguments)
        start = python_command("-m", "lowtide", "--config", os.devnull)
        return [*start, *self.arguments, "--json"]


def list_stages(settings: DemoSettings) -> list[Stage]:
    """All stages that can be run, in order. The last makes the report of the model, or else of the tokens."""
    stages = [*_text_stages(settings), *_model_stages(settings), *_closing_stages(settings)]
    return [
        stage
        for stage in stages
        if (settings.with_torch or not stage.needs_torch)
        and (settings.compares or stage.key != "compare")
    ]


def _text_stages(settings: DemoSettings) -> list[Stage]:
    memory = f"--memory {round_up_to_mib(settings.memory_bytes)}"
    learn = f"train-tokenizer corpus.parquet --vocab-size {VOCABULARY} --out tokenizer {memory}"
    encode = f"tokenize corpus.parquet --tokenizer tokenizer --val 0.01 --out tokens {memory}"
    return [
        Stage(
            key="corpus",
            arguments=("corpus.parquet", str(settings.library)),
            makes=("corpus.parquet",),
        ),
        Stage(
            key="tokenizer",
            arguments=tuple(learn.split()),
            reads=("corpus",),
            makes=("tokenizer",),
            budget_bytes=settings.memory_bytes,
            resumes=True,
        ),
        Stage(
            key="tokenize",
            arguments=tuple(encode.split()),
            reads=("corpus", "tokenizer"),
            makes=("tokens",),
            budget_bytes=settings.memory_bytes,
            resumes=True,
        ),
        Stage(key="verify", arguments=("verify", "tokens"), reads=("tokenize",)),
    ]


def _model_stages(settings: DemoSettings) -> list[Stage]:
    tokens = settings.steps * _BATCH_TOKENS
    size = f"--context {_CONTEXT} --batch-tokens {_BATCH_TOKENS} --tokens {tokens}"
    plan = f"plan tokens --model gpt2-pico {size} --write plan.toml"
    memory = f"--memory {round_up_to_mib(TRAINING_BYTES)}"
    train = f"train tokens --plan plan.toml --device cpu --out model {memory}"
    return [
        Stage(
            key="plan",
            arguments=tuple(plan.split()),
            reads=("tokenize",),
            makes=("plan.toml",),
        ),
        Stage(
            key="train",
            arguments=tuple(train.split()),
            reads=("tokenize", "plan"),
            makes=("model",),
            budget_bytes=TRAINING_BYTES,
            resumes=True,
            needs_torch=True,
        ),
        Stage(
            key="sample",
            arguments=("sample", "model", "--prompt", PROMPT, "--count", "48", "--device", "cpu"),
            reads=("train",),
            needs_torch=True,
        ),
        Stage(
            key="export",
            arguments=("export", "model", "--to", "huggingface", "--out", "for-transformers"),
            reads=("train",),
            makes=("for-transformers",),
            needs_torch=True,
        ),
    ]


def _closing_stages(settings: DemoSettings) -> list[Stage]:
    limit = f"--limit {round_up_to_mib(settings.memory_bytes)}"
    ways = f"compare corpus.parquet --ways list,lowtide --sample 100MB {limit} --out compare.html"
    run = "model" if settings.with_torch else "tokens"
    return [
        Stage(
            key="compare",
            arguments=tuple(ways.split()),
            reads=("corpus",),
            makes=("compare.html",),
        ),
        Stage(
            key="report",
            arguments=("report", run),
            reads=("train" if settings.with_torch else "tokenize",),
            makes=(f"{run}/report.html",),
        ),
    ]


def for_children(environment: Mapping[str, str], package: Path) -> dict[str, str]:
    """The environment of the commands: one thread, for the same losses on any number of cores.

    If lowtide is not installed, the commands find it by `PYTHONPATH`, since they run in another folder.
    """
    given = {**environment, "OMP_NUM_THREADS": "1"}
    if package.name not in ("site-packages", "dist-packages"):
        paths = [str(package), *filter(None, [environment.get("PYTHONPATH")])]
        given["PYTHONPATH"] = os.pathsep.join(paths)
    return given
