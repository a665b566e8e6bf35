"""Journals as runs write them, with times of their own: for pages that must be the same each time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from lowtide.units import GIB, MIB

BEGAN = 1_790_000_000.0
Record = dict[str, object]
HOSTILE = (
    "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp; "
    "שלום \u202etxt.exe \x00\ud800\u2028"
)


def write_log(path: Path, records: Iterable[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="ascii") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def start(kind: str, at: float = BEGAN, **fields: object) -> Record:
    usual = {"version": "0.1.0", "pid": 4711, "settings": {}, "budget_bytes": 512 * MIB}
    return {"event": "start", "at": at, "kind": kind, **usual, **fields}


def end(at: float, outcome: str = "done", **fields: object) -> Record:
    usual = {"exit_code": 0, "problem": None, "remedy": None}
    return {"event": "end", "at": at, "outcome": outcome, **usual, **fields}


def tokenized(*, seconds: int = 640, budget_bytes: int = 512 * MIB) -> Iterator[Record]:
    """A finished run over 5 GiB, a record a second."""
    settings = {
        "inputs": ["corpus/stories.jsonl"],
        "tokenizer": "gpt2",
        "format": "npy",
        "val": 0.005,
    }
    yield start("tokenize", settings=settings, budget_bytes=budget_bytes)
    yield {"event": "note", "at": BEGAN + 1, "text": "8 workers fit the budget", "level": "info"}
    total = 5 * GIB
    for second in range(1, seconds + 1):
        at, done = BEGAN + second, total * second // seconds
        private = int(_climb(second, 30) * 330 * MIB + 40 * MIB * abs(math.sin(second / 9)))
        yield {
            "event": "advanced",
            "at": at,
            "done_bytes": done,
            "total_bytes": total,
            "documents": done // 4000,
            "tokens": done // 4,
            "private_bytes": private,
            "budget_bytes": budget_bytes,
            "elapsed_seconds": float(second),
            "resumed_bytes": 0,
        }
        yield _memory(at, private, mapped=int(2 * GIB * _climb(second, 200)))
        if second % 60 == 0:
            yield {"event": "checkpoint", "at": at, "done_bytes": done, "tokens": done // 4}
    yield end(BEGAN + seconds + 2)


def learnt(*, budget_bytes: int = 256 * MIB) -> Iterator[Record]:
    """A tokenizer: words counted for 200 s, merges learnt for 300 s."""
    yield start("train-tokenizer", settings={"vocabulary_size": 32_000}, budget_bytes=budget_bytes)
    for second in range(1, 501):
        at = BEGAN + second
        private = (
            int(min(second, 200) * 0.9 * MIB + 30 * MIB)
            if second < 200
            else int(150 * MIB - second * 0.1 * MIB)
        )
        common = {
            "at": at,
            "private_bytes": private,
            "budget_bytes": budget_bytes,
            "elapsed_seconds": second,
        }
        if second <= 200:
            read = {
                "done_bytes": second * 10 * MIB,
                "total_bytes": 2000 * MIB,
                "documents": second * 999,
            }
            yield {"event": "advanced", "tokens": 0, "resumed_bytes": 0, **read, **common}
        else:
            merges = int(31_743 * ((second - 200) / 300) ** 0.6)
            yield {"event": "learnt", "merges": merges, "most_merges": 31_743, **common}
        yield _memory(at, private, mapped=60 * MIB)
    yield end(BEGAN + 502)


def trained(
    *,
    steps: int = 2000,
    last: int | None = None,
    began: float = BEGAN,
    first: int = 1,
    text: str = "Once upon",
) -> Iterator[Record]:
    """A session of training without its end."""
    settings = {
        "model": "gpt2-nano",
        "data": "tokens",
        "batch_tokens": 131_072,
        "shape": {"layers": 4, "heads": 4, "width": 128, "context": 256, "vocabulary_size": 50_257},
        "learning_rate": 6e-4,
    }
    yield start("train", began, settings=settings, budget_bytes=4 * GIB, step=first - 1)
    for step in range(first, (last or steps) + 1):
        at = began + 3 + (step - first + 1) * 0.9
        yield one_step(step, steps, at)
        if step % 10 == 0:
            yield _memory(at, int(1.4 * GIB), mapped=int(0.6 * GIB))
        if step % 100 == 0:
            yield {"event": "evaluation", "at": at, "step": step, "loss": _loss(step) + 0.12}
            yield {
                "event": "sample",
                "at": at,
                "step": step,
                "text": f"{text} {step} there was a tide.",
            }
            yield {
                "event": "checkpoint",
                "at": at,
                "step": step,
                "path": f"checkpoints/{step}",
                "seconds": 0.8,
            }


def one_step(step: int, steps: int, at: float | None) -> Record:
    rate = 6e-4 * min(step / 100, 1) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
    noise = math.sin(step * 12.9898) * 43758.5453 % 1 - 0.5
    return {
        "event": "step",
        **({} if at is None else {"at": at}),
        "step": step,
        "steps": steps,
        "loss": _loss(step) + noise * 0.3,
        "learning_rate": rate,
        "gradient_norm": 0.4 + abs(noise) + 3 / (1 + step / 40),
        "seconds": 0.9,
        "tokens": step * 131_072,
        "tokens_per_second": 145_000 + noise * 9000,
        "epoch": step / 900,
        "private_bytes": int(1.35 * GIB + 80 * MIB * abs(noise)),
        "seconds_left": (steps - step) * 0.9,
        "gpu_bytes": int((3.1 if step > 100 else 2.9) * GIB),
        "mfu": 0.31,
        "skipped": False,
    }


def watched(*, limit_bytes: int = 4 * GIB) -> Iterator[Record]:
    """A leak of 50 MB a second that is noted, asked and ended."""
    yield start(
        "watch",
        settings={"limit": "4GiB"},
        budget_bytes=None,
        command=["python", "leak.py", "--corpus", "stories.jsonl"],
        limit_bytes=limit_bytes,
        floor_bytes=512 * MIB,
        how="cgroup v2",
        stdout_path=None,
        stderr_path=None,
    )
    for half in range(1, 161):
        at, private = BEGAN + half / 2, int(half / 2 * 50e6 + 90 * MIB)
        yield reading(at, private, limit_bytes)
        if half in (60, 100):
            left = (limit_bytes - private) / 50e6
            yield {
                "event": "forecast",
                "at": at,
                "seconds": left,
                "reaches_bytes": limit_bytes,
                "bytes_per_second": 5e7,
            }
        stage = {130: "note", 146: "ask", 158: "end"}.get(half)
        if stage:
            yield {
                "event": "alert",
                "at": at,
                "stage": stage,
                "reason": f"{private} bytes are used",
                "top": [],
            }
    yield end(
        BEGAN + 81, "ended", exit_code=None, signal=15, oom_kills=0, peak_private_bytes=private
    )


def reading(at: float, private: int, limit_bytes: int) -> Record:
    return {
        "event": "reading",
        "at": at,
        "private_bytes": private,
        "shared_bytes": 0,
        "mapped_bytes": 300 * MIB,
        "swapped_bytes": max(0, private - 3 * GIB) // 4,
        "process_count": 3,
        "available_bytes": 20 * GIB - private,
        "swapped_in_bytes": 0,
        "stalled_percent": 0.0,
        "cgroup_bytes": private + 310 * MIB,
        "cgroup_limit_bytes": limit_bytes,
        "gpus": [{"index": 0, "name": "RTX 4070", "used_bytes": 3 * GIB, "total_bytes": 12 * GIB}],
        "top": [{"pid": 4712, "name": "python", "private_bytes": private - 20 * MIB}],
    }


def _memory(at: float, private: int, *, mapped: int) -> Record:
    return {
        "event": "memory",
        "at": at,
        "private_bytes": private,
        "mapped_bytes": mapped,
        "swapped_bytes": 0,
        "available_bytes": 18 * GIB - private,
        "stalled_percent": 0.0,
    }


def _climb(second: float, scale: float) -> float:
    return 1 - math.exp(-second / scale)


def _loss(step: int) -> float:
    return 3.1 + 7.7 * math.exp(-step / 60) + 1.2 * math.exp(-step / 700)
