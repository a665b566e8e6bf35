"""What a run of training says: the most important first, nothing that moves a cursor, not too often."""

from __future__ import annotations

import io
import math
import os
import pty
import re
from dataclasses import replace

import pytest

from lowtide.events import Evaluated, Event, Note, Processed, Sampled, Saved, Stepped
from lowtide.show.progress import (
    _PlainLines,
    processed_line,
    show_progress,
    step_line,
    training_lines,
)

STEPPED = Stepped(
    step=1200,
    steps=19073,
    loss=3.4123,
    learning_rate=5.9e-4,
    gradient_norm=0.31,
    seconds=0.9,
    tokens=629_145_600,
    tokens_per_second=562_012.0,
    epoch=0.375,
    private_bytes=1_288_490_189,
    seconds_left=7800.0,
    gpu_bytes=23_192_823_398,
    mfu=0.4149,
)


def test_the_live_line_says_the_most_important_first() -> None:
    assert step_line(STEPPED, Evaluated(step=1000, loss=3.398)) == (
        "step 1200 of 19073, loss 3.412, val 3.398, 2h 10m left, 562.0k tokens/s, 629.1M seen, MFU 41 %, "
        "37.5% of the epoch, lr 5.9e-04, VRAM 21.6 GiB, memory 1.2 GiB"
    )


def test_what_is_verified_or_exported_is_told_in_its_unit() -> None:
    read = Processed(done=43 << 20, total=98 << 20, unit="bytes")
    assert processed_line(read) == "43.0 of 98.0 MiB"
    copied = Processed(done=12_345_678, total=98_100_000, unit="tokens")
    assert processed_line(copied) == "12.3M of 98.1M tokens"


def test_what_is_not_known_is_left_out() -> None:
    line = step_line(replace(STEPPED, mfu=None, gpu_bytes=None, seconds_left=math.inf), None)
    assert line == (
        "step 1200 of 19073, loss 3.412, 562.0k tokens/s, 629.1M seen, 37.5% of the epoch, "
        "lr 5.9e-04, memory 1.2 GiB"
    )


def test_a_skipped_step_and_odd_numbers_can_be_told() -> None:
    odd = replace(
        STEPPED, loss=math.nan, tokens_per_second=math.inf, seconds_left=-1.0, skipped=True
    )
    assert "loss nan (skipped)" in step_line(odd, None)
    assert "0.0s left, ? tokens/s" in step_line(odd, None)


@pytest.mark.parametrize(
    ("epoch", "said"),
    [
        (0.0, "0.0% of the epoch"),
        (1.0, "100.0% of the epoch"),
        (1.25, "25.0% of epoch 2"),
        (3.0, "100.0% of epoch 3"),
    ],
)
def test_the_share_is_that_of_the_epoch_at_work(epoch: float, said: str) -> None:
    assert f", {said}, " in step_line(replace(STEPPED, epoch=epoch), None)


def test_an_evaluation_and_a_checkpoint_are_a_line_each() -> None:
    assert training_lines(Evaluated(step=8, loss=3.398)) == [
        "evaluation: step 8, val loss 3.398, perplexity 29.9"
    ]
    assert training_lines(Evaluated(step=8, loss=math.nan)) == ["evaluation: step 8, val loss nan"]
    assert training_lines(Saved(step=8, path="RUN/a\x1b\udc80", seconds=1.25)) == [
        r"checkpoint: step 8 in RUN/a\x1b\udc80, 1.2s"
    ]


def test_a_sample_cannot_move_the_cursor_and_is_cut() -> None:
    assert training_lines(Sampled(step=8, text="one\r\n\x1b[2Jtwo 中\n\u202e\ud800")) == [
        "sample: step 8",
        r"  one\r",
        r"  \x1b[2Jtwo 中",
        r"  \u202e\ud800",
    ]
    for text in ("x" * 5000, "line\n" * 50, "\n" * 50):
        lines = training_lines(Sampled(step=8, text=text))
        assert len(lines) == 8
        assert lines[-1] == "  …"
        assert all(len(line) <= 102 for line in lines)
    assert training_lines(Sampled(step=8, text="")) == ["sample: step 8", ""]


def test_elsewhere_than_on_a_terminal_steps_are_told_every_ten_seconds() -> None:
    now = 1000.0
    stream = io.StringIO()
    listen = _PlainLines(stream, clock=lambda: now)
    for step in range(1, 31):
        listen(replace(STEPPED, step=step, steps=30))
        now += 1.0
    said = stream.getvalue().splitlines()
    assert [line.split(",")[0] for line in said] == [
        f"step {step} of 30" for step in (1, 11, 21, 30)
    ]


def test_what_happened_is_told_at_once_and_the_last_evaluation_stays_on_the_line() -> None:
    stream = io.StringIO()
    with show_progress(quiet=False, stream=stream) as listen:
        for event in _a_short_run():
            listen(event)
    assert stream.getvalue().splitlines()[1:] == [
        "evaluation: step 1, val loss 3.398, perplexity 29.9",
        "checkpoint: step 1 in RUN/checkpoints/step-00000001, 1.2s",
        "sample: step 1",
        "  :smile: [bold]he",
        "note: so far",
        step_line(replace(STEPPED, step=2, steps=2), Evaluated(step=1, loss=3.398)),
    ]


def _a_short_run() -> list[Event]:
    return [
        replace(STEPPED, step=1, steps=2),
        Evaluated(step=1, loss=3.398),
        Saved(step=1, path="RUN/checkpoints/step-00000001", seconds=1.2),
        Sampled(step=1, text=":smile: [bold]he"),
        Note(text="so far"),
        replace(STEPPED, step=2, steps=2),
    ]


def test_on_a_terminal_a_bar_moves_and_what_happened_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    master, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        with show_progress(quiet=False, stream=stream) as listen:
            for event in _a_short_run():
                listen(event)
        stream.flush()
        said = ""
        while "loss 3.412, val 3.398, 2h" not in said or "so far" not in said:
            said += os.read(master, 1 << 16).decode(errors="replace")  # in pieces on a busy machine
    os.close(master)
    assert "━" in said
    assert "step 2 of 2, loss 3.412, val 3.398, 2h 10m left" in said
    for line in ("evaluation: step 1", "checkpoint: step 1", "  :smile: [bold]he", "note: so far"):
        assert line in said


def test_at_80_columns_the_bar_has_12_cells_and_no_word_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    master, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        with show_progress(quiet=False, stream=stream) as listen:
            listen(Evaluated(step=1, loss=3.398))
            listen(STEPPED)
        stream.flush()
        said = ""
        while "10m left" not in said:
            said += os.read(master, 1 << 16).decode(errors="replace")
    os.close(master)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)
    lines = [line.strip() for line in re.split(r"[\r\n]+", plain) if "step 1200" in line]
    bar, _, words = lines[-1].partition(" ")
    assert len(bar) == 12
    whole = step_line(STEPPED, Evaluated(step=1, loss=3.398)).split(", ")
    assert words.split(", ") == whole[:4]
    assert all(len(line) <= 80 for line in lines)


def test_quiet_says_nothing() -> None:
    stream = io.StringIO()
    with show_progress(quiet=True, stream=stream) as listen:
        for event in _a_short_run():
            listen(event)
    assert stream.getvalue() == ""
