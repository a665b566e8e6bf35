"""Every run leaves a journal of the same kind: what it was, how far it came, what it took, how it ended."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide.errors import DataError, LowtideError, StoppedError
from lowtide.events import Advanced, Event, Learnt, MemoryRead, Note
from lowtide.journal import LOG_NAME, read_journal
from lowtide.shards.verify import verify_dataset
from lowtide.stages.keep_journal import Thinned, keep_journal
from tests.commands import LOWTIDE

WORDS = "the quick brown fox jumps over the lazy dog and runs away\n"


def advanced(number: int) -> Advanced:
    return Advanced(
        done_bytes=number,
        total_bytes=0,
        documents=0,
        tokens=0,
        private_bytes=1,
        budget_bytes=2,
        elapsed_seconds=0.0,
    )


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(WORDS * 4000)
    return path


def told(folder: Path, event: str) -> list[dict[str, object]]:
    return [record for record in read_journal(folder / LOG_NAME) if record["event"] == event]


def test_a_finished_tokenize_tells_its_story(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "tokens"
    result = lowtide.tokenize([text], out, memory="256MiB")
    (start,), (end,) = told(out, "start"), told(out, "end")
    assert (start["kind"], start["budget_bytes"]) == ("tokenize", 256 << 20)
    assert start["settings"]["tokenizer"] == "gpt2"  # type: ignore[index]
    assert (end["outcome"], end["exit_code"], end["problem"]) == ("done", 0, None)
    assert end["peak_private_bytes"] == result.peak_private_bytes
    assert end["elapsed_seconds"] == pytest.approx(result.seconds, abs=0.5)
    assert float(str(end["at"])) - float(str(start["at"])) == pytest.approx(result.seconds, abs=0.5)
    last = told(out, "advanced")[-1]
    assert (last["done_bytes"], last["total_bytes"]) == (text.stat().st_size,) * 2
    assert last["tokens"] == verify_dataset(out).tokens
    assert verify_dataset(out).problems == ()


def test_a_finished_train_tokenizer_tells_both_of_its_stages(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "tokenizer"
    settings = lowtide.TokenizerSettings(vocab_size=(300,))
    lowtide.train_tokenizer([text], out, settings, memory="256MiB")
    assert told(out, "start")[0]["kind"] == "train-tokenizer"
    assert told(out, "advanced")
    assert told(out, "end")[0]["outcome"] == "done"


def test_a_stop_and_going_on_are_two_sessions(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "tokens"
    with pytest.raises(StoppedError):
        lowtide.tokenize([text], out, should_stop=lambda: "terminated")
    stopped = told(out, "end")[-1]
    assert (stopped["outcome"], stopped["exit_code"]) == ("stopped", 75)
    assert "run the same command again" in str(stopped["remedy"])
    lowtide.tokenize([text], out)
    assert [record["outcome"] for record in told(out, "end")] == ["stopped", "done"]
    lowtide.tokenize([text], out, restart=True)
    assert [record["outcome"] for record in told(out, "end")] == ["done"]


def test_a_run_that_came_to_nothing_leaves_nothing(tmp_path: Path) -> None:
    empty, out = tmp_path / "empty.txt", tmp_path / "tokens"
    empty.write_text("")
    with pytest.raises(DataError):
        lowtide.tokenize([empty], out)
    assert not out.exists()


def test_a_killed_run_has_no_end(tmp_path: Path) -> None:
    text, out = tmp_path / "long.txt", tmp_path / "tokens"
    text.write_text(WORDS * 400_000)
    command = [*LOWTIDE, "tokenize", str(text), "--out", str(out), "--quiet", "--workers", "1"]
    with subprocess.Popen(command) as process:
        while not (out / LOG_NAME).exists() or not told(out, "advanced"):
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    assert told(out, "start")[0]["pid"] == process.pid
    assert told(out, "end") == []


@pytest.mark.parametrize(
    ("error", "outcome", "problem"),
    [
        (LowtideError("it broke", remedy="mend it"), "failed", "it broke"),
        (ValueError("seven"), "failed", "ValueError: seven"),
        (KeyboardInterrupt(), "interrupted", None),
    ],
)
def test_whatever_ends_a_run_is_told(
    tmp_path: Path, error: BaseException, outcome: str, problem: str | None
) -> None:
    with (
        pytest.raises(type(error)),
        keep_journal(
            tmp_path,
            "tokenize",
            lambda _: None,
            settings={},
            budget_bytes=1,
            started=time.monotonic(),
        ),
    ):
        raise error
    (end,) = told(tmp_path, "end")
    assert (end["outcome"], end["problem"]) == (outcome, problem)


@given(distances=st.lists(st.floats(0.0, 2000.0), min_size=1, max_size=300))
def test_of_progress_the_first_and_the_last_are_written_and_the_rest_by_the_clock(
    distances: list[float],
) -> None:
    written: list[Event] = []
    now = 0.0
    thinned = Thinned(lambda event, _: written.append(event), clock=lambda: now)
    for number, distance in enumerate(distances):
        now += distance
        thinned(advanced(number))
    thinned.finish()
    numbers = [event.done_bytes for event in written if isinstance(event, Advanced)]
    assert numbers[0] == 0
    assert numbers[-1] == len(distances) - 1
    assert numbers == sorted(set(numbers))


def test_days_of_progress_become_a_few_thousand_lines_and_no_note_is_lost() -> None:
    written: list[Event] = []
    now = 0.0
    thinned = Thinned(lambda event, _: written.append(event), clock=lambda: now)
    memory = MemoryRead(private_bytes=1, mapped_bytes=1, swapped_bytes=0, available_bytes=1)
    for number in range(100_000):
        now += 5.0
        thinned(memory)
        if number % 1000 == 0:
            thinned(Note(text=str(number)))
    thinned.finish()
    assert sum(isinstance(event, Note) for event in written) == 100
    assert sum(isinstance(event, MemoryRead) for event in written) < 3000


def test_the_last_of_each_kind_is_kept() -> None:
    written: list[Event] = []
    thinned = Thinned(lambda event, _: written.append(event), clock=lambda: 0.0)
    learnt = Learnt(merges=1, most_merges=2, private_bytes=1, budget_bytes=1, elapsed_seconds=0.0)
    for event in (advanced(0), advanced(1), learnt, advanced(2)):
        thinned(event)
    assert written == [advanced(0), learnt]
    thinned.finish()
    assert written == [advanced(0), learnt, advanced(2)]


def test_what_was_held_back_keeps_its_time() -> None:
    written: list[float] = []
    now = 100.0
    thinned = Thinned(lambda _, at: written.append(at), clock=lambda: now)
    thinned(advanced(0))
    now = 100.5
    thinned(advanced(1))
    now = 900.0
    thinned.finish()
    assert written == [100.0, 100.5]


def test_a_log_that_cannot_be_written_is_told_and_the_run_goes_on(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out: Path = tmp_path / "tokens"
    heard: list[Event] = []
    monkeypatch.setattr("lowtide.journal.append_whole", full)
    result = lowtide.tokenize([text], out, listen=heard.append)
    assert result.manifest.tokens > 0
    notes = [event.text for event in heard if isinstance(event, Note) and event.level == "warning"]
    assert len([note for note in notes if "nothing more is logged" in note]) == 1
    assert not (out / ".lowtide").exists()


def test_a_torn_line_is_cut_off_when_the_run_goes_on(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "tokens"
    with pytest.raises(StoppedError):
        lowtide.tokenize([text], out, should_stop=lambda: "terminated")
    with (out / LOG_NAME).open("ab") as file:
        file.write(b'{"event": "advan')
    lowtide.tokenize([text], out)
    assert [record["outcome"] for record in told(out, "end")] == ["stopped", "done"]


@pytest.mark.skipif(sys.platform != "linux", reason="page cache apart from private memory")
def test_memory_is_read_while_a_run_lasts(tmp_path: Path) -> None:
    text, out = tmp_path / "long.txt", tmp_path / "tokens"
    text.write_text(WORDS * 100_000)

    def slow(event: Event) -> None:
        if isinstance(event, Advanced) and event.elapsed_seconds < 1.5:
            time.sleep(0.3)

    lowtide.tokenize([text], out, listen=slow, workers=1)
    reads = told(out, "memory")
    assert reads
    assert int(str(reads[0]["available_bytes"])) > 0
