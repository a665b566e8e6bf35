"""Paths, folders and globs become a list of files whose order never changes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lowtide.errors import UsageError
from lowtide.source.find_inputs import InputKind, find_inputs, survey_inputs
from lowtide.source.separators import default_delimiter


def make(folder: Path, *names: str, content: bytes = b"text") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def names(folder: Path, *arguments: str) -> list[str]:
    return [file.path.relative_to(folder).as_posix() for file in find_inputs(list(arguments))]


def test_the_name_says_the_kind(tmp_path: Path) -> None:
    kinds = {
        "a.txt": (InputKind.TEXT, ""),
        "a.py": (InputKind.TEXT, ""),
        "a": (InputKind.TEXT, ""),
        "a.txt.gz": (InputKind.TEXT, "gz"),
        "a.log.zst": (InputKind.TEXT, "zst"),
        "a.jsonl": (InputKind.JSONL, ""),
        "a.NDJSON": (InputKind.JSONL, ""),
        "a.jsonl.gz": (InputKind.JSONL, "gz"),
        "a.jsonl.zst": (InputKind.JSONL, "zst"),
        "a.parquet": (InputKind.PARQUET, ""),
        "a.arrow": (InputKind.ARROW, ""),
    }
    make(tmp_path, *kinds)
    found = find_inputs([str(tmp_path / name) for name in kinds])
    assert [(file.kind, file.compression) for file in found] == list(kinds.values())
    assert {file.size_bytes for file in found} == {4}


def test_arguments_keep_their_order_and_folders_are_sorted(tmp_path: Path) -> None:
    make(tmp_path, "z.txt", "d/b.txt", "d/a/c.txt", "d/a.txt", "d/a-b/c.txt", "y.txt")
    found = names(tmp_path, str(tmp_path / "z.txt"), str(tmp_path / "d"), str(tmp_path / "y.txt"))
    assert found == ["z.txt", "d/a/c.txt", "d/a-b/c.txt", "d/a.txt", "d/b.txt", "y.txt"]


def test_globs_are_sorted_and_reach_into_folders(tmp_path: Path) -> None:
    make(tmp_path, "b.txt", "a.txt", "d/c.txt", "d/e.md")
    assert names(tmp_path, str(tmp_path / "*.txt")) == ["a.txt", "b.txt"]
    assert names(tmp_path, str(tmp_path / "**/*.txt")) == ["a.txt", "b.txt", "d/c.txt"]


def test_a_file_whose_name_looks_like_a_glob_is_a_file(tmp_path: Path) -> None:
    make(tmp_path, "a[1].txt", "a1.txt")
    assert names(tmp_path, str(tmp_path / "a[1].txt")) == ["a[1].txt"]


def test_a_folder_of_source_code_is_read_whole(tmp_path: Path) -> None:
    make(tmp_path, "a.py", "b/c.c", "README.md", "notes")
    make(tmp_path, "a.pyc", "image.png", content=b"\x00\x01binary")
    make(
        tmp_path,
        ".hidden",
        ".git/config",
        "a.lock",
        "b.tmp",
        "c.partial",
        "old~",
        "x.tar.gz",
        "y.zip",
    )
    assert names(tmp_path, str(tmp_path)) == ["README.md", "a.py", "b/c.c", "notes"]


def test_the_readme_beside_a_data_set_is_not_read(tmp_path: Path) -> None:
    make(tmp_path, "data/0.parquet", "README.md", "dataset_info.json", "extra.txt")
    assert names(tmp_path, str(tmp_path)) == ["data/0.parquet", "extra.txt"]


@pytest.mark.parametrize("arguments", [["nowhere.txt"], ["*.nothing"], ["empty"], []])
def test_nothing_found_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError) as caught:
        find_inputs(arguments)
    assert caught.value.remedy


def test_the_same_file_is_read_once_by_whatever_names(tmp_path: Path) -> None:
    make(tmp_path, "d/a.txt")
    (tmp_path / "link.txt").symlink_to(tmp_path / "d" / "a.txt")
    (tmp_path / "d" / "b.txt").symlink_to("a.txt")
    first = str(tmp_path / "d" / "a.txt")
    for other in ("d/a.txt", "d/../d/a.txt", "link.txt", "d", "d/*.txt"):
        found = survey_inputs([first, str(tmp_path / other)])
        assert [str(file.path) for file in found.files] == [first]
        assert sum(one.count for one in found.skipped) in (1, 2)
    assert len(find_inputs(["-", "-"])) == 1
    assert len(find_inputs([str(tmp_path / "d" / "*.txt")])) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no users here")
def test_an_unreadable_file_is_an_error() -> None:
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # pytest's own is closed to the user of `as_nobody`
        Path(folder).chmod(0o755)
        make(Path(folder), "a.txt")
        Path(folder, "a.txt").chmod(0)
        with pytest.raises(UsageError, match="cannot be read"), as_nobody():
            find_inputs([str(Path(folder, "a.txt"))])


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, who reads everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_refused_with_the_way_to_read_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError) as caught:
        find_inputs([str(tmp_path / "pipe")])
    assert "tokenize - <" in caught.value.remedy


def test_compressed_columnar_files_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet.gz")
    with pytest.raises(UsageError, match="compressed parquet"):
        find_inputs([str(tmp_path / "a.parquet.gz")])


def test_standard_input_is_text(tmp_path: Path) -> None:
    (found,) = find_inputs(["-"])
    assert (found.kind, found.stream is not None, found.size_bytes) == (InputKind.TEXT, True, 0)


def test_the_delimiter_is_the_separator_where_it_can_be() -> None:
    assert default_delimiter("<|endoftext|>") == b"<|endoftext|>"
    assert default_delimiter("line") == b"\n"
    private = default_delimiter("file")
    assert default_delimiter("blank-line") == private
    assert default_delimiter("----") == default_delimiter("\n\n") == private
