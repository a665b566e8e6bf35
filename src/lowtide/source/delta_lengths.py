"""How long the values of a Parquet page in DELTA_BYTE_ARRAY encoding are, from its lengths alone.

Each value is stored as the number of bytes it shares with the one before it and as the rest, so a page of
two kilobytes may stand for gigabytes. Both numbers lie at the front of the page, packed as differences:

    lengths of the shared parts │ lengths of the rests │ the rests, one behind the other

    packed: block size, miniblocks a block, count, first value, then blocks:
            least difference, a bit width for each miniblock, the miniblocks
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowtide.source.thrift import EndlessNumberError, signed, take_varint

_UNPACKED_VALUES = 4096
"""Unpacked at a time; a multiple of 8, so that each part begins with a whole byte."""
_WIDEST_BITS = 64
_LONGEST_BYTES = 2**31 - 1


class DamagedLengthsError(Exception):
    """The bytes where packed numbers should be are none."""


def value_lengths(data: memoryview, most_count: int) -> npt.NDArray[np.int64]:
    """Bytes of each value of a page once it is expanded. A page of more than `most_count` values is damaged."""
    shared, end = read_packed(data, most_count)
    rests, _ = read_packed(data[end:], most_count)
    if len(shared) != len(rests):
        raise DamagedLengthsError("a page with lengths that do not belong together")
    for lengths in (shared, rests):
        if len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= _LONGEST_BYTES:
            raise DamagedLengthsError("a value of a length that cannot be")
    return shared + rests


def read_packed(data: memoryview, most_count: int) -> tuple[npt.NDArray[np.int64], int]:
    """Numbers in DELTA_BINARY_PACKED encoding, and where they end."""
    try:
        return _read_packed(data, most_count)
    except (IndexError, EndlessNumberError):
        raise DamagedLengthsError("packed numbers that break off") from None


def _read_packed(data: memoryview, most_count: int) -> tuple[npt.NDArray[np.int64], int]:
    block_values, place = take_varint(data, 0)
    miniblocks, place = take_varint(data, place)
    count, place = take_varint(data, place)
    first, place = _zigzag(data, place)
    if count > most_count:
        raise DamagedLengthsError(f"{count} packed numbers, where there are {most_count} values")
    if not 0 < miniblocks <= block_values or block_values % (32 * miniblocks):
        raise DamagedLengthsError(f"{miniblocks} miniblocks in a block of {block_values} numbers")
    values = np.zeros(count, dtype=np.int64)
    if count:
        values[0] = _wrapped(first)
    filled, each = 1, block_values // miniblocks
    while filled < count:
        least, place = _zigzag(data, place)
        widths = data[place : place + miniblocks]
        place += miniblocks
        if len(widths) < miniblocks:
            raise IndexError
        for width in widths:
            if filled >= count:
                break  # widths of miniblocks that are not there may be anything
            taken = min(each, count - filled)
            place = _unpack(data, place, width, each, values[filled : filled + taken])
            values[filled : filled + taken] += _wrapped(least)
            filled += taken
    np.cumsum(values, out=values)  # wraps around as the encoding does
    return values, place


def _unpack(data: memoryview, place: int, width: int, each: int, out: npt.NDArray[np.int64]) -> int:
    """Fill in the first numbers of a miniblock; returns where the next one begins."""
    if width > _WIDEST_BITS:
        raise DamagedLengthsError(f"packed numbers of {width} bits")
    needed = -(-len(out) * width // 8)
    packed = np.frombuffer(data[place : place + needed], dtype=np.uint8)
    if len(packed) < needed:
        raise IndexError
    places = np.left_shift(np.uint64(1), np.arange(width, dtype=np.uint64))
    for start in range(0, len(out) if width else 0, _UNPACKED_VALUES):  # a bit takes 9 bytes here
        part = out[start : start + _UNPACKED_VALUES]
        some = packed[start * width // 8 : -(-(start + len(part)) * width // 8)]
        bits = np.unpackbits(some, bitorder="little")[: len(part) * width]
        part[:] = (bits.reshape(-1, width).astype(np.uint64) @ places).view(np.int64)
    return min(place + -(-each * width // 8), len(data))


def _zigzag(data: memoryview, place: int) -> tuple[int, int]:
    value, place = take_varint(data, place)
    return signed(value), place


def _wrapped(number: int) -> np.int64:
    """A number as 64 bits have it."""
    return np.int64((number + 2**63) % 2**64 - 2**63)
