"""How fast it goes: a step's figures for whoever listens, and the time that is left."""

from __future__ import annotations

import math

import torch

from lowtide.events import Stepped
from lowtide.memory.meter import private_bytes
from lowtide.training.gpu_memory import peak_of_gpu
from lowtide.training.settings import TrainSettings
from lowtide.training.step import StepResult

_SMOOTHING = 0.1
_STARTING_STEPS = 3
"""They compile, and say nothing about the time that is left: only the last of them is remembered."""


class Pace:
    """Counts what was trained on, and remembers how long steps take, the last ones most."""

    def __init__(
        self,
        settings: TrainSettings,
        device: torch.device,
        *,
        epoch_windows: int,
        world_size: int,
        position: int = 0,
        windows_before: int = 0,
        peak_flops: float | None,
    ) -> None:
        """`position` windows of the data were seen already, and before them `windows_before` of other data."""
        self._settings = settings
        self._device = device
        self._epoch_windows = epoch_windows
        self._position = position
        self._windows_before = windows_before
        self._peak_flops = peak_flops * world_size if peak_flops else None
        self._told = 0
        self._step_seconds = 0.0
        self._step_tokens = 0.0
        self.mean_loss: float | None = None
        """Of the steps so far, the last ones most."""

    @property
    def tokens_per_second(self) -> float | None:
        """The same."""
        return self._step_tokens / self._step_seconds if self._step_seconds else None

    def describe(self, step: int, result: StepResult, seconds: float, *, position: int) -> Stepped:
        """All there is to say of a step that took so long, and after which the data stands at `position`.

        The last step of the data may be short: what it was trained on is counted, not what a step should have.
        """
        context = self._settings.shape.context
        step_tokens = (position - self._position) * context
        self._position = position
        self._told += 1
        share = 1.0 if self._told <= _STARTING_STEPS else _SMOOTHING
        self._step_seconds += share * (seconds - self._step_seconds)
        self._step_tokens += share * (step_tokens - self._step_tokens)
        if math.isfinite(result.loss):
            kept = self.mean_loss
            self.mean_loss = (
                result.loss if kept is None else kept + _SMOOTHING * (result.loss - kept)
            )
        settings, peak = self._settings, self._peak_flops
        rate = step_tokens / max(seconds, 1e-9)  # a clock may stand still
        return Stepped(
            step=step,
            steps=settings.steps,
            loss=result.loss,
            learning_rate=result.learning_rate,
            gradient_norm=result.gradient_norm,
            seconds=seconds,
            tokens=(self._windows_before + position) * context,
            tokens_per_second=rate,
            epoch=position / self._epoch_windows,
            private_bytes=private_bytes(),
            seconds_left=self._step_seconds * (settings.steps - step),
            gpu_bytes=peak_of_gpu(self._device),
            mfu=rate * settings.shape.flops_per_token / peak if peak else None,
            skipped=result.skipped,
        )
