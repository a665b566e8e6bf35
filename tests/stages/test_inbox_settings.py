"""`lowtide.toml` of an inbox: every line may be left out, none may be wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lowtide.errors import UsageError
from lowtide.settings import INBOX_NAMES
from lowtide.stages.inbox.prepare import prepare_inbox
from lowtide.stages.inbox.settings import (
    InboxSettings,
    as_line,
    read_inbox_settings,
    settings_for_model,
)


def read(inbox: Path, text: str) -> InboxSettings:
    (inbox / "lowtide.toml").write_text(text)
    return read_inbox_settings(inbox)


def test_without_a_file_there_are_chats_of_which_one_in_a_hundred_is_held_out(
    tmp_path: Path,
) -> None:
    settings = read_inbox_settings(tmp_path)
    named = settings.tokenize
    assert (named.examples, named.val, settings.marker) == ("chat", 0.01, None)


def test_names_may_be_written_with_dashes_or_underscores(tmp_path: Path) -> None:
    settings = read(tmp_path, 'too-long = "skip"\nbad_text = "skip"\nspecial-in-text = "fail"\n')
    assert (settings.tokenize.too_long, settings.tokenize.bad_text) == ("skip", "skip")
    found = settings_for_model(settings, tmp_path, context=32)
    assert (found.too_long, found.context, found.eot) == ("skip", 32, "none")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("learning-rate = 1", "learning_rate, which an inbox does not know"),
        (
            'examples = "poems"',
            "examples cannot be 'poems'(.|\n)*chat, instruction, completion, none",
        ),
        ('val = "much"', "val is not valid(.|\n)*`val`"),
        ("examples = ", "cannot be read as TOML"),
        ('marker = ""', "marker ''"),
        ('marker = "../x"', "marker '../x'"),
        ('marker = ".jsonl"', "marker '.jsonl'"),
        ('marker = ".txt.gz"', "marker '.txt.gz'"),
        ("marker = 1", "marker 1"),
        ("val = 2", r"lowtide\.toml: val cannot be 2.0(.|\n)*`val = 0\.0005`"),
        ("context = 1", r"lowtide\.toml: a context of 1 (.|\n)*`context = 1024`"),
        ('separator = "line"', "leave it out (.|\n)*`separator`"),
        ('bad-text = "mend"', "bad-text cannot be 'mend'(.|\n)*`bad-text`"),
        ('examples = "none"\nlearn = "all"', 'learn is about examples(.|\n)*`examples = "chat"`'),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UsageError) as told:
        read(tmp_path, text)
    assert re.search(problem, f"{told.value.problem}\n{told.value.remedy}")


def test_unknown_names_are_told_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as told:
        read(tmp_path, "colour = 1")
    for name in ("examples", "template", "too-long", "bad-text", "special-in-text", "marker"):
        assert name in told.value.remedy


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        read_inbox_settings(tmp_path / "gone")


def test_examples_longer_than_the_models_windows_are_refused(tmp_path: Path) -> None:
    settings = read(tmp_path, "context = 64")
    assert settings_for_model(settings, tmp_path, context=64).context == 64
    with pytest.raises(UsageError, match="allows examples of 64 tokens"):
        settings_for_model(settings, tmp_path, context=32)


def test_a_template_that_cannot_be_loaded_is_said_before_any_file(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}")
    settings = read(tmp_path, 'template = "mine.jinja"')
    with pytest.raises(UsageError, match=r"mine\.jinja"):
        prepare_inbox(tmp_path, settings, context=64)


def test_where_files_lie_and_how_they_are_marked_may_change_and_nothing_else(
    tmp_path: Path,
) -> None:
    def stream(text: str) -> object:
        return prepare_inbox(tmp_path, read(tmp_path, text), context=64).source.stream

    before = stream("")
    assert stream('marker = ".done"') == before
    assert stream("context = 64") == before
    assert stream("val = 0.02") != before
    assert stream('learn = "all"') != before
    assert stream('template = "plain"') != before


def test_flags_of_tokenize_are_told_as_lines_of_the_file(tmp_path: Path) -> None:
    settings = read(tmp_path, 'column = "role=a,role=b"')
    with pytest.raises(UsageError, match=r"lowtide\.toml") as told:
        prepare_inbox(tmp_path, settings, context=64)
    assert "--" not in f"{told.value.problem} {told.value.remedy}"
    assert told.value.remedy.endswith(f"in {tmp_path / 'lowtide.toml'}")
    assert as_line("too_long", "skip") == '`too-long = "skip"`'


def test_the_documented_file_says_what_holds_without_it(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "inbox.md"
    found = re.search(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    assert found
    settings = read(tmp_path, found[1])
    prepared = prepare_inbox(tmp_path, settings, context=1024)
    (tmp_path / "lowtide.toml").unlink()
    without = prepare_inbox(tmp_path, read_inbox_settings(tmp_path), context=1024)
    assert prepared.tokenize == without.tokenize
    lines = re.findall(r"^(?:# )?([a-z-]+) = ", found[1], re.MULTILINE)
    assert {name.replace("_", "-") for name in (*INBOX_NAMES, "marker")} == set(lines)


def test_a_run_stores_its_lines_in_the_order_it_always_had(tmp_path: Path) -> None:
    """The names of a file's shards follow from the record: another order would tokenize it again."""
    record = read(tmp_path, 'examples = "none"\nmarker = ".done"').as_record()
    assert list(record.items()) == [
        ("examples", "none"),
        ("template", None),
        ("learn", None),
        ("too_long", None),
        ("context", None),
        ("column", None),
        ("separator", "file"),
        ("tokenizer", "gpt2"),
        ("bad_text", "fail"),
        ("special_in_text", "text"),
        ("val", 0.01),
    ]


def test_a_folder_that_cannot_be_looked_into_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be looked into: File name too long"):
        read_inbox_settings(tmp_path / ("x" * 300))
