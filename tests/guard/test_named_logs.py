"""A timeline comes from anywhere: `why` shows nothing of files that only a stranger's timeline names."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from lowtide.guard.alerts import append_alert
from lowtide.journal import Journal
from lowtide.stages.why import Question, explain
from tests.commands import call

SECRET = "root:$6$secret"


def write_timeline(path: Path, log: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with Journal(path) as journal:
        journal.write("start", kind="watch", command=["job"], stderr_path=os.fspath(log))
        journal.write("end", outcome="ended", exit_code=3, signal=None)
    return path


def told(question: Question) -> str:
    return str(asdict(explain(question)))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that somebody sent, beside a file that is nobody's business."""
    (tmp_path / "secret").write_text(f"a\n{SECRET}\n")
    (tmp_path / "sent").mkdir()
    return tmp_path / "sent"


def test_a_file_elsewhere_is_named_and_not_read(place: Path) -> None:
    secret = place.parent / "secret"
    path = write_timeline(place / "t.jsonl", secret)
    found = told(Question(timelines=place / "state", target=path))
    assert SECRET not in found
    assert str(secret) in found


def test_what_the_user_names_too_is_read(place: Path) -> None:
    secret = place.parent / "secret"
    path = write_timeline(place / "t.jsonl", secret)
    assert SECRET in told(Question(timelines=place / "state", target=path, log=secret))


@pytest.mark.parametrize("name", ["train.log", "below/train.log"])
def test_a_log_that_came_with_the_timeline_is_read(place: Path, name: str) -> None:
    log = place / name
    log.parent.mkdir(exist_ok=True)
    log.write_text(SECRET)
    path = write_timeline(place / "t.jsonl", log)
    assert SECRET in told(Question(timelines=place / "state", target=path))


def test_no_link_no_dots_and_nothing_hidden_lead_elsewhere(place: Path) -> None:
    (place / "link").symlink_to(place.parent / "secret")
    (place / ".ssh").mkdir()
    (place / ".ssh/key").write_text(SECRET)
    for log in (place / "link", place / "../secret", place / ".ssh/key"):
        path = write_timeline(place / "t.jsonl", log)
        assert SECRET not in told(Question(timelines=place / "state", target=path))


@pytest.mark.parametrize("linked", ["log", "timeline"])
def test_a_file_with_a_second_name_elsewhere_is_not_read(place: Path, linked: str) -> None:
    """Whoever may write here can give a name here to a file that is not theirs."""
    log = place / "train.log"
    log.write_text(SECRET)
    path = write_timeline(place / "t.jsonl", log)
    (place.parent / "other name").hardlink_to(log if linked == "log" else path)
    question = Question(timelines=place / "state", target=path)
    assert SECRET not in told(question)
    assert SECRET in told(replace(question, log=log))
    assert SECRET in told(replace(question, timelines=place))


def test_what_watch_noted_for_this_user_is_read_wherever_it_lies(place: Path) -> None:
    log = place.parent / "secret"
    path = write_timeline(place / "state/t.jsonl", log)
    assert SECRET in told(Question(timelines=place / "state", target=path))
    assert SECRET in told(Question(timelines=place / "state"))


@pytest.mark.skipif(
    not hasattr(os, "chown") or os.geteuid() != 0, reason="only root gives files away"
)
def test_a_log_of_another_owner_is_not_read(place: Path) -> None:
    for timeline in (place / "state/t.jsonl", place / "t.jsonl"):
        log = timeline.parent / "train.log"
        path = write_timeline(timeline, log)
        log.write_text(SECRET)
        os.chown(path, 12345, 12345)
        assert SECRET not in told(Question(timelines=place / "state", target=path))


def test_timelines_and_alerts_are_for_their_owner_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold command lines."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = os.umask(0)
    try:
        call(capsys, "watch", "--quiet", "--", "true", "--password=1234")
        append_alert(tmp_path / "made/here/alerts.log", "a line")
    finally:
        os.umask(before)
    (timeline,) = (tmp_path / "state/lowtide/watch").iterdir()
    assert "--password=1234" in timeline.read_text()
    for file in (timeline, tmp_path / "made/here/alerts.log"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        made = [folder for folder in file.parents if folder.is_relative_to(tmp_path)][:-1]
        assert {stat.S_IMODE(folder.stat().st_mode) for folder in made} == {0o700}
