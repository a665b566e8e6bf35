"""What a run, or a test of one, came to: plain values, without a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from lowtide.training.checkpoint import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a run came to."""

    folder: Path
    state: RunState
    seconds: float
    """Of this call."""
    micro_batch: int
    """Windows at a time in the end; smaller than planned where memory ran out."""
    already_done: bool = False
    steps: int = 0
    """Taken by this call."""
    gpu_bytes: int | None = None
    """The most that was taken of the GPU, evaluations and samples included."""
    train_loss: float | None = None
    """Of the last steps of this call, in the mean."""
    tokens_per_second: float | None = None
    """The same."""

    def __repr__(self) -> str:
        state, loss = self.state, ""
        if self.train_loss is not None:
            loss = f", loss {self.train_loss:.3f}"
        if state.best_loss is not None:
            loss += f", best val {state.best_loss:.3f} at step {state.best_step}"
        took = "already done" if self.already_done else format_seconds(self.seconds)
        return f"<{type(self).__name__} {self.folder}: step {state.step}{loss}, {took}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeReport:
    """What a few steps showed."""

    micro_batch: int
    """Windows at a time that fitted; smaller than planned where memory ran out."""
    first_loss: float
    last_loss: float
    val_loss: float | None
    sample: str | None
    step_tokens: int
    """Of a step as planned."""
    tried_tokens: int
    """Of a step that was tried: fewer, where a planned one has more than two micro-batches."""
    step_seconds: float
    """Of a whole step as planned, from the median of the measured parts."""
    tokens_per_second: float
    hours: float
    """For the whole run, at that speed."""
    checkpoint_seconds: float
    gpu_bytes: int | None
    predicted_gpu_bytes: int | None
    problems: tuple[str, ...]
    """What is not as it should be; empty when all is well."""
    serious: tuple[str, ...] = ()
    """Those of the problems that no long run should begin with."""
    notes: tuple[str, ...] = ()
    """What was said on the way."""
    mfu: float | None = None
    """Share of the card's own peak, where that is known."""

    @property
    def tried_steps(self) -> str:
        """The steps that were tried, for people."""
        if self.tried_tokens == self.step_tokens:
            return "ten steps"
        tried, planned = format_count(self.tried_tokens), format_count(self.step_tokens)
        return f"ten steps of {tried} instead of {planned} tokens"

    def rows(self) -> list[tuple[str, str]]:
        """What was found, for people: names and values."""
        rows = [
            ("loss", f"{self.first_loss:.3f} at first, {self.last_loss:.3f} in the end (measured)"),
            ("step", f"{1000 * self.step_seconds:,.0f} ms (measured on {self.tried_steps})"),
            ("speed", f"{format_count(round(self.tokens_per_second))} tokens a second (measured)"),
            ("whole run", f"{format_seconds(3600 * self.hours)} at that speed (predicted)"),
            ("checkpoint", f"{format_seconds(self.checkpoint_seconds)} (measured)"),
            ("at a time", f"{self.micro_batch} windows"),
        ]
        if self.mfu is not None:
            rows.insert(3, ("MFU", f"{self.mfu:.0%} of the card's own peak"))
        if self.gpu_bytes is not None:
            predicted = self.predicted_gpu_bytes
            beside = f", {format_bytes(predicted)} predicted" if predicted else ""
            rows.append(("GPU memory", f"{format_bytes(self.gpu_bytes)} (measured){beside}"))
        rows += [("note", text) for text in self.notes]
        return [*rows, ("verdict", "; ".join(self.problems) or "all is as it should be")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedFile:
    """A file of an inbox that could not be learnt from."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class InboxRun(TrainResult):
    """What a run over an inbox came to."""

    done: int = 0
    """Files that were trained on, over all calls."""
    failed: tuple[FailedFile, ...] = ()
    """The same."""
    waiting: int = 0
    """Files in the inbox that are not whole yet."""
