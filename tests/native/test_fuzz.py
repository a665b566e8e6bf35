"""The C part under AddressSanitizer and UBSan: no input makes it read or write beside its arrays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lowtide.native

pytestmark = pytest.mark.slow

NATIVE = Path(lowtide.native.__file__).parent
REPOSITORY = Path(__file__).parents[2]
FLAGS = ("-O1", "-g", "-std=c11", "-fPIC", "-shared", "-fsanitize=address,undefined")
INPUTS = {"split": 15_000, "count": 1200, "merge": 10_000, "learn": 5000, "pack": 6000, "map": 1500}
"""Some 5 to 10 seconds each."""


def sanitizer() -> str | None:
    """The sanitizers' own library, which a program that does not know of them has to load first."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        return None
    found = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True)
    name = found.stdout.strip()
    return name if Path(name).is_absolute() and Path(name).exists() else None


ASAN = sanitizer()
if ASAN is None:
    pytest.skip("cc has no AddressSanitizer here", allow_module_level=True)


def build(folder: Path, sources: Path = NATIVE) -> Path:
    folder.mkdir(parents=True)
    library = folder / "lowtide_native.so"
    files = sorted(map(str, sources.glob("*.c")))
    command = ["cc", *FLAGS, "-fno-sanitize-recover=all", "-o", str(library), *files]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library as it is."""
    return build(tmp_path_factory.mktemp("sanitized") / "native")


def fuzz(
    folder: Path, target: str, *, inputs: int, seed: int = 1
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "LD_PRELOAD": str(ASAN),
        "PYTHONMALLOC": "malloc",  # Python's own pools would hide a small array's borders
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=16",
    }
    command = [sys.executable, "-m", "tests.native.fuzz", str(folder), target]
    return subprocess.run(
        [*command, "--seed", str(seed), "--inputs", str(inputs)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("target", INPUTS)
def test_no_input_leaves_its_arrays_and_sound_ones_are_answered_right(
    sanitized: Path, target: str
) -> None:
    ended = fuzz(sanitized, target, inputs=INPUTS[target])
    assert ended.returncode == 0, ended.stderr[-6000:]


MISTAKES = {
    "split": ("split_words.c", "if (length - at >= BLOCK_BYTES &&", "if (length - at >= 32 &&"),
    "count": ("word_table.h", "if (at + 8 <= end_of_buffer) return", "return"),
    "merge": ("run.h", "run->length > run->size - run->at || ", ""),
    "learn": ("lay_words.c", " || run.length >= ends[class] - next[class]", ""),
    "pack": ("best_fit.c", "words = room / 64 + 1", "words = room / 64 + 2"),
    "map": (
        "map_files.c",
        "(const void *)source, (size_t)bytes[at]",
        "(const void *)source, (size_t)bytes[at] + 1",
    ),
    "merge, undefined": ("run.h", "shift < 64 &&", "shift < 128 &&"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_noticed(tmp_path: Path, name: str) -> None:
    """A check that is left out, in a copy of the sources, is found within a few hundred inputs."""
    sources, (file, before, after) = tmp_path / "sources", MISTAKES[name]
    shutil.copytree(NATIVE, sources)
    text = (sources / file).read_text()
    assert before in text
    (sources / file).write_text(text.replace(before, after, 1))
    target = name.partition(",")[0]
    ended = fuzz(build(tmp_path / "native", sources), target, inputs=INPUTS[target] // 4)
    assert ended.returncode != 0
    assert "AddressSanitizer" in ended.stderr or "runtime error" in ended.stderr
