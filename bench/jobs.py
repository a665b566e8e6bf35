"""Small jobs for the campaigns that kill, starve and cut them, and how their folders are compared.

Four jobs between them cover every format, both splits, and text with and without a separator, JSONL,
parquet and compressed files. Their text is the Python standard library's own sources.
"""

from __future__ import annotations

import filecmp
import gzip
import itertools
import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lowtide.journal import LOG_NAME

SEPARATOR = "<|endoftext|>"
STOPPED = 75
_WORK_FOLDER = ".lowtide"
_PROGRESS = f"{_WORK_FOLDER}/progress.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A `lowtide tokenize` without its `--out`."""

    name: str
    arguments: tuple[str, ...]
    shard_tokens: int

    def command(
        self, out: Path, *more: str, program: Sequence[str] = ("-m", "lowtide")
    ) -> list[str]:
        """The command line that makes, or goes on making, the folder `out`."""
        tokenize = [sys.executable, *program, "tokenize", *self.arguments]
        shards = ["--shard-tokens", str(self.shard_tokens)]
        return [*tokenize, "--out", str(out), *shards, "--quiet", *more]


class BrokenLawError(Exception):
    """A campaign saw what must not be."""


def make_jobs(folder: Path, *, text_bytes: int, shard_tokens: int) -> list[Job]:
    """Write the inputs, about `text_bytes` for each job, and name the jobs over them."""
    files = _write_inputs(folder, text_bytes)
    hashed = ("--val", "0.1", "--separator", SEPARATOR)
    tail = ("--val", "0.1", "--split", "tail")
    some = {
        "npy": (*(files[name] for name in ("text", "long", "jsonl", "parquet", "gz")), *hashed),
        "llmc": (files["whole jsonl"], files["parquet"], *hashed),
        "nanogpt": (files["whole long"], *tail),
        "megatron": (files["gz"], files["whole text"], *hashed),
    }
    return [
        Job(name=name, arguments=(*arguments, "--format", name), shard_tokens=shard_tokens)
        for name, arguments in some.items()
    ]


def _write_inputs(folder: Path, text_bytes: int) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    fifth, whole = _documents(text_bytes // 5), _documents(text_bytes)
    files = {
        "text": folder / "text.txt",
        "whole text": folder / "whole.txt",
        "long": folder / "long.txt",
        "whole long": folder / "whole_long.txt",
        "jsonl": folder / "rows.jsonl",
        "whole jsonl": folder / "whole.jsonl",
        "parquet": folder / "rows.parquet",
        "gz": folder / "rows.jsonl.gz",
    }
    files["text"].write_text(SEPARATOR.join(fifth), encoding="utf-8", newline="")
    files["whole text"].write_text(SEPARATOR.join(whole), encoding="utf-8", newline="")
    files["long"].write_text("\n".join(fifth), encoding="utf-8", newline="")
    files["whole long"].write_text("\n".join(whole), encoding="utf-8", newline="")
    files["jsonl"].write_text(_as_rows(fifth), encoding="utf-8", newline="")
    files["whole jsonl"].write_text(_as_rows(whole), encoding="utf-8", newline="")
    files["gz"].write_bytes(gzip.compress(_as_rows(fifth).encode(), compresslevel=1, mtime=0))
    pq.write_table(pa.table({"text": fifth}), files["parquet"], row_group_size=100)
    return {name: str(path) for name, path in files.items()}


def _documents(text_bytes: int) -> list[str]:
    """Sources of the standard library, in order, until there are enough bytes of them."""
    found: list[str] = []
    left = text_bytes
    for text in _sources():
        found.append(text)
        left -= len(text.encode())
        if left <= 0:
            break
    return found


def _sources() -> Iterator[str]:
    """Never ends: what a small installation lacks is made up by further rounds, each with its number."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    own = [path for path in paths if "site-packages" not in path.parts]
    for number in itertools.count():
        for path in own:
            text = path.read_bytes().decode(errors="replace")
            if text.strip() and SEPARATOR not in text:
                yield f"# round {number}\n{text}" if number else text


def _as_rows(documents: Sequence[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in documents)


def finish(job: Job, out: Path, *more: str) -> None:
    """Run the job to its end; anything but success breaks the law."""
    ended = subprocess.run(job.command(out, *more), capture_output=True, text=True)
    if ended.returncode != 0:
        raise BrokenLawError(f"{job.name}: exit {ended.returncode}: {ended.stderr}")


def check_whole(out: Path, reference: Path, when: str) -> None:
    """`out` holds what `reference` holds, byte for byte, and nothing else, but for a log of its own."""
    found, wanted = set(_all_files(out)), set(_all_files(reference))
    if found != wanted:
        raise BrokenLawError(f"{when}: {sorted(found ^ wanted)} are in one folder only")
    _, different, unread = filecmp.cmpfiles(out, reference, sorted(found), shallow=False)
    if different or unread:
        raise BrokenLawError(f"{when}: {[*different, *unread]} are not what they should be")
    if (out / _WORK_FOLDER).exists():
        raise BrokenLawError(f"{when}: the work folder is still there")


def check_nothing_half_written(out: Path, reference: Path, when: str) -> None:
    """Every file under a final name is already what it will be at the end."""
    for name in published(out):
        if not (reference / name).is_file():
            raise BrokenLawError(f"{when}: {name} stands there and belongs to no result")
        if not filecmp.cmp(out / name, reference / name, shallow=False):
            raise BrokenLawError(f"{when}: {name} is half-written under its final name")


def check_words(code: int, words: str, when: str) -> None:
    """A run that failed says so as `error:` and `hint:`, with exit code 1, and is not a fault of ours."""
    starts = [line.partition(" ")[0] for line in words.splitlines()]
    strange = "Traceback" in words or "fault of lowtide" in words
    if code != 1 or starts[-2:] != ["error:", "hint:"] or strange:
        raise BrokenLawError(f"{when}: exit {code}: {words}")


def published(out: Path) -> set[str]:
    """Names in the folder that are not hidden: all of them are final."""
    if not out.is_dir():
        return set()
    return {
        path.name
        for path in out.iterdir()
        if not path.name.startswith(".") and path.name != LOG_NAME
    }


def stored_tokens(out: Path) -> int:
    """Tokens that the newest checkpoint carries; 0 before the first."""
    path = out / _PROGRESS
    return int(json.loads(path.read_text())["counts"]["tokens"]) if path.exists() else 0


def name_phase(out: Path) -> str:
    """Where in its life a run was when it was killed, as its folder tells."""
    work, names = out / _WORK_FOLDER, published(out)
    if "lowtide.json" in names:
        return "after the manifest"
    if any(name.startswith("documents_") for name in names) or list(out.glob(".*.tmp")):
        return "in the seal"
    if not (work / "progress.json").exists():
        return "before the first checkpoint"
    if list(work.glob(".*.tmp")):
        return "in a checkpoint's write"
    if _is_naming(work / "progress.json", names):
        return "between checkpoint and name"
    return "between checkpoints"


def _is_naming(progress: Path, names: set[str]) -> bool:
    stored = json.loads(progress.read_text())
    return any(
        shard["name"] not in names
        for split in ("train", "val")
        for shard in stored[split]["finished"]
    )


def _all_files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != LOG_NAME:
            yield str(path.relative_to(folder))
