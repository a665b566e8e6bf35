"""The laws of the stream: right documents, at any block size, from any resume point, in every format."""

from __future__ import annotations

from pathlib import Path

import pytest
import regex
import tiktoken_ext.openai_public as openai_public
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.source.find_inputs import find_inputs
from lowtide.source.safe_cuts import CutRule
from lowtide.source.separators import default_delimiter
from lowtide.source.stream import Cursor
from tests.source.readings import (
    MARK,
    assert_laws,
    contents_of,
    joined,
    plain_split,
    read_all,
    reading,
    write_rows,
    write_text,
)

SEPARATORS = ["file", "line", "blank-line", "<|endoftext|>", "--", "\n\n"]
WORDS = [
    "word",
    " ",
    "é",
    "中文。",
    "😀",
    "'s",
    "12",
    "-",
    "<|end",
    "\r",
    "\x0b",
    "\u3000",
    ".",
    "\ufeff",
]
BREAKS = ["\n", "\r\n", "\n\n", "\n \t\n", "--", "<|endoftext|>"]
CRUMBS = st.sampled_from(WORDS + BREAKS)
LONG = st.builds(
    lambda unit, count: unit * count,
    st.sampled_from(["some words ", "no-blank,", "line of text\n", "中文，", "x\r\n", "don't! "]),
    st.integers(1, 12_000),
)
TEXTS = st.lists(CRUMBS | LONG, max_size=12).map("".join)
ROWS = st.lists(st.lists(CRUMBS, max_size=6).map("".join) | LONG, max_size=9)
ROW_FILES = [
    "rows.jsonl",
    "rows.jsonl.gz",
    "rows.jsonl.zst",
    "rows.parquet",
    "rows.arrow",
    "file.arrow",
]
quick = settings(
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
        HealthCheck.too_slow,
    ],
)


@pytest.mark.parametrize("separator", SEPARATORS)
@quick
@given(text=TEXTS, suffix=st.sampled_from(["", ".gz"]))
def test_text_gives_the_documents_between_separators(
    tmp_path: Path, separator: str, text: str, suffix: str
) -> None:
    path = write_text(tmp_path / f"a.txt{suffix}", text)
    contents = assert_laws([path], reading(separator=separator))
    bare = text.removeprefix("\ufeff")
    expected = plain_split(bare, separator)
    assert contents.text == joined(expected, default_delimiter(separator))
    last = (
        -1 if separator in SEPARATORS[3:] else None
    )  # nothing after the last literal: no document
    assert contents.empty_count == (expected[:last].count("") if bare else 1)
    assert contents.documents == sum(map(bool, expected))


@pytest.mark.parametrize("name", ROW_FILES)
@quick
@given(rows=ROWS)
def test_rows_are_documents(tmp_path: Path, name: str, rows: list[str]) -> None:
    path = write_rows(tmp_path / name, rows)
    contents = assert_laws([path], reading())
    assert contents.text == joined(rows, MARK)
    assert contents.empty_count == rows.count("")


@quick
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), suffix=st.sampled_from(["", ".gz", ".zst"]))
def test_files_follow_each_other(tmp_path: Path, texts: list[str], suffix: str) -> None:
    paths = [
        write_text(tmp_path / f"{index}.txt{suffix}", text) for index, text in enumerate(texts)
    ]
    bare = [text.removeprefix("\ufeff") for text in texts]
    contents = assert_laws(paths, reading(separator="file"))
    assert contents.text == joined(bare, MARK)
    assert contents.empty_count == bare.count("")


def test_all_formats_in_one_stream(tmp_path: Path) -> None:
    rows = ["one", "two words", "", "three " * 30_000]
    paths = [write_rows(tmp_path / name, rows) for name in ROW_FILES]
    paths.insert(2, write_text(tmp_path / "t.txt", "a whole text"))
    contents = assert_laws(paths, reading(), resumes=40)
    assert contents.text == joined(rows * 2 + ["a whole text"] + rows * 4, MARK)


@pytest.mark.parametrize(
    ("pattern", "expression"),
    [("gpt2", openai_public.r50k_pat_str), ("none", None)],
)
def test_long_documents_are_cut_at_safe_cuts_only(
    tmp_path: Path, pattern: str, expression: str | None
) -> None:
    text = "It's   12 long\n\n  lines' of text, no?\t" * 8000
    inputs = find_inputs(
        [str(write_text(tmp_path / "a.txt", text)), str(write_rows(tmp_path / "b.jsonl", [text]))]
    )
    rule = CutRule(pattern=pattern)  # type: ignore[arg-type]
    blocks = read_all(inputs, reading(block_bytes=1000, cut_rule=rule))
    pieces = [block.text.removesuffix(MARK).decode() for block in blocks]
    if expression is None:
        assert pieces == [text, text]
    else:
        split = regex.compile(expression).findall
        assert len(pieces) > 100
        assert [token for piece in pieces for token in split(piece)] == split(text) * 2


def test_a_window_may_end_anywhere_in_a_separator(tmp_path: Path) -> None:
    """Even where the separator's own text holds a safe cut."""
    first = ("a word and " * 7000)[:70_000]
    inputs = find_inputs([str(write_text(tmp_path / "a.txt", f"{first}== END ==two"))])
    for block_bytes in range(69_998, 70_012):
        blocks = read_all(
            inputs, reading(separator="== END ==", delimiter=MARK, block_bytes=block_bytes)
        )
        assert contents_of(blocks).text == joined([first, "two"], MARK)


def test_small_files_share_a_block(tmp_path: Path) -> None:
    paths = [write_text(tmp_path / f"{index:03}.txt", f"text {index}") for index in range(300)]
    blocks = read_all(find_inputs([str(path) for path in paths]), reading())
    assert [block.document_count for block in blocks] == [300]


def test_an_empty_literal_document_is_counted_and_left_out(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", "<|x|>one<|x|><|x|>two<|x|>")
    contents = assert_laws([path], reading(separator="<|x|>"))
    assert (contents.text, contents.empty_count) == (b"one<|x|>two<|x|>", 2)


def test_a_byte_order_mark_is_dropped_at_the_start_only(tmp_path: Path) -> None:
    paths = [
        write_text(tmp_path / "a.txt", "\ufeffa\ufeffb"),
        write_text(tmp_path / "b.jsonl", '\ufeff{"text": "c"}'),
    ]
    assert assert_laws(paths, reading()).text == joined(["a\ufeffb", "c"], MARK)


def test_a_delimiter_of_ones_own_replaces_the_separator(tmp_path: Path) -> None:
    for separator, text in (("<|x|>", "a<|x|>b"), ("line", "a\nb\n"), ("blank-line", "a\n\nb")):
        path = write_text(tmp_path / "a.txt", text)
        assert assert_laws([path], reading(separator=separator, delimiter=MARK)).text == joined(
            ["a", "b"], MARK
        )


@pytest.mark.parametrize("separator", SEPARATORS)
@quick
@given(text=TEXTS, share=st.floats(0, 1))
def test_the_tail_of_a_text_is_held_out(
    tmp_path: Path, separator: str, text: str, share: float
) -> None:
    path = write_text(tmp_path / "a.txt", text)
    asked = int(share * path.stat().st_size)
    tail = Cursor(file=0, position=asked)
    plain = reading(separator=separator)
    contents = assert_laws([path], reading(separator=separator, tail=tail))
    delimiter = plain.delimiter
    without = contents_of(read_all(find_inputs([str(path)]), plain)).text
    both = (contents.text + contents.held_out).replace(delimiter, b"")
    if separator in ("file", "<|endoftext|>"):
        assert both == without.replace(delimiter, b"")
    assert len(contents.text.replace(delimiter, b"")) <= asked + 65_536 + 4


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.parquet", "rows.arrow"])
def test_the_tail_of_rows_is_held_out(tmp_path: Path, name: str) -> None:
    rows = [f"row {index} " * (1 + 3000 * (index % 2)) for index in range(10)]
    path = write_rows(tmp_path / name, rows)
    if name.startswith("rows.jsonl"):
        lines = write_rows(tmp_path / "plain.jsonl", rows).read_bytes().splitlines(keepends=True)
        tail = Cursor(file=0, position=sum(map(len, lines[:6])) - 3)
    else:
        tail = Cursor(file=0, position=6)
    contents = assert_laws([path], reading(tail=tail))
    assert (contents.text, contents.held_out) == (joined(rows[:6], MARK), joined(rows[6:], MARK))


def test_one_long_text_is_ended_at_a_newline_for_the_tail(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", "a line of text\n" * 1000)
    contents = assert_laws([path], reading(tail=Cursor(file=0, position=10_004)))
    assert contents.text == b"a line of text\n" * 667 + MARK
    assert contents.held_out == b"a line of text\n" * 333 + MARK


def test_the_tail_never_begins_inside_a_character(tmp_path: Path) -> None:
    """A newline shortly before the asked place is not a border, and must not make one of the place itself."""
    path = write_text(tmp_path / "a.txt", "a\n中文。")
    for position in range(path.stat().st_size + 1):
        for separator in SEPARATORS:
            settings = reading(
                separator=separator, delimiter=MARK, tail=Cursor(file=0, position=position)
            )
            contents = assert_laws([path], settings)
            if separator in (
                "file",
                "<|endoftext|>",
            ):  # these are not in the text: nothing else is dropped
                assert len(contents.text.replace(MARK, b"")) >= position
            assert (contents.text + contents.held_out).replace(MARK, b"").decode().strip() in (
                "a\n中文。",
                "a中文。",
            )


def test_later_files_are_held_out_whole(tmp_path: Path) -> None:
    paths = [write_text(tmp_path / f"{index}.txt", f"text {index}") for index in range(4)]
    contents = assert_laws(paths, reading(tail=Cursor(file=2, position=0)))
    assert contents.text == joined(["text 0", "text 1"], MARK)
    assert contents.held_out == joined(["text 2", "text 3"], MARK)
