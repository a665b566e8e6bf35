"""Chat examples: lowtide in a cgroup of 256 MiB against datasets.map with the same template and tiktoken.

    python bench/examples.py                                300,000 examples, about 300 MB
    python bench/examples.py --examples 20000 --template their.jinja

Examples are passages of the sources that are installed here, as conversations of two to six turns. Both ways
run as a process of their own, one after the other, `--repeats` times; times are wall times, start-up
included. Then every row is formatted once more by jinja2 and encoded by tiktoken, and ids and learnt bits are
compared with what lies in the shards. datasets.map makes ids alone: a mask would take it longer.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence

import numpy as np

from bench.corpus import documents
from lowtide.guard.box import open_box
from lowtide.memory.meter import PeakMeter
from lowtide.shards.read import open_dataset
from lowtide.units import MIB, format_bytes

_TEXT_BYTES = 40 << 20
_LIMIT_BYTES = 256 * MIB

PEER = """
import sys, jinja2, jinja2.sandbox
from datasets import load_dataset
from bench.examples import encoding, plain_template
template, encode = plain_template(sys.argv[2]), encoding().encode_ordinary
def process(row):
    return {"input_ids": encode(template.render(messages=row["messages"], eos_token="<|endoftext|>"))}
if __name__ == "__main__":
    rows = load_dataset("json", data_files=sys.argv[1], split="train", cache_dir=sys.argv[3] + "/cache")
    rows = rows.map(process, remove_columns=rows.column_names, num_proc=int(sys.argv[4]))
    rows.save_to_disk(sys.argv[3] + "/tokens")
"""


def make_examples(path: Path, count: int) -> None:
    """Conversations of passages, the same for the same machine."""
    chosen = random.Random(0)
    found, size = [], 0
    for document in documents(None):
        found.append(document)
        size += len(document)
        if size > _TEXT_BYTES:
            break
    text = "".join(found)
    with path.open("w") as file:
        for _ in range(count):
            turns = [("user", "assistant")[at % 2] for at in range(2 * chosen.randint(1, 3))]
            if chosen.random() < 0.3:
                turns.insert(0, "system")
            messages = [{"role": role, "content": _passage(text, chosen)} for role in turns]
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")


def _passage(text: str, chosen: random.Random) -> str:
    start = chosen.randrange(len(text) - 1000)
    return text[start : start + chosen.randint(40, 380)].strip() or "yes"


def encoding():  # type: ignore[no-untyped-def]
    """tiktoken's gpt2, from the vocabulary at hand."""
    import tiktoken

    from lowtide.tokenizer.patterns import PATTERNS
    from lowtide.tokenizer.vocabulary import load_vocabulary, parse_ranks

    gpt2 = load_vocabulary("gpt2")
    return tiktoken.Encoding(
        "gpt2",
        pat_str=PATTERNS["gpt2"],
        mergeable_ranks=parse_ranks(gpt2.content, name="gpt2"),
        special_tokens=gpt2.special_tokens,
    )


def plain_template(source: str):  # type: ignore[no-untyped-def]
    """The template as transformers would make it; its generation blocks render to what is in them."""
    import re

    import jinja2.sandbox

    text = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", Path(source).read_text())
    return jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    ).from_string(text)


def time_ours(
    examples: Path, template: str, out: Path, limit_bytes: int | None
) -> tuple[float, int, int]:
    """Wall seconds, the peak of private memory, and what the kernel killed."""
    command = [sys.executable, "-m", "lowtide", "tokenize", str(examples), "--out", str(out)]
    command += ["--examples", "chat", "--template", template, "--val", "0", "--memory", "256MiB"]
    command += ["--context", "8192"]  # none is too long: all are compared
    with open_box(limit_bytes) as box:
        inside = box.command_inside(command) if box else command
        seconds, peak = _time([*inside, "--quiet"])
        return seconds, peak, box.oom_kills() if box else 0


def time_peer(examples: Path, template: Path, out: Path, processes: int) -> tuple[float, int]:
    out.mkdir()
    return _time(
        [sys.executable, "-c", PEER, str(examples), str(template), str(out), str(processes)]
    )


def _time(command: Sequence[str]) -> tuple[float, int]:
    started = time.monotonic()
    environment = os.environ | {
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }
    with (
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process,
        PeakMeter(process.pid, interval_seconds=0.1) as meter,
    ):
        code = process.wait()
    if code:
        raise SystemExit(f"{command[:6]} ended with code {code}")
    return time.monotonic() - started, meter.peak.private_bytes


def compare(examples: Path, template: str, out: Path) -> int:
    """How many examples have the same ids and bits; SystemExit at the first that has not."""
    split = open_dataset(out).splits["train"]
    assert split.loss_mask is not None, "examples have bits"
    at = number = 0
    for number, (ids, learnt) in enumerate(reference(examples, template), start=1):
        stop = at + len(ids)
        same = np.array_equal(split.read(at, stop), ids)
        if not same or not np.array_equal(split.loss_mask.read(at, stop), learnt):
            raise SystemExit(f"example {number} differs from jinja2 and tiktoken")
        at = stop
    if at != split.tokens:
        raise SystemExit(f"{split.tokens} tokens, and {at} by jinja2 and tiktoken")
    return number


def reference(examples: Path, template: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Row by row: rendered with private marks around what is learnt, encoded whole, bits by byte offsets."""
    import re

    import jinja2.sandbox

    source = Path(template).read_text()
    marked = re.sub(r"\{%-?\s*generation\s*-?%\}", "\ufdd8", source)
    marked = re.sub(r"\{%-?\s*endgeneration\s*-?%\}", "\ufdd9", marked)
    render = (
        jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        .from_string(marked)
        .render
    )
    tokens = encoding()
    lengths = np.array([len(tokens.decode_single_token_bytes(i)) for i in range(tokens.n_vocab)])
    for line in examples.open():
        text = render(messages=json.loads(line)["messages"], eos_token="<|endoftext|>")
        parts = re.split("[\ufdd8\ufdd9]", text)
        ids = np.array(tokens.encode_ordinary("".join(parts)))
        ends = np.cumsum(lengths[ids])
        borders = np.cumsum([len(part.encode()) for part in parts])
        learnt = np.zeros(len(ids), dtype=bool)
        for start, stop in zip(borders[0::2], borders[1::2], strict=False):
            learnt |= (ends > start) & (ends - lengths[ids] < stop)
        learnt[:1] = False  # nothing precedes it
        yield ids, learnt


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=300_000)
    parser.add_argument(
        "--template", type=Path, help="a Jinja file  [default: lowtide's own chatml]"
    )
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--processes", default="1,2", help="of datasets.map")
    parser.add_argument("--work", type=Path, help="[default: the system's folder]")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.work) as folder:
        run(Path(folder), chosen)


def run(folder: Path, chosen: argparse.Namespace) -> None:
    from lowtide.source.examples.templates import load_template
    from lowtide.source.examples.token_names import TokenNames

    examples, template = folder / "examples.jsonl", folder / "chatml.jinja"
    make_examples(examples, chosen.examples)
    named = str(chosen.template or "chatml")
    loaded = load_template(
        named,
        "chat",
        special_tokens={},
        end_of_text="<|endoftext|>",
        names=TokenNames(tokens={"eos_token": "<|endoftext|>"}, is_complete=True),
    )
    template.write_text(loaded.source)
    print(
        f"{chosen.examples:,} examples, {format_bytes(examples.stat().st_size)}, template {named}"
    )
    ours, peers = [], {int(count): [] for count in chosen.processes.split(",")}
    for number in range(chosen.repeats):
        out = folder / f"ours{number}"
        for limit, place in ((_LIMIT_BYTES, folder / f"boxed{number}"), (None, out)):
            seconds, peak, killed = time_ours(examples, named, place, limit)
            where = f"in a cgroup of {format_bytes(limit)}" if limit else "beside the peers"
            print(
                f"lowtide {where}: {seconds:.1f} s, peak {format_bytes(peak)}, {killed} OOM kills"
            )
        ours.append(seconds)
        for processes, taken in peers.items():
            place = folder / f"peer{number}-{processes}"
            seconds, peak = time_peer(examples, template, place, processes)
            taken.append(seconds)
            print(f"datasets.map, {processes} processes: {seconds:.1f} s, {format_bytes(peak)}")
    for processes, taken in peers.items():
        ratio = statistics.median(taken) / statistics.median(ours)
        print(f"× datasets.map with {processes} processes: {ratio:.1f}")
    same = compare(examples, str(template), folder / "ours0")
    print(f"{same:,} examples have the ids and bits of jinja2 and tiktoken")


if __name__ == "__main__":
    main()
