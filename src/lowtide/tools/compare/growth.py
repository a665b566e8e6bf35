"""How a way's memory and time grow with the text: a straight line through two measured sizes, continued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowtide.tools.compare.run_boxed import Boxed


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedRun:
    """One run of a way, and how much text it was given."""

    sixteenths: int
    text_bytes: int
    found: Boxed


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A line for memory and one for time."""

    smaller: SizedRun
    larger: SizedRun

    @property
    def bytes_per_byte(self) -> float:
        """Bytes of memory for each byte of text; never below 0."""
        larger, smaller = self.larger.found, self.smaller.found
        return self._slope(larger.peak_private_bytes - smaller.peak_private_bytes)

    @property
    def seconds_per_byte(self) -> float:
        """Seconds for each byte of text; never below 0."""
        return self._slope(self.larger.found.seconds - self.smaller.found.seconds)

    def peak_at(self, text_bytes: int) -> int:
        """Predicted memory at this size, on a straight line through the two runs."""
        more = max(0, text_bytes - self.larger.text_bytes)
        return self.larger.found.peak_private_bytes + round(self.bytes_per_byte * more)

    def seconds_at(self, text_bytes: int) -> float:
        """Predicted duration at this size."""
        more = max(0, text_bytes - self.larger.text_bytes)
        return self.larger.found.seconds + self.seconds_per_byte * more

    def _slope(self, difference: float) -> float:
        return max(0.0, difference / (self.larger.text_bytes - self.smaller.text_bytes))


def fit_growth(runs: Sequence[SizedRun]) -> Growth | None:
    """The line through the largest and the smallest run that finished; None if they are not two sizes."""
    finished = [run for run in runs if run.found.ending == "finished" and run.text_bytes]
    ordered = sorted(finished, key=lambda run: run.text_bytes)
    if len(ordered) < 2 or ordered[0].text_bytes == ordered[-1].text_bytes:
        return None
    return Growth(smaller=ordered[0], larger=ordered[-1])
