"""The C extension: what its functions take and return, and how it is loaded.

Takes addresses of arrays and of mapped files; returns numbers, and fills arrays in place.
Costs 80 KB, loaded at the first use.

    split_words, word_table, count_words, merge_runs      words counted in bounded memory
    lay_words, merger, cells, queue, watch, merge_pairs   merges learnt from them
    map_files                                             pieces out of mapped files, without SIGBUS
    file_stamps                                           which files are still the same
    best_fit                                              lengths packed into rows
    watch_maps                                            maps that libraries read, without SIGBUS
    layout                                                what Python calls and passes, as one table

It is C because neither numpy nor a maintained library does these fast enough in bounded memory;
ARCHITECTURE.md has the figures. It is loaded with ctypes, which releases the interpreter's
lock during every call: threads work side by side. ctypes believes whatever types it is given, so the
types below are compared with the library's own table of them before its first use.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import lru_cache
from pathlib import Path

from lowtide.errors import UsageError

_NAME = "lowtide_native"
_SUFFIXES = {"win32": ".dll", "darwin": ".dylib"}


class Marks(Structure):
    """Strings that end a text inside a block: all in one string, longer ones first, and where each ends."""

    _fields_ = (("bytes", c_void_p), ("ends", c_void_p), ("count", c_uint32))


class CountSettings(Structure):
    """How a block is cut into words."""

    _fields_ = (("pattern", c_int), ("classes", c_void_p), ("marks", Marks))


class MergerSettings(Structure):
    """The words to learn from, and how much memory there is for learning."""

    _fields_ = (
        ("ties", c_int32),
        ("bits", c_int32),
        ("min_frequency", c_int64),
        ("cells", c_void_p),
        ("cell_count", c_uint64),
        ("class_ends", c_void_p),
        ("class_counts", c_void_p),
        ("class_total", c_uint64),
        ("alphabet", c_void_p),
        ("alphabet_size", c_uint32),
        ("most_symbols", c_uint32),
        ("pair_slots", c_uint64),
        ("list_room", c_uint64),
    )


class Step(Structure):
    """One merge."""

    _fields_ = (
        ("left", c_uint32),
        ("right", c_uint32),
        ("count", c_int64),
        ("joined", c_int64),
        ("whole", c_int64),
    )


_STRUCTS = (Marks, CountSettings, MergerSettings, Step)
_U64_OUT = POINTER(c_uint64)
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "lt_split_words": (
        ctypes.c_size_t,
        [c_int, c_void_p, ctypes.c_size_t, c_void_p, c_void_p, ctypes.c_size_t],
    ),
    "lt_table_new": (c_void_p, [c_uint64]),
    "lt_table_free": (None, [c_void_p]),
    "lt_table_clear": (None, [c_void_p]),
    "lt_table_words": (c_uint64, [c_void_p]),
    "lt_table_longest": (c_uint64, [c_void_p]),
    "lt_table_sort": (c_int, [c_void_p]),
    "lt_table_write": (c_uint64, [c_void_p, _U64_OUT, c_void_p, c_uint64]),
    "lt_count_block": (
        c_uint64,
        [c_void_p, POINTER(CountSettings), c_void_p, c_uint64, c_uint64],
    ),
    "lt_runs_open": (c_void_p, [c_void_p, c_void_p, c_uint32]),
    "lt_runs_close": (None, [c_void_p]),
    "lt_runs_write": (c_uint64, [c_void_p, c_void_p, c_uint64, _U64_OUT]),
    "lt_runs_damaged": (c_int, [c_void_p]),
    "lt_runs_totals": (None, [c_void_p, c_void_p]),
    "lt_classes_of": (c_void_p, [c_void_p, c_uint64, POINTER(c_int)]),
    "lt_classes_free": (None, [c_void_p]),
    "lt_classes_total": (c_uint64, [c_void_p]),
    "lt_classes_list": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "lt_lay_words": (
        c_int,
        [
            *(c_void_p, c_uint64, c_void_p, c_void_p, c_void_p),
            *(c_uint64, c_void_p, c_void_p, c_int32),
        ],
    ),
    "lt_merger_new": (c_void_p, [POINTER(MergerSettings)]),
    "lt_merger_free": (None, [c_void_p]),
    "lt_merger_run": (
        c_int,
        [c_void_p, c_uint32, c_uint64, c_void_p, c_uint64, _U64_OUT],
    ),
    "lt_merger_use_cells": (c_int, [c_void_p, c_void_p, c_int32, c_uint64, c_uint64]),
    "lt_merger_close_up": (c_uint64, [c_void_p]),
    "lt_merger_copy": (c_uint64, [c_void_p, _U64_OUT, c_void_p, c_uint64]),
    "lt_merger_recounts": (c_uint64, [c_void_p]),
    "lt_map_file": (c_int, [c_int, c_uint64, c_int, POINTER(c_void_p)]),
    "lt_unmap_file": (None, [c_void_p, c_uint64]),
    "lt_watch_map": (c_int, [c_void_p, c_uint64]),
    "lt_map_broken": (c_int, [c_int]),
    "lt_let_map_go": (None, [c_int]),
    "lt_copy_pieces": (c_uint64, [c_uint64, c_void_p, c_void_p, c_void_p]),
    "lt_widen_rows": (
        c_uint64,
        [c_uint64, c_uint64, c_int, c_void_p, c_void_p, c_void_p, POINTER(c_uint32)],
    ),
    "lt_fetch_pieces": (None, [c_uint64, c_void_p, c_void_p]),
    "lt_first_changed": (c_uint64, [c_uint64, c_void_p, c_void_p, c_void_p]),
    "lt_best_fit": (
        c_int64,
        [c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_void_p],
    ),
}


class _Row(Structure):
    """One row of the library's table `lt_layout`; see layout.c."""

    _fields_ = (("name", c_char_p), ("type", c_char_p), ("number", c_uint64))


_TYPES = {
    None: "void",
    c_void_p: "*",
    ctypes.c_size_t: "u64",
    c_int32: "i32",
    c_uint32: "u32",
    c_int64: "i64",
    c_uint64: "u64",
}


@lru_cache(maxsize=1)
def load_native() -> ctypes.CDLL:
    """Load the library and declare every function's types.

    UsageError where it was never built, or was built from other sources than these.
    """
    path = Path(__file__).with_name(_NAME + _SUFFIXES.get(sys.platform, ".so"))
    try:
        library = ctypes.CDLL(str(path))
    except OSError as cause:
        raise UsageError(
            f"lowtide's C extension is missing or does not fit this machine ({cause})",
            remedy="install lowtide with pip (in a checkout: `pip install -e .`), which builds it",
        ) from cause
    check_layout(library)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def check_layout(library: ctypes.CDLL) -> None:
    """Refuse a library with other structs or functions than those declared here: calls would corrupt memory."""
    ours = list(_rows_of_python())
    try:
        table = (_Row * (len(ours) + 1)).in_dll(library, "lt_layout")
    except ValueError:
        raise _other_build("it has no table of its functions") from None
    owner = ""
    for row, (name, kind, number) in zip(table, ours, strict=False):
        found = (row.name or b"").decode(), (row.type or b"").decode(), row.number
        if kind == "struct" or name.startswith("lt_"):
            owner = name
        same_type = found[1] == kind or (kind == "*" and found[1].endswith("*"))
        if not (found[0] == name and same_type and found[2] == number):
            raise _other_build(f"{owner}: {(name, kind, number)} here, {found} there")
    if table[len(ours)].type is not None:
        raise _other_build(f"it has more: {table[len(ours)].name.decode()}")


def _rows_of_python() -> Iterator[tuple[str, str, int]]:
    """What `lt_layout` should hold: a struct's size and fields, a function's result and arguments."""
    for struct in _STRUCTS:
        yield struct.__name__, "struct", ctypes.sizeof(struct)
        for name, kind in struct._fields_:
            yield name, _type_name(kind), getattr(struct, name).offset
    for name, (result, arguments) in _SIGNATURES.items():
        yield name, _type_name(result), 0
        for argument in arguments:
            yield "", _type_name(argument), 0


def _type_name(kind: type | None) -> str:
    if kind in _TYPES:
        return _TYPES[kind]
    target: type | None = getattr(kind, "_type_", None)
    return f"{_type_name(target)}*" if target else str(getattr(kind, "__name__", kind))


@contextmanager
def watch_map(address: int, size_bytes: int) -> Iterator[Callable[[], bool]]:
    """Read pages that a mapped file has lost as zeros inside the block, for a library that would die of SIGBUS.

    Yields a function that tells whether such a page was read. What was computed from the map counts only once
    that function was asked afterwards. `address` is where the map begins.
    """
    native = load_native()
    slot: int = native.lt_watch_map(address, size_bytes)
    if slot < 0:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    def is_broken() -> bool:
        return bool(native.lt_map_broken(slot))

    try:
        yield is_broken
    finally:
        native.lt_let_map_go(slot)


def _other_build(difference: str) -> UsageError:
    return UsageError(
        f"lowtide's C extension was built from other sources than its Python part ({difference})",
        remedy="install lowtide again with `pip install --force-reinstall --no-deps lowtide` "
        "(in a checkout: `pip install -e .`), which builds it",
    )
