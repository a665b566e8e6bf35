"""A journal, read once from front to back, into the facts of its run. Holds one record and the facts.

Time is time of work: it does not pass between two sessions. In logs from before records had times, it is the
sum of the seconds that steps took.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lowtide.errors import DataError, UsageError
from lowtide.guard.forecast import Forecast
from lowtide.journal import (
    Record,
    number,
    read_end,
    read_journal,
    read_reading,
    text,
    whole,
)
from lowtide.series import Series
from lowtide.show.page.facts import (
    MOST_SESSIONS,
    Band,
    Happening,
    RunFacts,
    Session,
)
from lowtide.show.page.work_clock import WorkClock, clock_text, unix_seconds
from lowtide.units import format_bytes, format_count, format_seconds, printable

NAME_A_RUN = (
    "name the folder of a run of tokenize, train-tokenizer, export or train, or a timeline of watch"
)
MOST_GPUS = 4
_MOST_COMMAND_WORDS = 200
_LEARNING = "learning merges"
_READING = {"train-tokenizer": "counting words", "export": "verifying and copying"}
_RATE_SECONDS = 0.5
"""A rate over less would be noise."""
_ALERT_BANDS = {"note": "noted", "ask": "asked to stop", "end": "being ended"}


def read_run(path: Path) -> RunFacts:
    """The facts of a journal's run. Lines that cannot be read are counted and left out.

    Raises DataError if nothing was written yet, and UsageError if it is another kind of file.
    """
    reader = _Reader()
    for record in read_journal(path, on_bad=reader.skip):
        reader.take(record)
    if not reader.facts.records and not reader.facts.unread_lines:
        raise DataError(
            f"{printable(str(path))} holds no record yet",
            remedy="run the command again once the run has begun to write its log",
        )
    if not reader.is_log:
        raise UsageError(f"{printable(str(path))} is not a log of lowtide", remedy=NAME_A_RUN)
    reader.finish()
    return reader.facts


class _Reader:
    def __init__(self) -> None:
        self.facts = RunFacts()
        self._session: Session | None = None
        self._band: Band | None = None
        self._clock = WorkClock()
        self._late_seconds: float | None = None
        """When a record happened that was written late: it is counted, but not drawn."""
        self._counted_seconds: float | None = None
        self._first_unread: Happening | None = None
        self.is_log = False
        self._rate_from: tuple[float, int] | None = None
        self._takers: dict[str, Callable[[Record], None]] = {
            "advanced": self._take_advanced,
            "learnt": self._take_learnt,
            "step": self._take_step,
            "evaluation": self._take_evaluation,
            "sample": self._take_sample,
            "checkpoint": self._take_checkpoint,
            "note": self._take_note,
            "memory": self._take_memory,
            "reading": self._take_reading,
            "alert": self._take_alert,
            "forecast": self._take_forecast,
            "end": self._take_end,
        }

    def take(self, record: Record) -> None:
        event, at = text(record, "event"), unix_seconds(record)
        self.facts.records += 1
        self.is_log = self.is_log or event == "start" or event in self._takers
        if event == "start" or self._session is None:
            self._open_session(record, at)
        self._move_clock(record, at)
        taker = self._takers.get(event)
        if taker is not None:
            taker(record)

    def skip(self, line_number: int) -> None:
        """Count a line that is not a record."""
        facts = self.facts
        facts.unread_lines += 1
        if self._first_unread is None:
            self._first_unread = Happening(
                seconds=facts.seconds,
                at=facts.last_at,
                label="unreadable",
                text=f"the first is line {line_number}",
                grave=True,
            )

    def finish(self) -> None:
        if self._first_unread is not None:
            words = f"{self.facts.unread_words}; {self._first_unread.text}"
            self.facts.events.add(replace(self._first_unread, text=words))

    def _open_session(self, record: Record, at: float | None) -> None:
        facts, before = self.facts, self._session
        if before is not None and before.outcome is None and facts.dated:
            broke_off = f"the record broke off at {clock_text(before.last_at)}"
            self._add_event("no end", broke_off, grave=True)
        facts.worked_seconds_before = facts.worked_seconds
        self._clock.open_session()
        self._counted_seconds = None
        self._session = facts.session = Session(
            number=min(facts.sessions.count, MOST_SESSIONS),
            from_seconds=facts.seconds,
            to_seconds=facts.seconds,
            at=at,
            last_at=at,
            budget_bytes=whole(record, "budget_bytes"),
        )
        facts.sessions.add(self._session)
        facts.started_at = at if facts.started_at is None else facts.started_at
        facts.end, self._band, self._rate_from = None, None, None
        if text(record, "event") == "start":
            self._take_start(record, before)

    def _take_start(self, record: Record, before: Session | None) -> None:
        facts, found = self.facts, record.get("settings")
        settings = found if isinstance(found, dict) else {}
        facts.kind = text(record, "kind") or facts.kind
        facts.version = text(record, "version")
        facts.how = text(record, "how")
        facts.limit_bytes = whole(record, "limit_bytes")
        facts.floor_bytes = whole(record, "floor_bytes")
        facts.first_settings = facts.first_settings or settings
        facts.settings = settings
        command = record.get("command")
        if isinstance(command, list):
            facts.command = tuple(str(word) for word in command[:_MOST_COMMAND_WORDS])
        step, at = whole(record, "step"), unix_seconds(record)
        words = "resumed" if facts.sessions.count > 1 else "began"
        if step:
            words = f"resumed from step {step}"
        if before is not None and before.last_at is not None and at is not None:
            words += f" after a pause of {format_seconds(max(0.0, at - before.last_at))}"
        if facts.version:
            words += f" with lowtide {facts.version}"
        self._add_event("start", words, at=at)
        self._enter("starting")

    def _move_clock(self, record: Record, at: float | None) -> None:
        facts, session = self.facts, self._session
        assert session is not None
        self._late_seconds = self._lateness(record, self._clock.move(record))
        facts.seconds = session.to_seconds = self._clock.seconds
        if at is not None:
            session.at = at if session.at is None else session.at
            facts.dated = True
            if self._late_seconds is None:
                session.last_at = facts.last_at = at
        if self._band is not None:
            self._band.to_seconds = facts.seconds

    def _lateness(self, record: Record, happened_seconds: float | None) -> float | None:
        """When a late record happened; None if it can be drawn as if it happened now."""
        if happened_seconds is None or self._band is None:
            return None
        is_over = self._band.name == _LEARNING and text(record, "event") == "advanced"
        now = self._clock.is_nearly_now(happened_seconds)
        return happened_seconds if is_over or not now else None

    def _enter(self, name: str, from_seconds: float | None = None) -> None:
        if self._late_seconds is not None or (self._band is not None and self._band.name == name):
            return
        seconds = self.facts.seconds
        if from_seconds is not None and self._band is not None:
            self._band.to_seconds = from_seconds
        begins = seconds if from_seconds is None else from_seconds
        self._band = Band(name=name, from_seconds=begins, to_seconds=seconds)
        self.facts.bands.add(self._band)

    def _draw(self, name: str, value: float | None) -> None:
        if value is None or self._late_seconds is not None:
            return
        session = self._session
        assert session is not None
        series = self.facts.series.get(name)
        if series is None:
            series = self.facts.series[name] = Series()
        series.add(self.facts.seconds, value, session.number)

    def _add_event(
        self, label: str, words: str, *, at: float | None = None, grave: bool = False
    ) -> None:
        facts = self.facts
        moment = facts.last_at if at is None else at
        facts.events.add(
            Happening(seconds=facts.seconds, at=moment, label=label, text=words, grave=grave)
        )

    def _see_memory(self, record: Record) -> None:
        peaks, private = self.facts.peaks, whole(record, "private_bytes")
        self._draw("private", private)
        budget = whole(record, "budget_bytes")
        if budget and self._session is not None:
            self._session.budget_bytes = budget
        if private is not None:
            peaks.private_bytes = max(private, peaks.private_bytes or 0)

    def _take_advanced(self, record: Record) -> None:
        counts = self.facts.counts
        self._count_until(self.facts.seconds if self._late_seconds is None else self._late_seconds)
        self._enter(_READING.get(self.facts.kind, "tokenizing"))
        self._see_memory(record)
        done, total = whole(record, "done_bytes"), whole(record, "total_bytes")
        self._measure_rate("input rate", done, resumed=whole(record, "resumed_bytes") or 0)
        counts.done_bytes = done if done is not None else counts.done_bytes
        counts.total_bytes = total or counts.total_bytes
        counts.documents = whole(record, "documents") or counts.documents
        tokens = whole(record, "tokens")
        if tokens:
            counts.tokens = tokens
            self._draw("tokens", tokens)

    def _count_until(self, seconds: float) -> None:
        """Move the end of counting here, even if its last record comes after the first merges."""
        before, self._counted_seconds = self._counted_seconds, seconds
        bands = list(self.facts.bands)[-2:]
        if before is not None and self._late_seconds is not None and len(bands) == 2:
            counting, learning = bands
            if learning.name == _LEARNING and learning.from_seconds == before < seconds:
                counting.to_seconds = learning.from_seconds = seconds

    def _measure_rate(self, name: str, done: int | None, *, resumed: int) -> None:
        """Draw the progress per second since the last record, without what earlier sessions did."""
        if done is None or self._session is None or self._late_seconds is not None:
            return
        if self._rate_from is None:
            self._rate_from = (self._session.from_seconds, min(resumed, done))
        seconds, before = self._rate_from
        passed = self.facts.seconds - seconds
        if passed >= _RATE_SECONDS and done >= before:
            self._draw(name, (done - before) / passed)
            self.facts.counts.new_bytes += done - before if name == "input rate" else 0
            self._rate_from = (self.facts.seconds, done)

    def _take_learnt(self, record: Record) -> None:
        counts = self.facts.counts
        begins = self._counted_seconds
        if self._band is None or self._band.name != _LEARNING:
            self._rate_from = None if begins is None else (begins, 0)
        self._enter(_LEARNING, begins)
        self._see_memory(record)
        counts.merges = whole(record, "merges")
        counts.most_merges = whole(record, "most_merges")
        self._draw("merges", counts.merges)
        self._measure_rate("merge rate", counts.merges, resumed=0)

    def _take_step(self, record: Record) -> None:
        facts, counts = self.facts, self.facts.counts
        facts.kind = facts.kind or "train"
        self._enter("training")
        self._see_memory(record)
        loss = number(record, "loss")
        counts.not_finite += loss is None and record.get("loss") is not None
        counts.skipped += record.get("skipped") is True
        counts.last_loss = loss if loss is not None else counts.last_loss
        counts.step = whole(record, "step")
        counts.steps = whole(record, "steps")
        counts.tokens = whole(record, "tokens")
        counts.epoch = number(record, "epoch")
        counts.seconds_left = number(record, "seconds_left")
        counts.mfu = number(record, "mfu")
        self._draw("loss", loss)
        for name in ("step", "tokens", "learning_rate", "gradient_norm", "tokens_per_second"):
            self._draw(name, number(record, name))
        self._see_gpu("gpu", whole(record, "gpu_bytes"))

    def _see_gpu(self, name: str, used: int | None) -> None:
        self._draw(name, used)
        if used is not None:
            self.facts.peaks.gpu_bytes = max(used, self.facts.peaks.gpu_bytes or 0)

    def _take_evaluation(self, record: Record) -> None:
        counts, loss = self.facts.counts, number(record, "loss")
        if loss is None:
            return
        self._draw("evaluation", loss)
        counts.last_evaluation = loss
        if counts.best_evaluation is None or loss < counts.best_evaluation[0]:
            counts.best_evaluation = (loss, whole(record, "step"))

    def _take_sample(self, record: Record) -> None:
        self.facts.samples.add((whole(record, "step"), text(record, "text")))

    def _take_checkpoint(self, record: Record) -> None:
        facts, words = self.facts, _checkpoint_words(record)
        facts.checkpoints.add(
            Happening(seconds=facts.seconds, at=facts.last_at, label="checkpoint", text=words)
        )

    def _take_note(self, record: Record) -> None:
        warns = text(record, "level") == "warning"
        self._add_event("warning" if warns else "note", text(record, "text"), grave=warns)

    def _take_memory(self, record: Record) -> None:
        self._see_memory(record)
        for name in ("mapped", "available"):
            self._draw(name, whole(record, f"{name}_bytes"))
        swapped = whole(record, "swapped_bytes")
        self._draw("swapped", swapped)
        self.facts.peaks.swapped_bytes = max(self.facts.peaks.swapped_bytes, swapped or 0)
        self._draw("stalled", number(record, "stalled_percent"))

    def _take_reading(self, record: Record) -> None:
        facts, before = self.facts, self.facts.peaks.private_bytes or -1
        if self._band is None or self._band.name == "starting":
            self._enter("watched")
        self._take_memory(record)
        reading = read_reading(record)
        if (whole(record, "private_bytes") or -1) > before:
            facts.peaks.top = reading.top
        self._draw("charged", reading.cgroup_bytes)
        for card in reading.gpus:
            if card.index in facts.gpus or len(facts.gpus) < MOST_GPUS:
                facts.gpus[card.index] = (card.name, card.total_bytes)
                self._see_gpu(f"gpu {card.index}", card.used_bytes)

    def _take_alert(self, record: Record) -> None:
        facts, stage = self.facts, text(record, "stage")
        facts.alerts.add((facts.seconds, stage))
        name = _ALERT_BANDS.get(stage, "watched")
        self._enter(name)
        self._add_event(name, text(record, "reason"), grave=stage != "note")

    def _take_forecast(self, record: Record) -> None:
        seconds, reaches = number(record, "seconds"), whole(record, "reaches_bytes")
        pace = number(record, "bytes_per_second")
        if seconds is None or reaches is None or pace is None:
            return
        found = Forecast(seconds=seconds, reaches_bytes=reaches, bytes_per_second=pace)
        self.facts.forecast = (self.facts.seconds, found)
        words = f"{format_bytes(reaches)} would be reached in {format_seconds(seconds)} (predicted)"
        self._add_event("forecast", words)

    def _take_end(self, record: Record) -> None:
        facts, outcome = self.facts, text(record, "outcome")
        facts.end = read_end(record)
        if self._session is not None:
            self._session.outcome = outcome
            self._session.elapsed_seconds = number(record, "elapsed_seconds")
        counts = facts.counts
        if outcome == "done" and counts.done_bytes is not None and counts.total_bytes:
            # A finished run read all of its input, although its last record may be a second older.
            counts.more_tokens = counts.done_bytes < counts.total_bytes
            counts.done_bytes = counts.total_bytes
        peak = whole(record, "peak_private_bytes")
        if peak is not None and peak > (facts.peaks.private_bytes or 0):
            facts.peaks.private_bytes = peak
        grave = outcome == "failed"
        self._add_event(
            "end", f"{outcome}: {facts.end.problem}" if facts.end.problem else outcome, grave=grave
        )


def _checkpoint_words(record: Record) -> str:
    """What the checkpoint keeps: a training step and its folder, or an amount of the input."""
    step, done = whole(record, "step"), whole(record, "done_bytes")
    if step is None:
        tokens = format_count(whole(record, "tokens") or 0)
        return "" if done is None else f"{format_bytes(done)} of input, {tokens} tokens are safe"
    path, took = text(record, "path"), number(record, "seconds")
    place = f": {path}" if path else ""
    return f"at step {step}{place}" + ("" if took is None else f", in {format_seconds(took)}")
