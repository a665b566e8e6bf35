"""GPUs that people own: their memory, and how fast their matrix units are.

The peak is what training can use: dense, bfloat16 in, float32 added up. On GeForce cards that is half of the
rate with float16 added up, which is advertised. Cards before Ampere have no bfloat16: there, it is float32's.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lowtide.errors import UsageError
from lowtide.units import MIB

PeakSource: TypeAlias = Literal["checked", "assumed"]
"""Compared with an independent table, which it agrees with to 2 %; or not compared with any.

Ampere, Ada and Blackwell GeForce cards follow one rule: twice the vendor's float32 rate.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One model of GPU."""

    name: str
    memory_bytes: int
    """As the driver reports it, where that is known; else as sold."""
    peak_flops: float
    peak_source: PeakSource
    bfloat16: bool


def _card(
    name: str, mebibytes: int, teraflops: float, source: PeakSource, *, bfloat16: bool = True
) -> Card:
    return Card(
        name=name,
        memory_bytes=mebibytes * MIB,
        peak_flops=teraflops * 1e12,
        peak_source=source,
        bfloat16=bfloat16,
    )


CARDS: tuple[Card, ...] = (
    _card("RTX 2060", 6144, 6.5, "assumed", bfloat16=False),
    _card("RTX 2070", 8192, 7.5, "assumed", bfloat16=False),
    _card("RTX 2080", 8192, 10.1, "assumed", bfloat16=False),
    _card("RTX 2080 Ti", 11264, 13.4, "assumed", bfloat16=False),
    _card("RTX 3050", 8192, 18.2, "assumed"),
    _card("RTX 3060", 12288, 25.5, "assumed"),
    _card("RTX 3060 Ti", 8192, 32.4, "assumed"),
    _card("RTX 3070", 8192, 40.6, "assumed"),
    _card("RTX 3070 Ti", 8192, 43.5, "assumed"),
    _card("RTX 3080", 10240, 59.5, "assumed"),
    _card("RTX 3080 Ti", 12288, 68.2, "assumed"),
    _card("RTX 3090", 24576, 71.0, "checked"),
    _card("RTX 3090 Ti", 24576, 80.0, "assumed"),
    _card("RTX 4060", 8188, 30.2, "assumed"),
    _card("RTX 4060 Ti", 8188, 44.1, "checked"),
    _card("RTX 4060 Ti 16GB", 16380, 44.1, "checked"),
    _card("RTX 4070", 12282, 58.3, "checked"),
    _card("RTX 4070 Super", 12282, 70.9, "assumed"),
    _card("RTX 4070 Ti", 12282, 80.2, "checked"),
    _card("RTX 4070 Ti Super", 16376, 88.2, "assumed"),
    _card("RTX 4080", 16376, 97.5, "checked"),
    _card("RTX 4080 Super", 16376, 104.4, "assumed"),
    _card("RTX 4090", 24564, 165.2, "checked"),
    _card("RTX 5060", 8151, 38.4, "assumed"),
    _card("RTX 5060 Ti", 8151, 47.4, "assumed"),
    _card("RTX 5060 Ti 16GB", 16311, 47.4, "assumed"),
    _card("RTX 5070", 12227, 61.7, "assumed"),
    _card("RTX 5070 Ti", 16303, 87.9, "assumed"),
    _card("RTX 5080", 16303, 112.6, "assumed"),
    _card("RTX 5090", 32607, 209.5, "assumed"),
    _card("RTX A2000", 12282, 31.9, "assumed"),
    _card("RTX A4000", 16376, 76.7, "assumed"),
    _card("RTX A5000", 24564, 111.1, "assumed"),
    _card("RTX A6000", 49140, 154.8, "assumed"),
    _card("RTX 6000 Ada", 49140, 364.2, "assumed"),
    _card("T4", 15360, 8.1, "checked", bfloat16=False),
    _card("V100 16GB", 16384, 15.7, "assumed", bfloat16=False),
    _card("V100 32GB", 32768, 15.7, "assumed", bfloat16=False),
    _card("A10", 23028, 125.0, "checked"),
    _card("A30", 24576, 165.0, "checked"),
    _card("A100 40GB", 40960, 312.0, "checked"),
    _card("A100 80GB", 81920, 312.0, "checked"),
    _card("L4", 23034, 121.0, "checked"),
    _card("L40", 46068, 181.0, "checked"),
    _card("L40S", 46068, 362.0, "checked"),
    _card("H100 PCIe", 81559, 756.0, "checked"),
    _card("H100", 81559, 989.0, "checked"),
    _card("H200", 143771, 989.0, "checked"),
    _card("B200", 183359, 2250.0, "assumed"),
    _card("MI300X", 196592, 1307.0, "assumed"),
)
_NOISE = {"nvidia", "geforce", "tesla", "amd", "instinct", "graphics", "gpu", "generation"}
_SOCKETS = {"sxm", "sxm2", "sxm4", "sxm5", "hbm2", "hbm2e", "hbm3", "hbm3e", "nvl"}


def find_card(name: str) -> Card:
    """A card by any name people or drivers give it: `4070`, `rtx 4070`, `NVIDIA GeForce RTX 4070`."""
    found = match_card(name)
    if found is None:
        near = _near(name)
        raise UsageError(
            f"no card {name!r} is known here; names like it: {', '.join(near)}",
            remedy=f"pass one of these, such as `--gpu {near[0]!r}`, or its memory: `--vram 12GiB`",
        )
    return found


def match_card(name: str, *, memory_bytes: int | None = None) -> Card | None:
    """The card of that name, or None. Of cards that share it, the one whose memory is nearest."""
    wanted = _words(name)
    if not wanted:
        return None
    same = [card for card in CARDS if _same(wanted, _words(card.name))]
    if not same:
        return None

    def distance(card: Card) -> tuple[float, int]:
        """Sizes stand in few names, but the driver knows them; of equal ones, the name decides."""
        words = len(wanted ^ _words(card.name))
        if memory_bytes is None:
            return words, card.memory_bytes
        return abs(card.memory_bytes - memory_bytes), words

    return min(same, key=distance)


def _same(wanted: frozenset[str], known: frozenset[str]) -> bool:
    """Equal but for what people leave out or drivers add: `RTX`, a size in GB, the kind of socket."""
    return all(_is_size(word) or word in ("rtx", "pcie") for word in wanted ^ known)


def _is_size(word: str) -> bool:
    return re.fullmatch(r"\d+g[bi]?b?", word) is not None


def _words(name: str) -> frozenset[str]:
    spaced = re.sub(r"(?<=\d)(ti|super)\b|(?<=rtx)(?=\d)", r" \1", name.lower())
    words = re.split(r"[^a-z0-9]+", re.sub(r"(\d)\s+(gi?b)\b", r"\1\2", spaced))
    return frozenset(word for word in words if word) - _NOISE - _SOCKETS


def _near(name: str) -> list[str]:
    plain = {" ".join(sorted(_words(card.name))): card.name for card in CARDS}
    close = difflib.get_close_matches(" ".join(sorted(_words(name))), plain, n=5, cutoff=0.3)
    return [plain[one] for one in close] or ["RTX 3060", "RTX 4070", "RTX 4090", "A100 80GB"]
