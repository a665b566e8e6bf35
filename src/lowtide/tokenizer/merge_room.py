"""How an allowance is spent on learning merges: the width of cells, the tables of pairs, the lists of places.

words as cells │ a table of pairs, and a queue │ lists of places
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowtide.errors import DoesNotFitError
from lowtide.units import MIB, format_bytes, round_up_to_mib

_MOST_CELLS = (1 << 32) - 1
_PAIR_BYTES = 16 + 12
"""A slot in the table of pairs, and half an entry in the queue."""
_RECOUNT_BYTES = 24 + 12
"""More for each slot while pairs are counted anew."""
_LEAST_PAIR_SLOTS, _MANY_PAIR_SLOTS = 1 << 16, 1 << 20
_CELLS_A_SLOT = 64
"""A table that stays in the processor's cache is faster; one that is too small has pairs counted anew."""
_SYMBOL_BYTES = 192
_WRITTEN_BYTES = 1000
"""For each token while files are written: as bytes, as text, in two JSON files."""
_PLACE_BYTES = 4
_PLACES_A_CELL = 3
"""More are never needed: one for each cell at first, two for each merge."""
_GOOD_PLACES_A_CELL, _FEW_PLACES_A_CELL, _LEAST_PLACES_A_CELL = 0.25, 0.04, 0.02
"""With fewer than the first, pairs are counted anew more often; the commonest pair of bytes stands at up to a
twentieth of all places."""
_MORE_PLACES = 1024
_SYMBOLS_BY_BITS = {8: 239, 16: (1 << 16) - 65, 32: (1 << 31) - 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeAllowances:
    """How an allowance is spent on learning merges."""

    bits: int
    """Width of a cell."""
    cells_in_file: bool
    pair_slots: int
    list_room: int
    """Places that all lists together may hold."""
    needs: dict[str, int]


def spend_on_merges(
    cell_count: int,
    symbol_count: int,
    most_symbols: int,
    allowance_bytes: int,
    *,
    slot_counts: Sequence[int] = (),
) -> MergeAllowances:
    """The widest cells, tables and lists that the allowance carries.

    Narrow cells are enough until there are 239 symbols; from then on words are shorter, and wider cells fit
    where they did not. Short lists cost time; cells in a mapped file cost far more, and come last. The table of
    pairs has one of `slot_counts`, where it is not free to choose any more.
    """
    slot_counts = slot_counts or _slot_counts(cell_count, most_symbols)
    if cell_count > _MOST_CELLS:
        raise DoesNotFitError(
            f"the distinct words are {format_bytes(cell_count)} together, and merges can be learnt from "
            f"{format_bytes(_MOST_CELLS)} at most",
            remedy="leave out files of random or encoded data: ordinary text of a terabyte has fewer",
        )
    wide = 16 if most_symbols <= _SYMBOLS_BY_BITS[16] else 32
    widths = [wide, 8] if symbol_count < _SYMBOLS_BY_BITS[8] * 3 // 4 else [wide]
    for places_a_cell in (_GOOD_PLACES_A_CELL, _FEW_PLACES_A_CELL):
        for bits in widths:
            for slots in slot_counts:
                needs = _needs(most_symbols, slots) | {"words": cell_count * bits // 8}
                places = (allowance_bytes - sum(needs.values())) // _PLACE_BYTES
                if places >= cell_count * places_a_cell + _MORE_PLACES:
                    return _with_lists(bits, slots, places, cell_count, needs, in_file=False)
    return spend_with_file(cell_count, most_symbols, allowance_bytes, slot_counts=slot_counts)


def spend_with_file(
    cell_count: int, most_symbols: int, allowance_bytes: int, *, slot_counts: Sequence[int]
) -> MergeAllowances:
    """The same with the cells in a file: all memory that is left goes to the lists."""
    wide = 16 if most_symbols <= _SYMBOLS_BY_BITS[16] else 32
    for slots in slot_counts:
        needs = _needs(most_symbols, slots)
        places = (allowance_bytes - sum(needs.values())) // _PLACE_BYTES
        if places >= cell_count * _LEAST_PLACES_A_CELL + _MORE_PLACES:
            return _with_lists(wide, slots, places, cell_count, needs, in_file=True)
    raise _does_not_fit(cell_count, most_symbols, allowance_bytes)


def _needs(most_symbols: int, slots: int) -> dict[str, int]:
    return {
        "symbols": most_symbols * _SYMBOL_BYTES + MIB,
        "pairs": slots * (_PAIR_BYTES + _RECOUNT_BYTES),
    }


def _with_lists(
    bits: int, slots: int, places: int, cell_count: int, needs: dict[str, int], *, in_file: bool
) -> MergeAllowances:
    room = min(places, _PLACES_A_CELL * cell_count + _MORE_PLACES, _MOST_CELLS)
    return MergeAllowances(
        bits=bits,
        cells_in_file=in_file,
        pair_slots=slots,
        list_room=room,
        needs=needs | {"lists of places": room * _PLACE_BYTES},
    )


def check_merge_room(most_merges: int, allowance_bytes: int) -> None:
    """Refuse a vocabulary that cannot be learnt in this allowance from any words, before any are counted."""
    symbols = 256 + most_merges
    spend_on_merges(symbols, 256, symbols, allowance_bytes)
    written = symbols * _WRITTEN_BYTES
    if written > allowance_bytes:
        raise DoesNotFitError(
            f"writing a vocabulary of {symbols} tokens needs {format_bytes(written)}, and "
            f"{format_bytes(allowance_bytes)} are left of the budget",
            remedy=f"pass a `--memory` that is {round_up_to_mib(written - allowance_bytes)} larger, or a "
            "smaller `--vocab-size`",
        )


def _slot_counts(cell_count: int, most_symbols: int) -> list[int]:
    """Sizes of the table of pairs to try, each half of the one before. A merge may bring two pairs a symbol."""
    least = _power_of_two(max(_LEAST_PAIR_SLOTS, 2 * min(most_symbols, cell_count)))
    many = min(max(4 * most_symbols, cell_count // _CELLS_A_SLOT), _MANY_PAIR_SLOTS)
    best = _power_of_two(max(least, many))
    return [best >> shift for shift in range((best // least).bit_length())]


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


def _does_not_fit(cell_count: int, most_symbols: int, allowance_bytes: int) -> DoesNotFitError:
    least_slots = _slot_counts(cell_count, most_symbols)[-1]
    places = int(cell_count * _LEAST_PLACES_A_CELL) + _MORE_PLACES + 1
    least = sum(_needs(most_symbols, least_slots).values()) + places * _PLACE_BYTES
    more = round_up_to_mib(max(least - allowance_bytes, MIB))
    return DoesNotFitError(
        f"learning merges needs at least {format_bytes(least)}, and {format_bytes(allowance_bytes)} are "
        "left of the budget",
        remedy=f"pass a `--memory` that is {more} larger, or a smaller `--vocab-size`",
    )
