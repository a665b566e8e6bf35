"""What a training run says, as lines: one that lives while it lasts, and one for each thing that happened."""

from __future__ import annotations

import math

from lowtide.events import Evaluated, Sampled, Saved, Stepped
from lowtide.units import format_bytes, format_count, format_seconds, printable

_SAMPLE_LINES = 6
_SAMPLE_COLUMNS = 100


def step_line(event: Stepped, evaluated: Evaluated | None) -> str:
    """`step 1200 of 19073, loss 3.412, val 3.398, 2h 10m left, 562.0k tokens/s, 629M seen, MFU 41 %, …`.

    On a narrow terminal parts are left out at its right, so what matters most comes first.
    """
    skipped = " (skipped)" if event.skipped else ""
    parts = [f"step {event.step} of {event.steps}", f"loss {event.loss:.3f}{skipped}"]
    if evaluated is not None:
        parts.append(f"val {evaluated.loss:.3f}")
    if math.isfinite(event.seconds_left):
        parts.append(f"{format_seconds(max(0.0, event.seconds_left))} left")
    parts += [f"{_rate(event.tokens_per_second)} tokens/s", f"{format_count(event.tokens)} seen"]
    if event.mfu is not None:
        parts.append(f"MFU {event.mfu * 100:.0f} %")
    parts += [_share_of_epoch(event.epoch), f"lr {event.learning_rate:.1e}"]
    if event.gpu_bytes is not None:
        parts.append(f"VRAM {format_bytes(event.gpu_bytes)}")
    parts.append(f"memory {format_bytes(event.private_bytes)}")
    return ", ".join(parts)


def evaluation_line(event: Evaluated) -> str:
    """`evaluation: step 1200, val loss 3.398, perplexity 29.9`."""
    perplexity = f", perplexity {math.exp(event.loss):.1f}" if event.loss < 100 else ""
    return f"evaluation: step {event.step}, val loss {event.loss:.3f}{perplexity}"


def saved_line(event: Saved) -> str:
    """`checkpoint: step 1000 in RUN/checkpoints/step-00001000, 1.2s`."""
    path = printable(event.path)
    return f"checkpoint: step {event.step} in {path}, {format_seconds(event.seconds)}"


def sample_lines(event: Sampled) -> list[str]:
    """`sample: step 1000`, then the beginning of the text, indented, with what would move a cursor escaped."""
    shown: list[str] = []
    for line in event.text.split("\n"):
        visible = printable(line)
        shown += [
            visible[start : start + _SAMPLE_COLUMNS]
            for start in range(0, max(1, len(visible)), _SAMPLE_COLUMNS)
        ]
    if len(shown) > _SAMPLE_LINES:
        shown = [*shown[:_SAMPLE_LINES], "…"]
    return [f"sample: step {event.step}", *(f"  {line}".rstrip() for line in shown)]


def training_lines(event: Evaluated | Sampled | Saved) -> list[str]:
    """What is said at once, whatever the live line does."""
    if isinstance(event, Evaluated):
        return [evaluation_line(event)]
    if isinstance(event, Saved):
        return [saved_line(event)]
    return sample_lines(event)


def _rate(tokens_per_second: float) -> str:
    return format_count(round(tokens_per_second)) if math.isfinite(tokens_per_second) else "?"


def _share_of_epoch(epoch: float) -> str:
    """`37.5% of the epoch`; from the second on, `37.5% of epoch 2`."""
    if epoch <= 1:
        return f"{epoch:.1%} of the epoch"
    whole = math.ceil(epoch) - 1
    return f"{epoch - whole:.1%} of epoch {whole + 1}"
