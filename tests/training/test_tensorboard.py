"""Event files hold what was told, checked by a reader that shares no line with the writer."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import UsageError
from lowtide.training.tensorboard import EventFile, crc32c, open_wandb

Fields = dict[int, list[int | bytes]]


def _crc_bit_by_bit(data: bytes) -> int:
    """Division of polynomials, one bit at a time, as the standard (RFC 3720) writes it."""
    rest = 0xFFFFFFFF
    for byte in data:
        for place in range(8):
            bit = (byte >> place & 1) ^ (rest & 1)
            rest = rest >> 1 ^ (0x82F63B78 if bit else 0)
    return rest ^ 0xFFFFFFFF


def _records(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        for start, size in ((at, 8), (at + 12, length)):
            (stored,) = struct.unpack_from("<I", data, start + size)
            turned = (stored - 0xA282EAD8) % 2**32
            plain = (turned >> 17 | turned << 15) % 2**32
            assert plain == _crc_bit_by_bit(data[start : start + size])
        yield data[at + 12 : at + 12 + length]
        at += 16 + length


def _fields(data: bytes) -> Fields:
    """A protobuf message: numbers and strings by field."""
    found: Fields = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        value: int | bytes
        if key & 7 == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            value, at = data[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def _inside(fields: Fields, *path: int) -> Fields:
    for number in path:
        (value,) = fields[number]
        assert isinstance(value, bytes)
        fields = _fields(value)
    return fields


def _scalars(event: Fields) -> dict[str, float]:
    found = {}
    for value in _inside(event, 5)[1]:
        assert isinstance(value, bytes)
        (tag,), (number,) = (_fields(value)[key] for key in (1, 2))
        assert isinstance(tag, bytes)
        assert isinstance(number, bytes)
        (found[tag.decode()],) = struct.unpack("<f", number)
    return found


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


@given(
    points=st.lists(
        st.tuples(
            st.integers(0, 2**62),
            st.dictionaries(
                st.text(max_size=200), st.floats(width=32, allow_nan=False), min_size=1
            ),
        ),
        max_size=5,
    )
)
def test_what_was_told_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, points: list[tuple[int, dict[str, float]]]
) -> None:
    points = [(step, {_encodable(tag): x for tag, x in told.items()}) for step, told in points]
    file = EventFile(tmp_path_factory.mktemp("run"), clock=lambda: 1234.5)
    for step, values in points:
        file.scalars(step, values)
    file.close()
    first, *events = map(_fields, _records(file.path))
    assert first[3] == [b"brain.Event:2"]
    assert [(event[2][0], _scalars(event)) for event in events] == points
    assert all(event[1] == [struct.pack("<d", 1234.5)] for event in events)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def test_numbers_beyond_float32_are_still_drawn(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.scalars(1, {"a": 1e300, "b": -1e300, "c": math.nan, "d": math.inf})
    found = _scalars(list(map(_fields, _records(file.path)))[1])
    assert (found["a"], found["b"], found["d"]) == (math.inf, -math.inf, math.inf)
    assert math.isnan(found["c"])
    file.close()


def test_a_text_is_a_string_tensor_for_the_text_tab(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.text(7, "sample", "Once 中 \udc80\n")
    file.close()
    file.close()
    value = _inside(list(map(_fields, _records(file.path)))[1], 5, 1)
    assert value[1] == [b"sample"]
    assert _inside(value, 9, 1)[1] == [b"text"]
    tensor = _inside(value, 8)
    assert (tensor[1], tensor[8]) == ([7], ["Once 中 \\udc80\n".encode()])
    assert _inside(tensor, 2, 2)[1] == [1]


def test_a_resumed_run_gets_a_later_file_that_hides_what_was_taken_back(tmp_path: Path) -> None:
    first = EventFile(tmp_path, clock=lambda: 5000.0)
    second = EventFile(tmp_path, after_step=10, clock=lambda: 10.0)  # the clock was set back
    for file in (first, second):
        file.close()
    assert sorted(tmp_path.iterdir()) == [first.path, second.path]
    assert len(list(_records(first.path))) == 1
    start = _fields(list(_records(second.path))[1])
    assert (start[2], _inside(start, 7)[1]) == ([11], [1])


def test_without_weights_and_biases_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="not installed") as caught:
        open_wandb("project", {})
    assert "pip install 'lowtide[wandb]'" in caught.value.remedy


_STAND_IN = """
said = []
class Html:
    def __init__(self, text): self.text = text
class Run:
    def log(self, values, step): said.append((step, values))
    def finish(self): said.append("finished")
def init(**named):
    said.append(named)
    return Run()
"""


def test_weights_and_biases_gets_what_tensorboard_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text(_STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    board = open_wandb("tides", {"steps": 5}, run_id="abc")
    board.scalars(3, {"loss": 1.5})
    board.text(4, "sample", "<b>")
    board.close()
    start, scalars, text, end = sys.modules["wandb"].said
    sys.modules.pop("wandb")
    assert start == {"project": "tides", "config": {"steps": 5}, "id": "abc", "resume": "allow"}
    assert scalars == (3, {"loss": 1.5})
    assert (text[0], text[1]["sample"].text) == (4, "<pre>&lt;b&gt;</pre>")
    assert end == "finished"


def test_nothing_of_weights_and_biases_or_torch_is_imported_unasked() -> None:
    code = (
        "import sys, lowtide.training.tensorboard, lowtide.journal, lowtide.training.watch_loss\n"
        "assert not {'wandb', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
