"""What a Python caller hands over is told apart: paths, texts, rows, and what is none of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide.errors import DataError, UsageError
from lowtide.source.find_inputs import InputFile, survey_inputs
from lowtide.source.take_inputs import take_inputs


def stream_of(rows: object, column: str | None = "text") -> InputFile:
    (found,) = take_inputs(rows, column=column)  # type: ignore[arg-type]
    assert isinstance(found, InputFile)
    assert found.stream
    return found


def lines_of(rows: object, column: str | None = "text") -> list[object]:
    stream = stream_of(rows, column).stream
    assert stream
    data = b"".join(iter(lambda: stream.read(7), b""))
    return [json.loads(line) for line in data.splitlines()]


def test_one_path_is_not_its_letters() -> None:
    for one in ("a.txt", Path("a.txt"), ["a.txt"], (Path("a.txt"),)):
        assert take_inputs(one, column="text") == ["a.txt"]
    assert take_inputs(["a", Path("b"), "-"], column="text") == ["a", "b", "-"]
    assert take_inputs([], column="text") == []


def test_texts_and_rows_are_lines_of_the_column() -> None:
    texts = ["one\ntwo\r\n", "", "\u2028 é 👍🏽 \x00", "<|endoftext|>"]
    wanted = [{"text": text} for text in texts]
    assert lines_of(iter(texts)) == wanted
    assert lines_of(dict.fromkeys(texts).keys()) == wanted
    assert lines_of([{"text": text, "picture": b"no JSON"} for text in texts]) == wanted
    assert lines_of([{"code": "x", "n": 1}]) == [{"code": "x", "n": 1}]  # the reader names the keys
    assert lines_of([{"messages": [], "text": "x"}], None) == [{"messages": [], "text": "x"}]


@pytest.mark.parametrize(
    "rows", [["a.txt", {"text": "b"}], {"train": [], "test": []}, None, 7], ids=repr
)
def test_what_is_neither_paths_nor_rows_is_refused(rows: object) -> None:
    with pytest.raises(UsageError):
        take_inputs(rows, column="text")  # type: ignore[arg-type]


def test_rows_are_json_whatever_format_is_stated() -> None:
    rows = stream_of(iter(["text"]))
    for stated in (None, "jsonl"):
        assert survey_inputs([rows], input_format=stated).files == [rows]  # type: ignore[arg-type]
    for stated in ("text", "parquet", "arrow"):
        with pytest.raises(UsageError):
            survey_inputs([rows], input_format=stated)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "row",
    [7, None, b"bytes", Path("a.txt"), {"text": b"bytes"}, {"text": {1, 2}}, ["text"]],
    ids=repr,
)
def test_a_row_that_cannot_become_json_is_named(row: object) -> None:
    stream = stream_of(itertools.chain(["one", "two"], [row])).stream
    assert stream
    with pytest.raises(DataError, match=r"row 3\b"):
        stream.read(1000)


def test_a_row_inside_itself_is_named() -> None:
    rows: list[dict[str, object]] = [{"text": []}]
    rows[0]["text"] = rows
    with pytest.raises(DataError, match=r"row 1\b"):
        lines_of(rows)
    with pytest.raises(DataError, match=r"row 1\b"):
        lines_of(iter(["examples have columns"]), None)


def test_no_more_rows_are_asked_for_than_are_read() -> None:
    asked = 0

    def rows() -> Iterator[str]:
        nonlocal asked
        for number in itertools.count():
            asked += 1
            yield f"{number:087}"  # a line of 100 bytes

    stream = stream_of(rows()).stream
    assert stream
    assert asked == 0
    for reads in range(1, 50):
        assert len(stream.read(250)) == 250
        assert asked == -(-reads * 250 // 100)


def test_names_of_files_are_not_taken_for_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}")
    for rows in ({str(path)}, iter([str(path), "another"])):
        with pytest.raises(UsageError):
            lines_of(rows)
    long = "a text " * 10_000
    assert lines_of(iter([long, str(path), "a\0b"])) == [
        {"text": long},
        {"text": str(path)},
        {"text": "a\0b"},
    ]
