"""Processes of templates and of the reference end with the call that started them, whatever its outcome."""

from __future__ import annotations

import math
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

import lowtide
from bench.tokenizer_variants import Variant, make_text
from lowtide.errors import DataError, LowtideError, SharedFaultError, StoppedError, UsageError
from lowtide.events import Advanced, Event
from lowtide.settings import TokenizeSettings
from lowtide.source.blocks import Block
from lowtide.source.stream import Cursor, read_blocks
from lowtide.stages.encode_blocks import BlockEncoder
from lowtide.stages.estimate import estimate
from lowtide.stages.examine import verify
from lowtide.stages.prepare import prepare
from lowtide.tokenizer.encode import Encoder
from lowtide.tokenizer.reference_apart import ReferenceApart
from tests.commands import LOWTIDE, killed_on_failure
from tests.source.examples.rows import write_chats

RENDERS = "{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}"
GOOD = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
UNLEARNT = [{"role": "user", "content": "hi"}]
EARLIER: set[psutil.Process] = set()
Found = TypeVar("Found")
MODULES = {"lowtide.source.examples.render_child", "lowtide.tokenizer.reference_apart"}


def children(process: psutil.Process | None = None) -> list[psutil.Process]:
    """The processes of templates and of references below this one, or below another."""
    found = []
    for child in (process or psutil.Process()).children(recursive=True):
        try:
            if child not in EARLIER and MODULES & {*child.cmdline()}:
                found.append(child)
        except psutil.Error:  # it has just ended
            continue
    return found


@pytest.fixture(autouse=True)
def _none_of_other_tests() -> None:
    EARLIER.clear()
    EARLIER.update(children())


class Seen:
    """Listens to a run and counts its children; interrupts it when there is one, if that is asked for."""

    def __init__(self, *, interrupts: bool = False) -> None:
        self.most = 0
        self._interrupts = interrupts

    def __call__(self, _event: Event) -> None:
        self.most = max(self.most, len(children()))
        if self.most and self._interrupts:
            raise KeyboardInterrupt


def chat_settings(folder: Path, source: str, **changes: object) -> TokenizeSettings:
    (folder / "t.jinja").write_text(source)
    return TokenizeSettings(
        template=str(folder / "t.jinja"),
        examples="chat",
        context=64,
        val=0.0,
        **changes,  # type: ignore[arg-type]
    )


def test_a_templates_process_ends_with_its_run(tmp_path: Path) -> None:
    rows = write_chats(tmp_path / "a.jsonl", [GOOD] * 3)
    settings = chat_settings(tmp_path, RENDERS)
    seen = Seen()
    lowtide.tokenize([rows], tmp_path / "out", settings, listen=seen)
    assert (seen.most, children()) == (1, [])
    estimate([str(rows)], tmp_path / "other", settings)
    assert children() == []
    assert verify(tmp_path / "out").compared_documents == 3
    assert children() == []


@pytest.mark.parametrize(
    ("source", "changes", "error"),
    [
        (RENDERS, {}, DataError),
        (RENDERS + "{{ 'x' * 10**12 }}", {}, SharedFaultError),
        (RENDERS + "{% for %}", {}, UsageError),
        (RENDERS + "{{ pad_token }}", {}, UsageError),
        (RENDERS, {"column": "nonsense=x"}, UsageError),
        (RENDERS, {"column": "conversations"}, UsageError),
    ],
    ids=["a row", "the template", "its grammar", "its names", "the settings", "the columns"],
)
@pytest.mark.parametrize("run", ["tokenize", "dry-run"])
def test_a_templates_process_ends_with_a_refusal(
    tmp_path: Path, source: str, changes: dict[str, object], error: type[LowtideError], run: str
) -> None:
    """The error is kept, and what it refers to; the process is not."""
    rows = write_chats(tmp_path / "a.jsonl", [GOOD, UNLEARNT])
    settings = chat_settings(tmp_path, source, **changes)
    call: Callable[..., object] = lowtide.tokenize if run == "tokenize" else estimate
    with pytest.raises(error) as caught:
        call([str(rows)], tmp_path / "out", settings)
    assert children() == []
    del caught


def test_a_templates_process_ends_with_an_interrupt(tmp_path: Path) -> None:
    rows = write_chats(tmp_path / "a.jsonl", [GOOD])
    with pytest.raises(KeyboardInterrupt) as caught:
        lowtide.tokenize(
            [rows],
            tmp_path / "out",
            chat_settings(tmp_path, RENDERS),
            listen=Seen(interrupts=True),
        )
    assert children() == []
    del caught


@pytest.mark.slow  # starts the command
@pytest.mark.parametrize("flags", [[], ["--dry-run"]], ids=["tokenize", "dry-run"])
def test_ctrl_c_while_a_template_is_compiled_leaves_no_process(
    tmp_path: Path, flags: list[str]
) -> None:
    """A run takes the first as a wish to stop after a block, and ends at once with the second."""
    rows = write_chats(tmp_path / "a.jsonl", [GOOD])
    (tmp_path / "t.jinja").write_text("{{ 7 ** (7 ** 9) }}")  # seconds, to fold the constant
    command = [*LOWTIDE, "tokenize", rows, "--examples", "chat", *flags]
    command += ["--template", tmp_path / "t.jinja", "--out", tmp_path / "out"]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with killed_on_failure(started) as process:
        (child,) = until(lambda: children(psutil.Process(process.pid)))
        until(lambda: child.cpu_times().user > 0.5)  # it has started, and works
        process.send_signal(signal.SIGINT)
        if not flags:
            time.sleep(0.3)  # two that come at once are one
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert not child.is_running()
    assert not (tmp_path / "out").exists()


def until(find: Callable[[], Found]) -> Found:
    """What is found at last."""
    end = time.monotonic() + 60
    while not (found := find()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


# The reference


def reference_settings(folder: Path, **changes: object) -> TokenizeSettings:
    """With a tokenizer that only tokenizers reads right."""
    path = folder / "tokenizer.json"
    path.write_bytes(Variant(normalizer="NFKD").content())
    return TokenizeSettings(tokenizer=str(path), eot="none", val=0.0, **changes)  # type: ignore[arg-type]


def write_text(folder: Path, size: int, name: str = "a.txt") -> Path:
    path = folder / name
    path.write_text(make_text(random.Random(1), "prose", size))
    return path


def test_the_references_process_ends_with_its_run(tmp_path: Path) -> None:
    settings = reference_settings(tmp_path)
    path = write_text(tmp_path, 2000)
    seen = Seen()
    lowtide.tokenize([path], tmp_path / "out", settings, listen=seen)
    assert (seen.most, children()) == (1, [])
    estimate([str(path)], tmp_path / "other", settings)
    assert children() == []


@pytest.mark.parametrize("run", ["tokenize", "dry-run"])
def test_the_references_process_ends_with_a_refusal(tmp_path: Path, run: str) -> None:
    """What cannot be encoded follows on what was: the process is there when it comes."""
    path = write_text(tmp_path, 2000)
    (tmp_path / "b.txt").write_bytes(b"not UTF-8: \xff" * 30_000)
    call: Callable[..., object] = lowtide.tokenize if run == "tokenize" else estimate
    with pytest.raises(DataError) as caught:
        call([str(path), str(tmp_path / "b.txt")], tmp_path / "out", reference_settings(tmp_path))
    assert children() == []
    del caught


def test_the_references_process_ends_with_an_interrupt(tmp_path: Path) -> None:
    path = write_text(tmp_path, 2000)
    with pytest.raises(KeyboardInterrupt) as caught:
        lowtide.tokenize(
            [path], tmp_path / "out", reference_settings(tmp_path), listen=Seen(interrupts=True)
        )
    assert children() == []
    del caught


@pytest.fixture
def nothing_hangs() -> Iterator[None]:
    """Kill children that are left after five minutes: a test whose stop is not heard fails then."""

    def kill() -> None:
        for child in children():
            child.kill()

    timer = threading.Timer(300, kill)
    timer.start()
    yield
    timer.cancel()


@contextmanager
def suspended_children() -> Iterator[tuple[Callable[[], None], set[psutil.Process]]]:
    """Once the function is called, children are suspended, later ones as soon as they are there; and these."""
    has_begun, is_over = threading.Event(), threading.Event()
    suspended: set[psutil.Process] = set()

    def suspend() -> None:
        for child in {*children()} - suspended:
            with suppress(psutil.NoSuchProcess):
                child.suspend()
                suspended.add(child)

    def begin() -> None:
        suspend()
        has_begun.set()

    def suspend_later_ones() -> None:
        has_begun.wait()
        while not is_over.is_set():
            suspend()
            time.sleep(0.001)

    thread = threading.Thread(target=suspend_later_ones)
    thread.start()
    try:
        yield begin, suspended
    finally:
        is_over.set()
        has_begun.set()
        thread.join()


@pytest.mark.usefixtures("nothing_hangs")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_ends_a_run_whose_reference_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.undo()  # of `_stops_wait_for_a_block`, which lets no stop interrupt a block
    files = [write_text(tmp_path, 300_000, f"{number}.txt") for number in range(10)]
    silent_since = math.inf

    def listen(event: Event) -> None:
        nonlocal silent_since
        if isinstance(event, Advanced) and silent_since == math.inf:
            suspend()
            silent_since = time.monotonic()

    with suspended_children() as (suspend, suspended), pytest.raises(StoppedError):
        lowtide.tokenize(
            [*map(str, files)],
            tmp_path / "out",
            reference_settings(tmp_path),
            memory="512MiB",
            workers=workers,
            listen=listen,
            should_stop=lambda: "terminated" if time.monotonic() > silent_since + 0.5 else None,
        )
    assert suspended
    assert children() == []


@pytest.mark.usefixtures("nothing_hangs")
@pytest.mark.parametrize("limit_bytes", [100_000, 10_000], ids=["encoded", "refused"])
def test_a_stop_ends_a_large_document_whose_reference_does_not_answer(
    tmp_path: Path, limit_bytes: int
) -> None:
    """Also while memory is measured for the hint of a document that is refused."""
    path = write_text(tmp_path, 20_000)
    prepared = prepare([str(path)], reference_settings(tmp_path), memory="1GiB", workers=1)
    allowances = replace(prepared.allowances, block_bytes=2000, word_limit_bytes=limit_bytes)
    blocks = read_blocks(prepared.inputs, prepared.read, start=Cursor(file=0, position=0))

    def while_waiting() -> None:
        if suspended:
            raise StoppedError("asked to end", remedy="none")

    encoder = BlockEncoder(
        prepared.recipe, allowances, Encoder(prepared.recipe.encode), while_waiting=while_waiting
    )
    with (
        suspended_children() as (suspend, suspended),
        closing(encoder),
        closing(encoder.encode_in_order(blocks, continues=False)) as runs,
    ):
        suspend()
        with pytest.raises(StoppedError):
            list(runs)
    assert suspended
    assert children() == []


@pytest.mark.usefixtures("nothing_hangs")
def test_a_reference_that_is_closed_while_it_starts_leaves_no_process(tmp_path: Path) -> None:
    vocabulary = prepare(
        [str(write_text(tmp_path, 200))], reference_settings(tmp_path), memory="512MiB"
    ).vocabulary
    errors: list[DataError] = []
    for milliseconds in range(20):
        reference = ReferenceApart(vocabulary, "text", allowance_bytes=64 << 20)

        def encode(reference: ReferenceApart = reference) -> None:
            try:
                reference.encode(b"some words")
            except DataError as error:
                errors.append(error)

        thread = threading.Thread(target=encode)
        thread.start()
        time.sleep(milliseconds / 1000)
        reference.close()
        thread.join()
        assert children() == []
    assert {type(error) for error in errors} <= {SharedFaultError}


@pytest.mark.slow  # several processes
@pytest.mark.parametrize("limit_bytes", [100_000, 10_000], ids=["encoded", "refused"])
def test_the_process_that_has_all_the_memory_is_alone(tmp_path: Path, limit_bytes: int) -> None:
    """Two workers have a process each. A large document, or the measuring of one that is refused, has the
    memory of both: it begins when they are gone.
    """
    files = [write_text(tmp_path, 2000, f"{number}.txt") for number in range(6)]
    files.append(write_text(tmp_path, 20_000, "large.txt"))
    prepared = prepare([*map(str, files)], reference_settings(tmp_path), memory="1GiB", workers=2)
    allowances = replace(prepared.allowances, block_bytes=2000, word_limit_bytes=limit_bytes)
    read = replace(prepared.read, block_bytes=2000)
    blocks = list(read_blocks(prepared.inputs, read, start=Cursor(file=0, position=0)))
    encoder = BlockEncoder(prepared.recipe, allowances, Encoder(prepared.recipe.encode))
    small: set[psutil.Process] = set()
    pairs: list[bool] = []
    """For each look at the later process: whether one of the earlier ones was there too."""
    is_over = threading.Event()

    def ordered() -> Iterator[Block]:
        yield from blocks[:-1]
        small.update(children())
        looker.start()
        yield blocks[-1]

    def look() -> None:
        while not is_over.is_set():
            found = {*children()}
            if found - small:
                pairs.append(len(found) > 1)

    looker = threading.Thread(target=look)
    with closing(encoder), closing(encoder.encode_in_order(ordered(), continues=False)) as runs:
        refused = None
        try:
            for _ in runs:
                pass
        except DataError as error:
            refused = error
        is_over.set()
        looker.join()
    assert (refused is None) == (limit_bytes > 20_000)
    assert len(small) == 2
    assert pairs
    assert not any(pairs)
    assert children() == []
