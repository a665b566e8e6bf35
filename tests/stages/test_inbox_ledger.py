"""The ledger knows every file once, survives a torn line, and goes back with the checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import VerificationError
from lowtide.stages.inbox.ledger import Entry, Ledger, read_entries

FILE = ("a.jsonl", 7, 1000)


@pytest.fixture
def opened() -> Iterator[Callable[[Path], Ledger]]:
    """Ledgers of a run, one after another, as starts of it would open them."""
    with ExitStack() as stack:
        yield lambda run: stack.enter_context(closing(Ledger(run)))


def take(ledger: Ledger, name: str = "a.jsonl", fingerprint: str = "f0") -> Entry:
    return ledger.take(name, 7, 1000, fingerprint)


def make_ready(ledger: Ledger, name: str, *, first_step: int, steps: int) -> Entry:
    entry = take(ledger, name)
    return ledger.ready(replace(entry, first_step=first_step, steps=steps, windows=steps))


def test_a_file_goes_from_taken_to_done_and_stays_known(
    tmp_path: Path, opened: Callable[[Path], Ledger]
) -> None:
    ledger = opened(tmp_path)
    assert not ledger.knows(*FILE)
    entry = make_ready(ledger, "a.jsonl", first_step=0, steps=3)
    assert opened(tmp_path).pending == [entry]
    ledger.finish(entry)
    again = opened(tmp_path)
    assert again.pending == []
    assert again.done_count == 1
    assert again.knows(*FILE)
    assert again.knows_content("a.jsonl", 7, 2000, "f0"), "touched, and the same"
    assert again.knows("a.jsonl", 7, 2000)
    assert not again.knows_content("a.jsonl", 7, 2000, "f1"), "another content"
    assert not again.knows_content("b.jsonl", 7, 1000, "f0"), "another name"
    assert take(again, fingerprint="f1").number == 2


def test_a_failed_file_is_known_and_a_released_one_is_not(
    tmp_path: Path, opened: Callable[[Path], Ledger]
) -> None:
    ledger = opened(tmp_path)
    ledger.fail(take(ledger, "bad.jsonl"), "line 3 is not JSON")
    ledger.release(take(ledger), "it changed")
    for one in (ledger, opened(tmp_path)):
        assert one.pending == []
        assert one.knows("bad.jsonl", 7, 1000)
        assert not one.knows(*FILE)
        assert not one.knows_content(*FILE, "f0")
    assert [one.reason for one in read_entries(tmp_path)] == ["line 3 is not JSON", "it changed"]
    assert take(opened(tmp_path)).number == 3, "numbers are never used twice"


@given(cut=st.integers(min_value=0, max_value=400))
def test_a_torn_last_line_never_was(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    run = tmp_path_factory.mktemp("torn")
    with closing(Ledger(run)) as ledger:
        ledger.finish(make_ready(ledger, "a.jsonl", first_step=0, steps=3))
    path = run / "inbox.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    lines = whole[:cut].count(b"\n")
    with closing(Ledger(run)) as again:
        pending = again.pending
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:lines])
    assert [one.stage for one in read_entries(run)] == [[], ["taken"], ["ready"], ["done"]][lines]
    assert len(pending) == (lines in (1, 2))


def test_files_come_again_when_their_checkpoints_were_removed(
    tmp_path: Path, opened: Callable[[Path], Ledger]
) -> None:
    ledger = opened(tmp_path)
    for number, name in enumerate(("a.jsonl", "b.jsonl", "c.jsonl")):
        ledger.finish(make_ready(ledger, name, first_step=3 * number, steps=3))
    last = make_ready(ledger, "d.jsonl", first_step=9, steps=3)
    assert opened(tmp_path).rewind(tmp_path, 9) == 0
    assert opened(tmp_path).pending == [last]
    assert ledger.rewind(tmp_path, 4) == 2
    for one in (ledger, opened(tmp_path)):
        assert one.done_count == 1
        assert [(entry.name, entry.stage) for entry in one.pending] == [
            ("b.jsonl", "ready"),
            ("c.jsonl", "taken"),
            ("d.jsonl", "taken"),
        ]
    assert ledger.rewind(tmp_path, 4) == 0, "said once"
    assert ledger.rewind(tmp_path, -1) == 1, "no checkpoint at all"
    assert [entry.stage for entry in opened(tmp_path).pending] == ["taken"] * 4


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "done", "number": 4}',
        '{"event": "rewound", "step": "x"}',
        '{"event": "taken", "number": [1]}',
        '{"event": "held-out", "digest": 3}',
        '{"number": 1}',
        "no JSON",
    ],
)
def test_a_ledger_that_was_edited_is_refused(
    tmp_path: Path, opened: Callable[[Path], Ledger], line: str
) -> None:
    (tmp_path / "inbox.jsonl").write_text(f"{line}\n")
    with pytest.raises(VerificationError, match="line 1 of") as told:
        opened(tmp_path)
    assert "put inbox.jsonl" in told.value.remedy
    assert "move" not in told.value.remedy


def test_a_file_that_is_held_out_whole_does_not_come_again(
    tmp_path: Path, opened: Callable[[Path], Ledger]
) -> None:
    ledger = opened(tmp_path)
    ledger.finish(make_ready(ledger, "a.jsonl", first_step=0, steps=0))
    assert opened(tmp_path).rewind(tmp_path, -1) == 0


def test_a_name_that_is_no_utf8_is_kept(tmp_path: Path, opened: Callable[[Path], Ledger]) -> None:
    name = b"b\xff.jsonl".decode(errors="surrogateescape")
    ledger = opened(tmp_path)
    ledger.finish(take(ledger, name))
    assert opened(tmp_path).knows(name, 7, 1000)
