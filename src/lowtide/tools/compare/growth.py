"""How a program's memory and time grow with the text: a straight line through two measured sizes, continued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowtide.tools.compare.run_boxed import Boxed


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A line for memory and one for time; neither falls."""

    smaller: Boxed
    larger: Boxed

    @property
    def bytes_per_byte(self) -> float:
        """Bytes of memory for each byte of text."""
        return self._slope(self.larger.peak_private_bytes - self.smaller.peak_private_bytes)

    def peak_at(self, text_bytes: int) -> int:
        """Predicted memory at this size."""
        more_bytes = max(0, text_bytes - self.larger.text_bytes)
        return self.larger.peak_private_bytes + round(self.bytes_per_byte * more_bytes)

    def seconds_at(self, text_bytes: int) -> float:
        """Predicted duration at this size."""
        slope = self._slope(self.larger.seconds - self.smaller.seconds)
        return self.larger.seconds + slope * max(0, text_bytes - self.larger.text_bytes)

    def _slope(self, difference: float) -> float:
        return max(0.0, difference / (self.larger.text_bytes - self.smaller.text_bytes))


def fit_growth(runs: Sequence[Boxed]) -> Growth | None:
    """The line through the largest and the smallest run that finished; None if they are not two sizes."""
    finished = [run for run in runs if run.ending == "finished" and run.text_bytes]
    ordered = sorted(finished, key=lambda run: run.text_bytes)
    if len(ordered) < 2 or ordered[0].text_bytes == ordered[-1].text_bytes:
        return None
    return Growth(smaller=ordered[0], larger=ordered[-1])
