"""A library that was built from other sources is refused at load, before a call can corrupt memory."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

import lowtide.native
from lowtide.errors import UsageError
from lowtide.native import check_layout, load_native

NATIVE = Path(lowtide.native.__file__).parent


def copy_sources(folder: Path, before: str = "", after: str = "") -> Path:
    """The C files, with one change to what they tell Python."""
    shutil.copytree(NATIVE, folder, ignore=shutil.ignore_patterns("*.so", "*.py", "__pycache__"))
    text = (folder / "layout.h").read_text()
    assert before in text
    (folder / "layout.h").write_text(text.replace(before, after, 1))
    return folder


def compile_c(folder: Path, name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = ["cc", "-std=c11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", *flags]
    return subprocess.run(
        [*command, f"{name}.c", "-o", f"{name}.so"], cwd=folder, capture_output=True, text=True
    )


def load_table(folder: Path) -> ctypes.CDLL:
    """A library of nothing but the table."""
    compile_c(folder, "layout").check_returncode()
    return ctypes.CDLL(str(folder / "layout.so"))


def test_the_table_of_these_sources_is_what_python_expects(tmp_path: Path) -> None:
    check_layout(load_table(copy_sources(tmp_path / "native")))


def test_every_function_of_the_library_is_in_its_table(tmp_path: Path) -> None:
    folder = copy_sources(tmp_path / "native")
    for source in folder.glob("*.c"):
        compile_c(folder, source.stem, "-Werror=missing-prototypes", "-c").check_returncode()


DRIFTS = {
    "two fields changed places": (
        "FIELD(uint32_t, left)  \\\n    FIELD(uint32_t, right)",
        "FIELD(uint32_t, right) FIELD(uint32_t, left)",
    ),
    "a field became wider": ("FIELD(uint32_t, alphabet_size)", "FIELD(uint64_t, alphabet_size)"),
    "a field hides in the padding": ("FIELD(int, pattern)", "FIELD(int, pattern) FIELD(int, new)"),
    "a field at the end": ("FIELD(int64_t, whole)", "FIELD(int64_t, whole) FIELD(int64_t, new)"),
    "a field is signed now": ("FIELD(int64_t, min_frequency)", "FIELD(uint64_t, min_frequency)"),
    "a field became a pointer": ("FIELD(uint64_t, list_room)", "FIELD(uint64_t *, list_room)"),
    "one argument more": ("lt_table_new, uint64_t", "lt_table_new, uint64_t, int"),
    "one argument less": ("lt_unmap_file, void *, uint64_t", "lt_unmap_file, void *"),
    "an argument became narrower": ("lt_table_new, uint64_t", "lt_table_new, uint32_t"),
    "a number instead of an address": ("lt_table_free, WordTable *", "lt_table_free, uint64_t"),
    "an answer of another width": ("uint64_t, int *)", "uint64_t, uint64_t *)"),
    "another result": ("int, lt_table_sort", "void, lt_table_sort"),
    "a function is gone": ("FUNCTION(int, lt_runs_damaged, const RunMerger *)", ""),
    "a function is new": (
        "FUNCTION(void, lt_table_free",
        "FUNCTION(int, lt_new, int) FUNCTION(void, lt_table_free",
    ),
    "a function at the end": (
        "int64_t *, uint64_t *)\n",
        "int64_t *, uint64_t *) FUNCTION(int, lt_new, int)\n",
    ),
    "a struct for another": (
        "const CountSettings *, const uint8_t *",
        "const MergerSettings *, const uint8_t *",
    ),
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_library_that_differs_is_refused_with_a_remedy(tmp_path: Path, drift: str) -> None:
    library = load_table(copy_sources(tmp_path / "native", *DRIFTS[drift]))
    with pytest.raises(UsageError) as caught:
        check_layout(library)
    assert "install" in caught.value.remedy


def test_a_library_from_before_there_was_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        check_layout(ctypes.CDLL(None))


def test_a_definition_that_differs_from_the_table_does_not_compile(tmp_path: Path) -> None:
    drift = ("FUNCTION(int64_t, lt_best_fit, int64_t,", "FUNCTION(int64_t, lt_best_fit, int32_t,")
    assert compile_c(copy_sources(tmp_path / "native", *drift), "best_fit").returncode != 0


def test_a_big_endian_machine_is_refused_when_it_compiles(tmp_path: Path) -> None:
    folder = copy_sources(tmp_path / "native")
    other = ("-U__BYTE_ORDER__", "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__")
    for source in folder.glob("*.c"):
        ended = compile_c(folder, source.stem, *other)
        assert ended.returncode != 0
        assert "byte order" in ended.stderr


def test_the_installed_library_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lowtide.native._SIGNATURES, "lt_table_free", (None, [ctypes.c_int64]))
    with pytest.raises(UsageError):
        load_native.__wrapped__()
