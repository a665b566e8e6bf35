"""What is said of a trained tokenizer: every figure, where it comes from, and never a raw control character."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.show.results import show_rows
from lowtide.stages.describe_training import (
    longest_tokens,
    show_token,
    training_record,
    training_rows,
)
from lowtide.stages.learn_run import Learning
from lowtide.stages.measure_tokenizer import Comparison, NotCompared
from lowtide.stages.tokenizer_files import CorpusFile, TokenizerManifest
from lowtide.stages.train_tokenizer import TokenizerResult
from tests.stages.learnings import make_learning

LOWER = [(b"l", b"o"), (b"lo", b"w"), (b"e", b"r"), (b"low", b"er")]
LOWEST = [*LOWER, (b"low", b"e"), (b"s", b"t"), (b"lowe", b"st")]
NOT_COMPARED = NotCompared(why="the budget has no room for an encoder")
HELD_OUT = Comparison(text="held-out text", text_bytes=2048, learnt=(3.0, 4.5), gpt2=3.6)


def make_result(
    learning: Learning, comparison: Comparison | NotCompared = NOT_COMPARED
) -> TokenizerResult:
    """The end of a run over two files."""
    totals = learning.totals
    sizes = learning.settings.vocab_size
    manifest = TokenizerManifest(
        settings=learning.settings,
        corpus=tuple(
            CorpusFile(fingerprint=name, size_bytes=99, kind="text", name=name)
            for name in ("a.txt", "b.txt")
        ),
        documents=31_000,
        text_bytes=totals.text_bytes,
        words=totals.words,
        distinct_words=totals.distinct_words,
        longest_word_bytes=totals.longest_bytes,
        bad_rows=0,
        empty_documents=0,
        learnt=tuple(learning.describe(size) for size in sizes),
        files=(),
    )
    return TokenizerResult(
        folder=Path("here"),
        manifest=manifest,
        learning=learning,
        comparison=comparison,
        seconds=83.4567,
        peak_private_bytes=161 << 20,
    )


def lower_learning(sizes: tuple[int, ...]) -> Learning:
    learning = make_learning([20, 20, 10, 20], text_bytes=100, sizes=sizes, merges=LOWER)
    learning.steps["whole"] = [0, 10, 0, 6]
    return learning


def rows_of(result: TokenizerResult) -> dict[str, str]:
    return dict(training_rows(result))


def test_the_end_of_a_run_is_told_in_full() -> None:
    assert training_rows(make_result(lower_learning((259, 261)), HELD_OUT)) == [
        ("folder", "here"),
        ("corpus", "2 files, 100 B of text, 31.0k documents (measured)"),
        ("words", "20, 10 of them distinct (measured)"),
        ("vocabulary", "259 tokens"),
        ("  corpus", "1.67 bytes a token (measured, exact)"),
        ("  covered", "50.0 % of the words are one token (measured, exact)"),
        (
            "  compared",
            "3.00 bytes a token on held-out text (2.0 KiB), gpt2 3.60: 0.83 × as much (measured)",
        ),
        ("vocabulary", "261 tokens"),
        ("  corpus", "3.33 bytes a token (measured, exact)"),
        ("  covered", "80.0 % of the words are one token (measured, exact)"),
        (
            "  compared",
            "4.50 bytes a token on held-out text (2.0 KiB), gpt2 3.60: 1.25 × as much (measured)",
        ),
        ("longest", '"lower" (5 bytes)'),
        ("", '"low" (3 bytes)'),
        ("", '"er" (2 bytes)'),
        ("", '"lo" (2 bytes)'),
        ("picture", str(Path("here/bytes_per_token.svg"))),
        ("time", "1m 23s (measured)"),
        ("peak memory", "161.0 MiB private (measured)"),
    ]


@pytest.mark.parametrize(
    ("min_frequency", "why"),
    [
        (0, "the corpus has no other pair of tokens"),
        (1, "the corpus has no other pair of tokens"),
        (2, "no other pair of tokens comes at least 2 times"),
        (5000, "no other pair of tokens comes at least 5,000 times"),
    ],
)
def test_fewer_tokens_than_asked_for_are_told_with_the_reason(min_frequency: int, why: str) -> None:
    learning = lower_learning((260, 32_000))
    settings = replace(learning.settings, min_frequency=min_frequency)
    rows = training_rows(make_result(replace(learning, settings=settings)))
    told = [value for name, value in rows if name == "vocabulary"]
    assert told == ["260 tokens", f"learnt 261 of 32,000 tokens: {why}"]


def test_a_comparison_names_the_text_it_was_made_on() -> None:
    sample = replace(HELD_OUT, text="a sample of the training text", learnt=(3.6,))
    told = rows_of(make_result(lower_learning((261,)), sample))["  compared"]
    assert told.startswith("3.60 bytes a token on a sample of the training text (2.0 KiB), gpt2")


def test_no_comparison_is_told_with_the_reason() -> None:
    result = make_result(lower_learning((261,)))
    assert rows_of(result)["compared"] == "not with gpt2: the budget has no room for an encoder"
    assert training_record(result)["compared"] is None


def test_what_was_done_before_is_told_from_the_manifest() -> None:
    before = make_result(lower_learning((259, 32_000)), HELD_OUT)
    again = replace(before, learning=None, comparison=None, seconds=0.0, peak_private_bytes=0)
    rows = training_rows(again)
    gone = ("  compared", "longest", "", "time", "peak memory")
    kept = [row for row in training_rows(before) if row[0] not in gone]
    assert rows == [*kept, ("time", "none: the folder holds this very tokenizer already")]
    record = training_record(again)
    assert record["already_done"] is True
    assert record["longest_tokens"] is None
    assert record["learnt"] == training_record(before)["learnt"]


def test_without_merges_there_are_no_longest_tokens() -> None:
    result = make_result(make_learning([], text_bytes=100, sizes=(257,)))
    assert "longest" not in rows_of(result)
    assert rows_of(result)["vocabulary"] == "257 tokens"
    assert training_record(result)["longest_tokens"] == []


def test_what_was_left_out_or_held_out_is_told() -> None:
    result = make_result(lower_learning((261,)))
    manifest = replace(
        result.manifest,
        bad_rows=1,
        empty_documents=3,
        settings=replace(result.manifest.settings, val=0.1),
    )
    rows = rows_of(replace(result, manifest=manifest))
    assert rows["bad text"] == "1 place, replaced or left out"
    assert rows["left out"] == "3 empty documents"
    assert "31.0k documents, held-out ones among them" in rows["corpus"]


def test_the_longest_tokens_come_first_and_equal_ones_by_their_bytes() -> None:
    learning = make_learning([1] * 7, text_bytes=99, sizes=(259, 300), merges=LOWEST)
    assert [(token.text, token.size_bytes) for token in longest_tokens(learning)] == [
        ('"lowest"', 6),
        ('"lower"', 5),
        ('"lowe"', 4),
        ('"low"', 3),
        ('"er"', 2),
    ]


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (b" the", '" the"'),
        ("слово 語".encode(), '"слово 語"'),
        (b"\r\n\t", r'"\r\n\t"'),
        (b"\x1b[2J\x07", r'"\x1b[2J\x07"'),
        ("\u202e\u0085\u200b".encode(), r'"\u202e\u0085\u200b"'),
        (b"\xe8\xaa", r'"\xe8\xaa"'),
        (b'"\\n', r'"\"\\n"'),
        (b"-" * 40, f'"{"-" * 40}"'),
        (b"-" * 1024, '"-" × 1,024'),
        ("═".encode() * 41, '"═" × 41'),
        (b"\n" * 41, r'"\n" × 41'),
        (b"/" + b"*" * 40, f'"/{"*" * 39}…"'),
        (b"a" * 39 + b"\x00", f'"{"a" * 39}…"'),
    ],
)
def test_a_token_is_shown_as_text_that_moves_no_cursor(token: bytes, shown: str) -> None:
    assert show_token(token) == shown


@given(st.binary(min_size=1, max_size=200))
def test_no_token_can_speak_to_the_terminal(token: bytes) -> None:
    shown = show_token(token)
    assert shown.isprintable()
    assert len(shown) <= 43


def test_no_two_tokens_look_the_same() -> None:
    tokens = [bytes([first]) for first in range(256)]
    tokens += [one + other for one in tokens for other in tokens]
    assert len(set(map(show_token, tokens))) == len(tokens)


def test_names_of_folders_are_escaped_as_well() -> None:
    result = replace(make_result(lower_learning((261,))), folder=Path("a\x1b[31m\udcffb"))
    rows = rows_of(result)
    assert rows["folder"] == r"a\x1b[31m\udcffb"
    assert all(value.isprintable() for value in rows.values())


def test_the_record_holds_every_figure_and_is_valid_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = make_result(lower_learning((259, 32_000)), HELD_OUT)
    show_rows(training_rows(result), training_record(result), as_json=True)
    learnt = {"vocab_size": 259, "tokens": 259, "merges": 2, "whole_words": 0.5}
    found = json.loads(capsys.readouterr().out)
    assert found.pop("learnt") == [
        {**learnt, "bytes_per_token": 100 / 60},
        {
            "vocab_size": 32_000,
            "tokens": 261,
            "merges": 4,
            "bytes_per_token": 100 / 30,
            "whole_words": 0.8,
        },
    ]
    assert found.pop("longest_tokens")[0] == {"text": '"lower"', "size_bytes": 5}
    assert found == {
        "schema_version": 1,
        "folder": "here",
        "already_done": False,
        "seconds": 83.457,
        "peak_private_bytes": 161 << 20,
        "files": 2,
        "text_bytes": 100,
        "documents": 31_000,
        "words": 20,
        "distinct_words": 10,
        "longest_word_bytes": 9,
        "bad_rows": 0,
        "empty_documents": 0,
        "skipped": [],
        "min_frequency": 1,
        "compared": {
            "text": "held-out text",
            "text_bytes": 2048,
            "learnt": [3.0, 4.5],
            "gpt2": 3.6,
            "times_gpt2": [3.0 / 3.6, 1.25],
        },
        "picture": str(Path("here/bytes_per_token.svg")),
    }


def test_people_get_aligned_lines(capsys: pytest.CaptureFixture[str]) -> None:
    result = make_result(lower_learning((261,)))
    show_rows(training_rows(result), training_record(result), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(training_rows(result))
    assert all(line[12] == " " and line[13] != " " for line in lines)
