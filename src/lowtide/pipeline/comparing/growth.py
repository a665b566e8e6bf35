"""How a way's memory and time grow with the text: a straight line through two measured sizes, continued."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run that finished."""

    text_bytes: int
    peak_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A line for memory and one for time."""

    smaller: Measured
    larger: Measured

    @property
    def bytes_per_byte(self) -> float:
        """Bytes of memory for each byte of text; never below 0."""
        return self._slope(self.larger.peak_bytes - self.smaller.peak_bytes)

    @property
    def seconds_per_byte(self) -> float:
        """Seconds for each byte of text; never below 0."""
        return self._slope(self.larger.seconds - self.smaller.seconds)

    def peak_at(self, text_bytes: int) -> int:
        """Predicted memory at this size, on a straight line through the two runs."""
        more = max(0, text_bytes - self.larger.text_bytes)
        return self.larger.peak_bytes + round(self.bytes_per_byte * more)

    def seconds_at(self, text_bytes: int) -> float:
        """Predicted duration at this size."""
        more = max(0, text_bytes - self.larger.text_bytes)
        return self.larger.seconds + self.seconds_per_byte * more

    def _slope(self, difference: float) -> float:
        return max(0.0, difference / (self.larger.text_bytes - self.smaller.text_bytes))


def fit_growth(runs: list[Measured]) -> Growth | None:
    """The line through the largest run and the smallest; None if there are no two sizes."""
    ordered = sorted(runs, key=lambda run: run.text_bytes)
    if len(ordered) < 2 or ordered[0].text_bytes == ordered[-1].text_bytes:
        return None
    return Growth(smaller=ordered[0], larger=ordered[-1])
