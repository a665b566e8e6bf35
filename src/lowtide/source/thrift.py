"""Numbers in Thrift's compact encoding and Parquet's delta encodings: 7 bits a byte, the lowest first."""

from __future__ import annotations


class EndlessNumberError(Exception):
    """A number of more than 64 bits: the bytes are something else."""


def take_varint(data: bytes | memoryview, place: int) -> tuple[int, int]:
    """The number at `place` and the place behind it; IndexError where the bytes end first.

    >>> take_varint(bytes([0xAC, 0x02]), 0)
    (300, 2)
    """
    value = shift = 0
    while True:
        octet = data[place]
        place += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise EndlessNumberError(f"a number without an end at byte {place}")


def signed(value: int) -> int:
    """The number that was stored as 0, -1, 1, -2, …"""
    return (value >> 1) ^ -(value & 1)
