"""Inboxes so small that a test can have many: a folder, a tokenizer, batch files, a model and its run."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lowtide import Tokenizer
from lowtide.model.shape import ModelShape
from lowtide.stages.inbox.ledger import Entry, read_entries
from lowtide.stages.inbox.prepare import Inbox, prepare_inbox
from lowtide.stages.inbox.settings import read_inbox_settings
from lowtide.stages.inbox.train_on_inbox import train_on_inbox
from lowtide.stages.resolve_run import ResolvedRun
from lowtide.training.run_results import InboxRun
from lowtide.training.settings import TrainSettings
from tests.learnt import learnt
from tests.training.small_runs import Heard, make_settings, write_plan

VOCABULARY = 562
SHAPE = ModelShape(layers=1, heads=2, width=16, context=96, vocabulary_size=VOCABULARY)
_TEXT = "the tide is low and the sea was far out when we walked over the sand to an old boat"


@cache
def _words(seed: int) -> tuple[str, ...]:
    source = random.Random(seed)
    return tuple(
        " ".join(source.choices(_TEXT.split(), k=source.randint(1, 4))) for _ in range(400)
    )


def chats(count: int, *, seed: int) -> Iterator[dict[str, object]]:
    """Conversations of one or two turns."""
    source, said = random.Random(seed), _words(seed)
    for _ in range(count):
        turns = []
        for _ in range(source.randint(1, 2)):
            turns.append({"role": "user", "content": source.choice(said)})
            turns.append({"role": "assistant", "content": source.choice(said)})
        yield {"messages": turns}


def write_chats(path: Path, count: int = 20, *, seed: int = 0) -> Path:
    """A batch file, put in place whole."""
    text = "".join(json.dumps(one) + "\n" for one in chats(count, seed=seed))
    partial = path.with_name(f".{path.name}")
    partial.write_text(text)
    partial.rename(path)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A folder with an inbox and a plan; runs lie beside them."""

    folder: Path
    settings: TrainSettings

    @property
    def inbox(self) -> Path:
        return self.folder / "inbox"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def plan(self) -> Path:
        return self.folder / "plan.toml"

    def configure(self, **lines: str | float) -> None:
        """Write `lowtide.toml`; a marker lets files count at once."""
        named = {
            "tokenizer": str(self.folder / "tokenizer"),
            "val": 0.1,
            "marker": ".done",
            **lines,
        }
        text = "".join(
            f"{name.replace('_', '-')} = {json.dumps(value)}\n" for name, value in named.items()
        )
        (self.inbox / "lowtide.toml").write_text(text)

    def put(self, name: str, count: int = 20, *, seed: int = 0) -> Path:
        """A whole file with its marker."""
        path = write_chats(self.inbox / name, count, seed=seed)
        (self.inbox / f"{name}.done").touch()
        return path

    def put_text(self, name: str, text: str | bytes) -> Path:
        path = self.inbox / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        (self.inbox / f"{name}.done").touch()
        return path

    def prepare(self) -> Inbox:
        """How files are read."""
        settings = read_inbox_settings(self.inbox)
        return prepare_inbox(self.inbox, settings, context=self.settings.shape.context)

    def train(self, run: Path | None = None, **more: object) -> tuple[InboxRun, Heard]:
        """In this process, until the inbox is empty."""
        heard = Heard()
        resolved = ResolvedRun(folder=run or self.run, settings=self.settings, inbox=self.prepare())
        more = {"until_empty": True, "listen": heard, **more}
        return train_on_inbox(resolved, **more), heard  # type: ignore[arg-type]

    def arguments(self, run: Path | None = None, *more: str) -> list[str]:
        """The same as a command."""
        place = [
            "--inbox",
            str(self.inbox),
            "--out",
            str(run or self.run),
            "--plan",
            str(self.plan),
        ]
        return ["train", *place, "--until-empty", *more]


def make_scene(folder: Path, **changed: object) -> Scene:
    """An empty inbox."""
    usual: dict[str, object] = {
        "shape": SHAPE,
        "batch_tokens": 4 * SHAPE.context,
        "micro_batch": 4,
        "steps": 10**9,
        "schedule": "constant",
        "epochs": 1.0,
        "windows": "document",
        "attention": "document",
        "checkpoint_every": 5,
        "evaluate_every": 4,
    }
    settings = make_settings(folder / "inbox", **{**usual, **changed})
    scene = Scene(folder=folder, settings=settings)
    scene.inbox.mkdir(parents=True)
    Tokenizer.from_byte_pairs(learnt("gpt2")).save(folder / "tokenizer")
    write_plan(scene.plan, settings)
    scene.configure()
    return scene


def stages(run: Path) -> list[tuple[str, str]]:
    """Name and stage of every file that was taken, in order."""
    return [(one.name, one.stage) for one in read_entries(run)]


def entries(run: Path) -> list[Entry]:
    return list(read_entries(run))


def work_left(run: Path) -> list[str]:
    """What lies in the work folder beside the lock and the mark of a run."""
    return sorted(str(one.relative_to(run)) for one in (run / ".lowtide" / "inbox").rglob("*"))
