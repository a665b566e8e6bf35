"""Record what lowtide writes and prints, so that two versions of it can be compared on one machine.

    python bench/goldens.py record before.json --python OLD/.venv/bin/python
    python bench/goldens.py record after.json
    python bench/goldens.py compare before.json after.json

Recorded: a digest of every file of shards, tokenizers, exports and checkpoints; 50 losses; plan files; `--json`
of the commands; the events of every journal. Times, paths, process numbers and measured memory are left out.
`compare` prints every difference and exits 1 if there is one. `--keep DIR` keeps the folders.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import hashlib
import json
import random
import re
import shutil
import subprocess
import tempfile
from typing import TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

MEASURED = re.compile(
    r"seconds|elapsed|time|(^|_)at$|private|peak|pid|host|free|limit|available|per_second|speed|hours|budget"
    r"|machine|used|seal|page_bytes|started|ended|duration|rate_now|run_id|timeline|version"
)
"""Keys whose values differ from one execution to the next."""
SKIPPED_FILES = re.compile(r"log\.jsonl$|events\.out|summary|report\.html$|\.lowtide/lock")
PROGRESS = ("progress", "memory", "advanced", "learnt")
"""Events that come as often as the clock says."""
FORMATS = ("npy", "nanogpt", "llmc", "megatron")


def make_inputs(folder: Path) -> None:
    """Text, JSON lines, Parquet, Arrow and three kinds of examples; the same bytes every time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = random.Random(7)
    words = [
        "tide",
        "low",
        " ",
        "\n",
        "größe",
        "x1",
        "42",
        "—",
        "的",
        "the",
        "and",
        "def f(x):",
        "'s",
    ]
    texts = [
        " ".join(chance.choice(words) for _ in range(chance.randrange(1, 400))) for _ in range(400)
    ]
    folder.mkdir()
    (folder / "one.txt").write_text("\n".join(texts))
    (folder / "blank.txt").write_text("\n\n".join(text.replace("\n", "") for text in texts))
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pq.write_table(pa.table({"text": texts}), folder / "rows.parquet", row_group_size=37)
    with pa.OSFile(str(folder / "rows.arrow"), "wb") as file:
        table = pa.table({"text": texts})
        with pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    chats, instructions, completions = [], [], []
    for question, answer in zip(texts[::2], texts[1::2], strict=True):
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        chats.append({"messages": turns})
        instructions.append({"instruction": question, "input": "", "output": answer})
        completions.append({"prompt": question, "completion": answer})
    for name, rows in (("chat", chats), ("instruction", instructions), ("completion", completions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def commands() -> dict[str, list[str]]:
    """Every call by name, in an order in which each finds what it needs; folders are named after the calls."""
    tokens = ["in/blank.txt", "--separator", "blank-line", "--val", "0.1", "--shard-tokens", "5k"]
    calls: dict[str, list[str]] = {}
    for name in FORMATS:
        calls[f"tokens-{name}"] = ["tokenize", *tokens, "--format", name]
    for place in ("end", "start", "none"):
        calls[f"eot-{place}"] = ["tokenize", "in/rows.jsonl", "--eot", place]
    calls["one-text"] = ["tokenize", "in/one.txt"]
    calls["parquet"] = ["tokenize", "in/rows.parquet", "--memory", "256MiB", "--workers", "1"]
    calls["arrow"] = ["tokenize", "in/rows.arrow"]
    for kind in ("chat", "instruction", "completion"):
        calls[f"examples-{kind}"] = [
            "tokenize",
            f"in/{kind}.jsonl",
            "--examples",
            kind,
            "--val",
            "0.1",
        ]
    calls["dry-run"] = ["tokenize", *tokens, "--dry-run"]
    calls["tokenizer"] = ["train-tokenizer", "in/rows.jsonl", "--vocab-size", "300,512"]
    calls["own-tokens"] = ["tokenize", "in/rows.parquet", "--tokenizer", "tokenizer/512"]
    for name in FORMATS:
        calls[f"export-{name}"] = ["export", "tokens-npy", "--to", name]
    plan = ["plan", "tokens-npy", "--gpu", "RTX 4070", "--model", "gpt2", "--write"]
    calls["plan"] = [*plan, "plan.toml"]
    small = [
        "--model",
        "gpt2-pico",
        "--context",
        "32",
        "--steps",
        "50",
        "--batch-tokens",
        "256",
        "--device",
        "cpu",
        "--no-smoke",
    ]
    calls["run"] = ["train", "tokens-npy", *small]
    tuned = [
        "--steps",
        "10",
        "--batch-tokens",
        "256",
        "--context",
        "32",
        "--device",
        "cpu",
        "--no-smoke",
        "--init",
        "run",
    ]
    calls["tuned"] = ["train", "examples-chat", *tuned]
    calls["model"] = ["export", "run", "--to", "huggingface"]
    calls["sample"] = ["sample", "run", "--prompt", "the tide", "--count", "20", "--seed", "1"]
    calls["inspect"] = ["inspect", "tokens-npy"]
    calls["verify"] = ["verify", "tokens-npy"]
    calls["report"] = ["report", "run"]
    calls["why"] = ["why", "run"]
    return calls


WITHOUT_OUT = ("dry-run", "plan", "sample", "inspect", "verify", "report", "why")


def record(python: str, place: Path) -> dict[str, Json]:
    """Run every command in `place` and describe what it printed and wrote."""
    make_inputs(place / "in")
    found: dict[str, Json] = {}
    for name, call in commands().items():
        words = [python, "-P", "-m", "lowtide", *call, "--json"]
        if name not in WITHOUT_OUT or name == "dry-run":
            words += ["--out", name]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
        print(f"{name}: exit {done.returncode}", file=sys.stderr, flush=True)
        found[f"{name}: exit"] = done.returncode
        if done.returncode:
            found[f"{name}: error"] = done.stderr.replace(str(place), "")
        else:
            found[f"{name}: json"] = normal(json.loads(done.stdout), place)
        if name not in WITHOUT_OUT:
            found.update(describe(place, name))
    found["plan: file"] = (place / "plan.toml").read_text()
    return found


def describe(place: Path, name: str) -> dict[str, Json]:
    """Digests of the files in a folder, and the events of its journal."""
    found: dict[str, Json] = {}
    for path in sorted((place / name).rglob("*")):
        key = f"{name}: {path.relative_to(place / name)}"
        if path.is_file() and not SKIPPED_FILES.search(str(path)):
            found[key] = digest(path, place)
    log = place / name / "log.jsonl"
    if log.exists():
        events = [json.loads(line) for line in log.read_text().splitlines()]
        losses = [event["loss"] for event in events if event.get("event") == "step"]
        if losses:
            found[f"{name}: losses"] = losses
        kinds = [event for event in events if event.get("event") not in PROGRESS]
        found[f"{name}: journal"] = normal(kinds, place)
    return found


def digest(path: Path, place: Path) -> str:
    """Of the file; of JSON that holds measured figures, of what is left without them."""
    data = path.read_bytes()
    if path.suffix == ".json" and path.name not in ("tokenizer.json", "lowtide.json"):
        data = json.dumps(normal(json.loads(data), place)).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def normal(value: Json, place: Path, key: str = "") -> Json:
    """The value without what was measured and without the folder's own name."""
    if isinstance(value, dict):
        return {name: normal(one, place, name) for name, one in value.items()}
    if MEASURED.search(key):
        return "measured"
    if isinstance(value, list):
        return [normal(one, place, key) for one in value]
    if isinstance(value, str):
        text = value.replace(str(place), "").replace(str(place.resolve()), "")
        return (
            re.sub(r"[\d.,]+(e-?\d+)?", "#", text) if key in ("text", "words", "message") else text
        )
    return value


def differences(before: dict[str, Json], after: dict[str, Json]) -> list[str]:
    """A line for every name whose value is not the same in both."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        old, new = (json.dumps(one.get(name), sort_keys=True) for one in (before, after))
        if old != new:
            at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
            start = max(0, at - 40)
            lines.append(
                f"{name}\n  before {old[start : at + 120]}\n  after  {new[start : at + 120]}"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    wanted = parser.add_subparsers(dest="wanted", required=True)
    recording = wanted.add_parser("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--python", default=sys.executable, help="of the version to record")
    recording.add_argument("--keep", type=Path, help="keep all folders there")
    comparing = wanted.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    asked = parser.parse_args()
    if asked.wanted == "compare":
        found = differences(*(json.loads(path.read_text()) for path in (asked.before, asked.after)))
        print("\n".join([*found, f"{len(found)} differences"]))
        sys.exit(bool(found))
    place = asked.keep or Path(tempfile.mkdtemp(prefix="lowtide-goldens-"))
    place.mkdir(parents=True, exist_ok=True)
    try:
        found = record(asked.python, place.resolve())
        asked.file.write_text(json.dumps(found, indent=1, sort_keys=True))
    finally:
        if not asked.keep:
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
