"""The budget of `train-tokenizer` holds inside a cgroup as large. `bench/train_budget.py` takes 1 GB."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from lowtide.units import MIB, parse_bytes
from tests.boxes import BoxResult, drop_from_page_cache, run_in_box
from tests.corpora import SEPARATOR, make_document

BUDGET = "128MiB"


def train_in_box(out: Path, source: Path, memory: str, *flags: str) -> BoxResult:
    drop_from_page_cache(source)
    command = [sys.executable, "-m", "lowtide", "train-tokenizer", str(source), "--out", str(out)]
    command += ["--memory", memory, "--separator", SEPARATOR, *flags]
    return run_in_box(command, limit_bytes=parse_bytes(memory), timeout=300)


@pytest.mark.slow
@pytest.mark.cgroup
def test_the_peak_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    source = random.Random(31)
    paragraphs = [make_document(source, 3000) for _ in range(300)]
    peaks = []
    for name, size_bytes in (("small", 12_000_000), ("large", 60_000_000)):
        path = tmp_path / f"{name}.txt"
        with path.open("w", newline="") as file:
            while file.tell() < size_bytes:
                file.write("".join(source.choices(paragraphs, k=4)) + SEPARATOR)
        result = train_in_box(tmp_path / name, path, BUDGET, "--vocab-size", "8000")
        assert (result.returncode, result.oom_kills) == (0, 0), result.stderr
        peaks.append(result.peak_private_bytes)
    # The encoders that measure the result live for a moment, and a sample may or may not see them.
    assert peaks[1] < peaks[0] + 24 * MIB


@pytest.mark.slow
@pytest.mark.cgroup
def test_more_distinct_words_than_fit_are_learnt_exactly(tmp_path: Path) -> None:
    """Two million words, about 60 MB as tables and lists would have it: most of it goes through the disk."""
    path = tmp_path / "words.txt"
    numbers = np.arange(2_000_000) * 4_826_809_333 % 26**6
    spelled = np.full((len(numbers), 8), ord(" "), dtype=np.uint8)
    spelled[:, :6] = ord("a") + numbers[:, None] // 26 ** np.arange(6) % 26
    path.write_bytes(spelled.tobytes())
    tight = train_in_box(tmp_path / "tight", path, "112MiB", "--vocab-size", "4000", "--json")
    assert (tight.returncode, tight.oom_kills) == (0, 0), tight.stderr
    roomy = train_in_box(tmp_path / "roomy", path, "2GiB", "--vocab-size", "4000", "--json")
    assert roomy.returncode == 0, roomy.stderr
    for name in ("tokenizer.json", "merges.txt", "lowtide-tokenizer.json"):
        assert (tmp_path / "tight" / name).read_bytes() == (tmp_path / "roomy" / name).read_bytes()
    assert json.loads(tight.stdout)["distinct_words"] >= 1_900_000


@pytest.mark.slow
@pytest.mark.cgroup
def test_neither_many_sizes_nor_a_long_held_out_document_break_the_budget(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    source = random.Random(32)
    documents = [make_document(source, 3000) for _ in range(300)]
    held_out = "z5" + "ab" * 7_000_000  # without a safe cut; its hash falls below 0.1
    text.write_text(SEPARATOR.join([held_out, *documents]), newline="")
    sizes = ",".join(str(size) for size in range(2000, 4000, 100))
    flags = ("--val", "0.1", "--vocab-size", sizes)
    result = train_in_box(tmp_path / "out", text, "224MiB", *flags, "--json")
    assert (result.returncode, result.oom_kills) == (0, 0), result.stderr
    told = json.loads(result.stdout)
    assert told["compared"]["text"] == "held-out text"
    assert told["peak_private_bytes"] > result.peak_private_bytes * 0.7
