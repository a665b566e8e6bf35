"""The Python calls: settings by name, progress where somebody looks on."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowtide
from lowtide.errors import UsageError
from lowtide.events import Event
from tests.commands import bytes_of

ROWS = '{"code": "one tide"}\n{"code": "two tides"}\n' * 20


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(ROWS)
    return path


def test_settings_by_name_are_those_of_the_class(rows: Path, tmp_path: Path) -> None:
    settings = lowtide.TokenizeSettings(column="code", format="nanogpt", val=0.2)
    lowtide.tokenize(rows, tmp_path / "class", settings)
    lowtide.tokenize(rows, tmp_path / "named", column="code", format="nanogpt", val=0.2)
    begun = lowtide.TokenizeSettings(column="code", val=0.2)
    lowtide.tokenize(rows, tmp_path / "both", begun, format="nanogpt")
    assert bytes_of(tmp_path / "named") == bytes_of(tmp_path / "class")
    assert bytes_of(tmp_path / "both") == bytes_of(tmp_path / "class")


def test_a_vocabulary_by_keywords(rows: Path, tmp_path: Path) -> None:
    made = lowtide.train_tokenizer(
        rows, tmp_path / "own", column="code", vocab_size=260, special_token="<|end|>"
    )
    assert made.manifest.settings.vocab_size == (260,)
    assert made.manifest.settings.special_token == ("<|end|>",)


@pytest.mark.parametrize(
    ("wrong", "meant"), [({"colum": "code"}, "column"), ({"template_text": "x"}, "template")]
)
def test_a_keyword_that_is_not_a_setting_is_refused(
    rows: Path, tmp_path: Path, wrong: dict[str, str], meant: str
) -> None:
    with pytest.raises(UsageError) as refused:
        lowtide.tokenize(rows, tmp_path / "out", **wrong)
    assert next(iter(wrong)) in refused.value.problem
    assert meant in refused.value.remedy
    assert not (tmp_path / "out").exists()


def test_a_value_that_is_no_choice_names_its_setting(rows: Path, tmp_path: Path) -> None:
    for chosen in ({"format": "npz"}, {"bad_text": "ignore"}):
        with pytest.raises(UsageError):
            lowtide.tokenize(rows, tmp_path / "out", column="code", **chosen)


def test_progress_is_shown_only_where_somebody_looks_on(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lowtide.tokenize(rows, tmp_path / "silent", column="code")
    assert capsys.readouterr().err == ""
    lowtide.tokenize(rows, tmp_path / "shown", column="code", progress=True)
    assert "budget" in capsys.readouterr().err
    heard: list[Event] = []
    lowtide.tokenize(rows, tmp_path / "heard", column="code", progress=True, listen=heard.append)
    assert heard
    assert capsys.readouterr().err == ""
