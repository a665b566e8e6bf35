"""Rows of Python become what their file would become, in bounded memory; errors of an iterable stay its own."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide.errors import DataError, LowtideError, StoppedError, UsageError
from lowtide.source.find_inputs import find_inputs
from lowtide.source.stream import read_blocks
from lowtide.source.take_inputs import take_inputs
from lowtide.units import MIB
from tests.commands import bytes_of
from tests.corpora import make_documents
from tests.laws.chats import HOSTILE, make_chats
from tests.source.readings import START, contents_of, reading

TEXTS = st.text(st.characters(exclude_categories=())) | st.sampled_from(HOSTILE)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


def write_rows(path: Path, rows: Iterable[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def bytes_but_inputs(folder: Path) -> dict[str, bytes]:
    """What a run wrote, but for the names of its inputs."""
    found = bytes_of(folder)
    manifest = json.loads(found.pop("lowtide.json"))
    for name in ("inputs", "seal"):
        manifest.pop(name, None)
    for row in manifest["first_bad_rows"]:
        assert row.pop("file")
        assert row.pop("unit") in ("line", "row")
    return found | {"lowtide.json": json.dumps(manifest).encode()}


@given(
    rows=st.lists(
        st.fixed_dictionaries({"text": TEXTS | JSON}, optional={"more": JSON}), max_size=20
    ),
    block_bytes=st.sampled_from([1, 100, MIB]),
)
def test_rows_are_read_as_the_lines_of_their_file(
    rows: list[dict[str, object]], block_bytes: int
) -> None:
    settings = reading(bad_text="replace", block_bytes=block_bytes)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_rows(Path(folder, "a.jsonl"), rows))
        for inputs in ([path], take_inputs(iter(rows), column="text")):
            blocks = read_blocks(find_inputs(inputs), settings, start=START)
            found.append(contents_of(list(blocks)))
    bad = [[(row.position, row.reason) for row in one.bad] for one in found]
    assert bad[0] == bad[1]
    assert replace(found[0], bad=()) == replace(found[1], bad=())


def test_texts_and_rows_become_what_their_file_becomes(tmp_path: Path) -> None:
    texts = [*HOSTILE, "lone \ud800", *make_documents(4, count=200)]
    rows = [{"text": text, "number": number} for number, text in enumerate(texts)]
    chosen = {"bad_text": "replace", "val": 0.2, "shard_tokens": 10_000}
    lowtide.tokenize(write_rows(tmp_path / "a.jsonl", rows), tmp_path / "file", **chosen)
    wanted = bytes_but_inputs(tmp_path / "file")
    for kind, inputs in {"rows": rows, "texts": iter(texts)}.items():
        lowtide.tokenize(inputs, tmp_path / kind, **chosen)
        assert bytes_but_inputs(tmp_path / kind) == wanted


@pytest.mark.parametrize("memory", ["256MiB", "1GiB"])
def test_chats_become_what_their_file_becomes(tmp_path: Path, memory: str) -> None:
    rows = [{"messages": chat, "score": 0.5} for chat in make_chats(3, count=400)]
    path = write_rows(tmp_path / "a.jsonl", rows)
    chosen = {"examples": "chat", "context": 128, "bad_text": "skip", "memory": memory}
    lowtide.tokenize(path, tmp_path / "file", **chosen)
    lowtide.tokenize(iter(rows), tmp_path / "rows", **chosen)
    assert bytes_but_inputs(tmp_path / "rows") == bytes_but_inputs(tmp_path / "file")


def test_a_dataset_of_hugging_face_is_its_rows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"code": text, "n": n} for n, text in enumerate(make_documents(5, count=50))]
    path = write_rows(tmp_path / "a.jsonl", rows)
    lowtide.tokenize(path, tmp_path / "file", column="code")
    wanted = bytes_but_inputs(tmp_path / "file")
    dataset = datasets.Dataset.from_list(rows)
    for name, inputs in {"map": dataset, "stream": dataset.to_iterable_dataset()}.items():
        lowtide.tokenize(inputs, tmp_path / name, column="code")
        assert bytes_but_inputs(tmp_path / name) == wanted
    with pytest.raises(UsageError, match="train"):
        lowtide.tokenize(datasets.DatasetDict({"train": dataset}), tmp_path / "out", column="code")


def test_a_vocabulary_is_learnt_from_rows_as_from_their_file(tmp_path: Path) -> None:
    texts = make_documents(7, count=60)
    path = write_rows(tmp_path / "a.jsonl", ({"text": text} for text in texts))
    for name, inputs in {"file": path, "texts": iter(texts)}.items():
        lowtide.train_tokenizer(inputs, tmp_path / name, vocab_size=400, val=0.2)
    for name in ("tokenizer.json", "merges.txt"):
        assert (tmp_path / "texts" / name).read_bytes() == (tmp_path / "file" / name).read_bytes()


def test_no_rows_are_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    for call in (lowtide.tokenize, lowtide.train_tokenizer):
        told = []
        for inputs in (tmp_path / "empty.jsonl", iter(())):
            with pytest.raises(DataError) as refused:
                call(inputs, tmp_path / "out")  # type: ignore[arg-type]
            told.append(refused.value.problem)
        assert told[0] == told[1]
    assert not (tmp_path / "out").exists()


class Unheard(BaseException):
    """As KeyboardInterrupt is."""


@pytest.mark.parametrize(
    ("error", "after"),
    [
        (ValueError("theirs"), 3),
        (OSError(5, "theirs"), 3),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "theirs"), 3),
        (UsageError("theirs", remedy="theirs"), 3),
        (KeyboardInterrupt(), 3),
        (Unheard(), 1500),
        (MemoryError("theirs"), 1500),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("call", [lowtide.tokenize, lowtide.train_tokenizer])
def test_an_error_of_the_iterable_comes_out_as_itself(
    tmp_path: Path, call: Callable[..., object], error: BaseException, after: int
) -> None:
    def rows() -> Iterator[str]:
        yield from itertools.islice(itertools.cycle(make_documents(1, count=30)), after)
        raise error

    with pytest.raises(BaseException) as raised:
        call(rows(), tmp_path / "out", memory="256MiB")
    assert error in (raised.value, raised.value.__cause__)
    assert not list((tmp_path / "out").glob("lowtide*.json"))
    texts = make_documents(1, count=30)
    call(iter(texts), tmp_path / "out", memory="256MiB", restart=True)
    assert list((tmp_path / "out").glob("lowtide*.json"))


@pytest.mark.parametrize("value", [None, 7, float("nan"), ["text"], "\ud800"], ids=repr)
@pytest.mark.parametrize("call", [lowtide.tokenize, lowtide.train_tokenizer])
def test_a_row_without_text_is_named_or_left_out(
    tmp_path: Path, call: Callable[..., object], value: object
) -> None:
    rows = [{"text": "a tide"}] * 2000 + [{"text": value}, {"text": "the last"}]
    with pytest.raises(DataError, match=r"row 2001\b"):
        call(rows, tmp_path / "out")
    call(rows, tmp_path / "other", bad_text="skip")


def test_an_endless_iterable_can_be_stopped_and_never_resumed(tmp_path: Path) -> None:
    drawn = 0
    done: list[int] = []

    def rows() -> Iterator[str]:
        nonlocal drawn
        for text in itertools.cycle(make_documents(2, count=50)):
            drawn += len(text.encode())
            yield text

    def should_stop() -> str | None:
        return "interrupted" if drawn > 12_000_000 else None

    def listen(event: object) -> None:
        done.append(getattr(event, "done_bytes", 0))

    call = {"memory": "256MiB", "workers": 1, "listen": listen}
    with pytest.raises(StoppedError) as stopped:
        lowtide.tokenize(rows(), tmp_path / "out", should_stop=should_stop, **call)  # type: ignore[arg-type]
    assert drawn - max(done) < 4_000_000  # no more than some blocks ahead of what is done
    with pytest.raises(UsageError) as refused:
        lowtide.tokenize(rows(), tmp_path / "out", **call)  # type: ignore[arg-type]
    for error in (stopped.value, refused.value):
        assert isinstance(error, LowtideError)
        assert "restart=True" in error.remedy
    made = lowtide.tokenize(iter(["a", "b"]), tmp_path / "out", restart=True)
    assert made.manifest.documents == 2
    with pytest.raises(UsageError) as again:
        lowtide.tokenize(iter(["a", "b"]), tmp_path / "out")
    assert "restart=True" in again.value.remedy


def test_what_was_read_once_is_verified_without_it(tmp_path: Path) -> None:
    lowtide.tokenize(iter(make_documents(3, count=20)), tmp_path / "out")
    proof = lowtide.verify(tmp_path / "out")
    assert proof.verification.sound
    assert proof.compared_documents == 0
    assert proof.comparison
    (found,) = json.loads((tmp_path / "out" / "lowtide.json").read_text())["inputs"]
    assert (found["name"], found["kind"], found["fingerprint"]) == ("<iterable>", "jsonl", "")
