"""`lowtide.toml` of an inbox: every line may be left out, none may be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.errors import UsageError
from lowtide.pipeline.inbox.prepare import prepare_inbox
from lowtide.pipeline.inbox.settings import InboxSettings, read_inbox_settings, tokenize_settings


def read(inbox: Path, text: str) -> InboxSettings:
    (inbox / "lowtide.toml").write_text(text)
    return read_inbox_settings(inbox)


def test_without_a_file_there_are_chats_of_which_one_in_a_hundred_is_held_out(
    tmp_path: Path,
) -> None:
    settings = read_inbox_settings(tmp_path)
    assert (settings.examples, settings.val, settings.marker) == ("chat", 0.01, None)


def test_names_may_be_written_with_dashes_or_underscores(tmp_path: Path) -> None:
    settings = read(tmp_path, 'too-long = "skip"\nbad_text = "skip"\nspecial-in-text = "fail"\n')
    assert (settings.too_long, settings.bad_text) == ("skip", "skip")
    told = tokenize_settings(settings, tmp_path, context=32)
    assert (told.too_long, told.context, told.eot) == ("skip", 32, "none")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("learning-rate = 1", "learning_rate, which an inbox does not know"),
        ('examples = "poems"', "Invalid enum value 'poems'"),
        ('val = "much"', "Expected `float`, got `str`"),
        ("examples = ", "cannot be read as TOML"),
        ('marker = ""', "marker ''"),
        ('marker = "../x"', "no file's name can end in"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        read(tmp_path, text)


def test_unknown_names_are_told_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as told:
        read(tmp_path, "colour = 1")
    for name in ("examples", "template", "too-long", "bad-text", "special-in-text", "marker"):
        assert name in told.value.remedy


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no folder"):
        read_inbox_settings(tmp_path / "gone")


def test_examples_longer_than_the_models_windows_are_refused(tmp_path: Path) -> None:
    settings = read(tmp_path, "context = 64")
    assert tokenize_settings(settings, tmp_path, context=64).context == 64
    with pytest.raises(UsageError, match="allows examples of 64 tokens"):
        tokenize_settings(settings, tmp_path, context=32)


def test_documents_have_nothing_of_examples(tmp_path: Path) -> None:
    settings = read(tmp_path, 'examples = "none"\nlearn = "all"')
    with pytest.raises(UsageError, match="documents have none of it"):
        tokenize_settings(settings, tmp_path, context=32)


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
