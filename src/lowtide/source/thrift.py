"""Thrift's compact encoding, in which Parquet stores its footer and the headers of its pages.

struct    fields, each a byte of `step << 4 | kind` and a value; a zero byte ends it
integer   7 bits a byte, the lowest first; signed ones as 0, -1, 1, -2, …
binary    its length and its bytes
list      a byte of `count << 4 | kind` (count 15: the count follows), and the items
"""

from __future__ import annotations

from collections.abc import Iterator

TRUE, FALSE, BYTE, DOUBLE, BINARY, STRUCT = 1, 2, 3, 7, 8, 12
INTEGERS = (4, 5, 6)
LISTS = (9, 10)


class DamagedParquetError(Exception):
    """Bytes of a Parquet file are not what should be there."""


class ThriftReader:
    """Values one after the other. IndexError: the bytes end before the value does."""

    def __init__(self, data: bytes | memoryview, place: int = 0) -> None:
        self.data = data
        self.place = place

    def byte(self) -> int:
        """The next byte."""
        value = self.data[self.place]
        self.place += 1
        return value

    def varint(self) -> int:
        """An unsigned number.

        >>> ThriftReader(bytes([0xAC, 0x02])).varint()
        300
        """
        data, place = self.data, self.place
        value = shift = 0
        while True:
            octet = data[place]
            place += 1
            value |= (octet & 0x7F) << shift
            if octet < 0x80:
                self.place = place
                return value
            shift += 7
            if shift > 63:
                raise DamagedParquetError(f"a number without an end at byte {place}")

    def zigzag(self) -> int:
        """A signed number.

        >>> [ThriftReader(bytes([octet])).zigzag() for octet in range(4)]
        [0, -1, 1, -2]
        """
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> memoryview:
        """A string of bytes, not copied: it may be all of a footer."""
        length = self.varint()
        self.skip(length)
        return memoryview(self.data)[self.place - length : self.place]

    def list_header(self) -> tuple[int, int]:
        """The kind of a list's items and how many there are."""
        header = self.byte()
        count = header >> 4
        if count == 15:
            count = self.varint()
        if count > len(self.data) - self.place:  # an item takes a byte at least
            raise DamagedParquetError("a list that is longer than what holds it")
        return header & 0x0F, count

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and kind of each field of a struct; the caller reads the value before it asks again."""
        number = 0
        while header := self.byte():
            step = header >> 4
            number = number + step if step else self.zigzag()
            yield number, header & 0x0F

    def skip(self, count: int) -> None:
        """Move on by so many bytes."""
        self.place += count
        if self.place > len(self.data):
            raise IndexError
