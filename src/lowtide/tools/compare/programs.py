"""The programs that are compared, baselines and commands of lowtide: what each needs and how it is run."""

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
from lowtide.units import MIB, round_up_to_mib

JobName: TypeAlias = Literal["tokenize", "train a tokenizer"]
EXTRA = "compare"
"""The extra of lowtide that installs what the baselines need."""
_FACTS_NAME = "encoding.json"
_BUDGET_SHARE = 0.9
"""Share of the box for lowtide's `--memory`: the rest is for page cache, which the box also charges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of a program."""

    files: tuple[Path, ...]
    tokenizer: Path
    """Folder that `write_tokenizer` filled."""
    work: Path
    """Folder of the run, with a folder `out`; the file `progress` in it tells how far the program is."""
    limit_bytes: int


def budget_in(limit_bytes: int) -> int:
    """The `--memory` that lowtide gets in a box of this size."""
    return int(limit_bytes * _BUDGET_SHARE) // MIB * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A baseline, or a command of lowtide."""

    key: str
    """Its name for `--programs`."""
    name: str
    job: JobName
    command: Callable[[Task], list[str]]
    needs: tuple[str, ...] = ()
    """Packages without which it cannot run."""
    ours: bool = False

    @property
    def missing(self) -> list[str]:
        """Packages that it needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def _baseline(key: str, name: str, module: str, *needs: str) -> Program:
    def command(task: Task) -> list[str]:
        start = python_command("-m", f"lowtide.tools.baselines.{module}")
        places = (task.tokenizer, task.work / "out", task.work / "progress", *task.files)
        return [*start, *map(str, places)]

    job: JobName = "train a tokenizer" if module == "bpe_trainer" else "tokenize"
    return Program(key=key, name=name, job=job, command=command, needs=needs)


def _tokenize(task: Task) -> list[str]:
    (file,) = (path for path in task.tokenizer.iterdir() if path.name != _FACTS_NAME)
    return [*_lowtide("tokenize", task), "--tokenizer", str(file), "--format", "nanogpt"]


def _train_tokenizer(task: Task) -> list[str]:
    return [*_lowtide("train-tokenizer", task), "--vocab-size", "32000"]


def _lowtide(command: str, task: Task) -> list[str]:
    out, memory = task.work / "out" / "made", round_up_to_mib(budget_in(task.limit_bytes))
    start = python_command("-m", "lowtide", command, *map(str, task.files))
    return [*start, "--out", str(out), "--memory", memory, "--json", "--quiet"]


PROGRAMS = (
    _baseline("list", "Python list of ids", "list_of_ids", "tiktoken"),
    _baseline("map", "datasets.map", "datasets_map", "datasets", "tiktoken"),
    _baseline("pool", "pool of whole files", "pool_of_files", "tiktoken"),
    _baseline("nanogpt", "nanoGPT's prepare", "nanogpt_prepare", "datasets", "tiktoken"),
    Program(key="lowtide", name="lowtide tokenize", job="tokenize", command=_tokenize, ours=True),
    _baseline("tokenizers", "tokenizers' BpeTrainer", "bpe_trainer", "tokenizers"),
    Program(
        key="lowtide-train",
        name="lowtide train-tokenizer",
        job="train a tokenizer",
        command=_train_tokenizer,
        ours=True,
    ),
)


def choose_programs(keys: Sequence[str] | None) -> tuple[Program, ...]:
    """The requested programs, in our order; all of them for None."""
    if keys is None:
        return PROGRAMS
    known = [program.key for program in PROGRAMS]
    unknown = [key for key in keys if key not in known]
    if unknown or not keys:
        raise UsageError(
            f"there is no program {unknown[0]!r}" if unknown else "no program was named",
            remedy=f"pass `--programs` with some of {','.join(known)}",
        )
    return tuple(program for program in PROGRAMS if program.key in keys)


def write_tokenizer(vocabulary: Vocabulary, folder: Path) -> None:
    """Write the tokenizer in the form that all programs read, so that nothing is downloaded."""
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
    (folder / _FACTS_NAME).write_text(json.dumps(facts), encoding="utf-8")
