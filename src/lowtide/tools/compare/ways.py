"""The ways that are compared (baselines and lowtide itself), what each needs, and the command that runs it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from lowtide.child import python_command
from lowtide.errors import UsageError
from lowtide.tokenizer.patterns import PATTERNS
from lowtide.tokenizer.vocabulary import Vocabulary
from lowtide.units import MIB

Job: TypeAlias = Literal["tokenize", "train a tokenizer"]
EXTRA = "compare"
"""The extra of lowtide that installs what the baselines need."""
FACTS_NAME = "encoding.json"
_PACKAGE = "lowtide.tools.baselines"
_BUDGET_SHARE = 0.9
"""Share of the box for lowtide's `--memory`: the rest is for page cache, which the box also charges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of a way: its input files, tokenizer and output."""

    files: tuple[Path, ...]
    tokenizer: Path
    """Folder that `write_tokenizer` filled."""
    out: Path
    progress: Path
    limit_bytes: int

    @property
    def budget_bytes(self) -> int:
        """The `--memory` that lowtide gets."""
        return int(self.limit_bytes * _BUDGET_SHARE) // MIB * MIB

    @property
    def tokenizer_file(self) -> Path:
        """The file that lowtide takes as `--tokenizer`."""
        return next(path for path in self.tokenizer.iterdir() if path.name != FACTS_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to do a job: a baseline, or lowtide itself."""

    key: str
    """Its name for `--ways`."""
    name: str
    job: Job
    needs: tuple[str, ...]
    """Packages without which it cannot run."""
    command: Callable[[Task], list[str]]
    ours: bool = False

    @property
    def missing(self) -> list[str]:
        """Packages that it needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def _script(module: str) -> Callable[[Task], list[str]]:
    def command(task: Task) -> list[str]:
        start = python_command("-m", f"{_PACKAGE}.{module}")
        return [*start, *map(str, (task.tokenizer, task.out, task.progress, *task.files))]

    return command


def _tokenize(task: Task) -> list[str]:
    chosen = ["--tokenizer", str(task.tokenizer_file), "--format", "nanogpt"]
    return [*_lowtide("tokenize", task), *chosen]


def _train_tokenizer(task: Task) -> list[str]:
    return [*_lowtide("train-tokenizer", task), "--vocab-size", "32000"]


def _lowtide(command: str, task: Task) -> list[str]:
    memory = f"{task.budget_bytes // MIB}MiB"
    start = python_command("-m", "lowtide", command, *map(str, task.files))
    return [*start, "--out", str(task.out / "made"), "--memory", memory, "--json", "--quiet"]


WAYS = (
    Way(
        key="list",
        name="Python list of ids",
        job="tokenize",
        needs=("tiktoken",),
        command=_script("list_of_ids"),
    ),
    Way(
        key="map",
        name="datasets.map",
        job="tokenize",
        needs=("datasets", "tiktoken"),
        command=_script("datasets_map"),
    ),
    Way(
        key="pool",
        name="pool of whole files",
        job="tokenize",
        needs=("tiktoken",),
        command=_script("pool_of_files"),
    ),
    Way(
        key="nanogpt",
        name="nanoGPT's prepare",
        job="tokenize",
        needs=("datasets", "tiktoken"),
        command=_script("nanogpt_prepare"),
    ),
    Way(
        key="lowtide",
        name="lowtide tokenize",
        job="tokenize",
        needs=(),
        command=_tokenize,
        ours=True,
    ),
    Way(
        key="tokenizers",
        name="tokenizers' BpeTrainer",
        job="train a tokenizer",
        needs=("tokenizers",),
        command=_script("bpe_trainer"),
    ),
    Way(
        key="lowtide-train",
        name="lowtide train-tokenizer",
        job="train a tokenizer",
        needs=(),
        command=_train_tokenizer,
        ours=True,
    ),
)


def choose_ways(keys: Sequence[str] | None) -> tuple[Way, ...]:
    """The requested ways, in our order; all of them for None."""
    if keys is None:
        return WAYS
    known = [way.key for way in WAYS]
    unknown = [key for key in keys if key not in known]
    if unknown or not keys:
        raise UsageError(
            f"there is no way {unknown[0]!r}" if unknown else "no way was named",
            remedy=f"pass `--ways` with some of {','.join(known)}",
        )
    return tuple(way for way in WAYS if way.key in keys)


def write_tokenizer(vocabulary: Vocabulary, folder: Path) -> None:
    """Write the tokenizer as every way's encoder reads it, so that nothing is downloaded."""
    if vocabulary.end_of_text is None:
        raise UsageError(
            f"the tokenizer {vocabulary.name} has no end-of-text token",
            remedy="pass a `--tokenizer` that has one, such as gpt2",
        )
    name = "tokenizer.json"
    if vocabulary.kind == "ranks":  # its pattern may follow from its name
        name = Path(vocabulary.name).with_suffix(".tiktoken").name
    (folder / name).write_bytes(vocabulary.content)
    facts = {
        "file": name,
        "kind": vocabulary.kind,
        "name": vocabulary.name,
        "pattern": PATTERNS[vocabulary.pattern] if vocabulary.pattern else "",
        "special_tokens": vocabulary.special_tokens,
        "end_of_text": vocabulary.end_of_text,
        "size": vocabulary.size,
    }
    (folder / FACTS_NAME).write_text(json.dumps(facts), encoding="utf-8")
