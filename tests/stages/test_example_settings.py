"""Settings of examples: what is left open, what cannot be meant, and that text does not notice."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

import lowtide
from lowtide import TokenizeSettings
from lowtide.errors import UsageError
from lowtide.stages.job import list_setting_changes
from lowtide.stages.settings import check_settings, make_settings, resolve_examples

TEXT_MANIFESTS = {
    "plain": "688ec4b0ecddf5d856e35429964783a0949e8e50281a89019ca1f6f2332bc8a0",
    "lines": "c7f901bbd66781175e3fbd6c507fc9c104e0cbb64b7b86e56954721353b22bf2",
    "llmc": "007ef8314c268b61e74072a412fb644f0e638141e9acca0255b0ce9e25c7f41d",
}
"""Of the release before examples."""


@pytest.mark.parametrize("name", TEXT_MANIFESTS)
def test_manifests_of_text_are_byte_for_byte_what_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ways = {
        "plain": TokenizeSettings(val=0.0005, split="hash"),
        "lines": TokenizeSettings(separator="line", val=0.3),
        "llmc": TokenizeSettings(format="llmc", eot="start", val=0.3, separator="line"),
    }
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("Hello there.\nBye, and again.\n" * 50, newline="")
    lowtide.tokenize(["a.txt"], "out", ways[name])
    lines = Path("out/lowtide.json").read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"tool_version"' not in line and '"seal"' not in line]
    assert hashlib.sha256("".join(kept).encode()).hexdigest() == TEXT_MANIFESTS[name]
    assert not list(Path("out").glob("learnt*"))


def test_what_is_left_open_is_resolved_in_one_place() -> None:
    resolved = resolve_examples(TokenizeSettings(examples="chat"))
    assert (resolved.learn, resolved.too_long, resolved.context) == ("assistant", "split", 1024)
    assert resolved.eot == "none"
    assert resolve_examples(make_settings({"examples": "chat", "eot": None})) == resolved
    assert resolve_examples(TokenizeSettings(examples="chat", eot="end")).eot == "end"
    assert resolve_examples(TokenizeSettings()).eot == "end"
    assert make_settings({"format": "llmc", "eot": None}).eot == "start"


@pytest.mark.parametrize(
    ("settings", "setting", "problem"),
    [
        (TokenizeSettings(template="chatml"), "examples", "template is about"),
        (TokenizeSettings(learn="all"), "examples", "learn is about"),
        (TokenizeSettings(too_long="skip"), "examples", "too-long is about"),
        (TokenizeSettings(context=512), "examples", "context is about"),
        (TokenizeSettings(examples="chat", separator="line"), "separator", "separator"),
        (TokenizeSettings(examples="chat", context=1), "context", "a context of 1"),
        (TokenizeSettings(examples="songs"), "examples", "'songs'"),  # type: ignore[arg-type]
        (TokenizeSettings(examples="chat", learn="half"), "learn", "'half'"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(
    settings: TokenizeSettings, setting: str, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem) as refused:
        check_settings(settings)
    assert refused.value.setting == setting
    assert f"`--{setting}" in refused.value.remedy


def test_a_setting_that_only_one_of_two_runs_has_is_named() -> None:
    text, chat = TokenizeSettings(), TokenizeSettings(examples="chat")
    lines = list_setting_changes(text.as_record(), replace(chat, eot="end").as_record())
    assert lines == ["--column was 'text', is not given", "--examples was not given, is 'chat'"]
