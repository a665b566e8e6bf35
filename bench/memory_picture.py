"""Draw private memory over time while the same text is tokenized in three ways: docs/memory.svg.

    python bench/memory_picture.py /tmp/corpus --out docs/memory.svg

lowtide with a budget, gigatoken on the whole file, and the script everyone writes first: tiktoken, and all
ids in one Python list. Every line is sampled from a real run of its own, ten times a second.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import math
import subprocess
import tempfile
import time
from dataclasses import dataclass

from bench.tokenize import GIGATOKEN
from lowtide.memory.meter import measure_tree
from lowtide.tokenizer.vocabulary import load_vocabulary
from lowtide.units import GIB, MIB, format_bytes, parse_bytes

LIST_OF_IDS = """
import sys, numpy as np, tiktoken
from lowtide.tokenizer.vocabulary import load_vocabulary, parse_ranks
from lowtide.tokenizer.patterns import PATTERNS
gpt2 = load_vocabulary("gpt2")
encoding = tiktoken.Encoding("gpt2", pat_str=PATTERNS["gpt2"],
    mergeable_ranks=parse_ranks(gpt2.content, name="gpt2"), special_tokens=gpt2.special_tokens)
ids = []
for document in open(sys.argv[1], encoding="utf-8").read().split("<|endoftext|>"):
    ids.extend(encoding.encode_ordinary(document))
    ids.append(encoding.eot_token)
np.array(ids, dtype=np.uint16).tofile(sys.argv[3] + "/train.bin")
"""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 360, 78, 172, 34, 46
LOWEST, HIGHEST = 32 * MIB, 16 * GIB
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #57606a }
.title { font-size: 14px; font-weight: 600 }
.grid { stroke: #8b949e; stroke-opacity: .25 }
.budget { stroke: #cf222e; stroke-dasharray: 6 4; stroke-width: 1.5 }
.budget-text { fill: #cf222e }
polyline { fill: none; stroke-width: 2.2; stroke-linejoin: round }
</style>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One way's memory over time."""

    name: str
    colour: str
    points: list[tuple[float, int]]

    @property
    def peak_bytes(self) -> int:
        return max(size for _, size in self.points)


def sample(name: str, colour: str, command: list[str]) -> Line:
    """Run a command and look at its process tree ten times a second."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    points = []
    while process.poll() is None:
        size = measure_tree(process.pid).private_bytes
        if size:
            points.append((time.monotonic() - started, size))
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{name} failed with exit code {process.returncode}")
    return Line(name=name, colour=colour, points=points)


def draw(lines: list[Line], budget_bytes: int, title: str) -> str:
    """The picture as one SVG, readable on light and dark."""
    longest = max(line.points[-1][0] for line in lines)

    def across(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / longest

    def up(size: int) -> float:
        share = math.log2(max(size, LOWEST) / LOWEST) / math.log2(HIGHEST / LOWEST)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{title}</title>{STYLE}",
        f'<text class="title" x="{LEFT}" y="20">{title}</text>',
    ]
    size = 64 * MIB
    while size <= HIGHEST:
        y = up(size)
        label = format_bytes(size).replace(".0", "")
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        size *= 4
    for tick in range(0, math.ceil(longest), max(1, round(longest / 6))):
        x = across(tick)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{tick} s</text>'
        )
    y = up(budget_bytes)
    parts.append(
        f'<line class="budget" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    )
    budget = format_bytes(budget_bytes).replace(".0", "")
    parts.append(
        f'<text class="budget-text" x="{WIDTH - RIGHT - 6}" y="{y - 6:.1f}" text-anchor="end">'
        f"budget {budget}</text>"
    )
    for line in lines:
        points = " ".join(f"{across(t):.1f},{up(size):.1f}" for t, size in line.points)
        parts.append(f'<polyline stroke="{line.colour}" points="{points}"/>')
        parts.append(
            f'<text x="{WIDTH - RIGHT + 10}" y="{up(line.peak_bytes) + 4:.1f}" '
            f'style="fill:{line.colour}">{line.name}, {format_bytes(line.peak_bytes)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="folder made by bench/corpus.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--memory", default="256MiB")
    chosen = parser.parse_args()
    text = chosen.corpus / "corpus.txt"
    with tempfile.TemporaryDirectory(prefix="lowtide-picture-") as folder:
        ranks = Path(folder) / "r50k_base.tiktoken"
        ranks.write_bytes(load_vocabulary("gpt2").content)
        lowtide = [
            sys.executable,
            "-m",
            "lowtide",
            "tokenize",
            str(text),
            "--out",
            f"{folder}/tokens",
        ]
        lowtide += ["--memory", chosen.memory, "--separator", "<|endoftext|>"]
        script = [str(text), str(ranks), folder]
        lines = [
            sample("lowtide", "#1a7f37", lowtide),
            sample("gigatoken", "#9a6700", [sys.executable, "-c", GIGATOKEN, *script]),
            sample("list of ids", "#8250df", [sys.executable, "-c", LIST_OF_IDS, *script]),
        ]
    size = text.stat().st_size / 1e6
    title = f"Private memory while {size:.0f} MB of text are tokenized (GPT-2, two cores)"
    chosen.out.write_text(draw(lines, parse_bytes(chosen.memory), title))
    for line in lines:
        print(f"{line.name}: {format_bytes(line.peak_bytes)}, {line.points[-1][0]:.1f} s")


if __name__ == "__main__":
    main()
