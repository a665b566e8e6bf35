"""Batches as torch tensors, read ahead by a thread. The only file of this package that imports torch.

    loader = TokenDataset("tokens").loader(32, rank=rank, world_size=world_size, device="cuda")
    for x, y in loader:
        ...
        state = loader.state_dict()          # one number that moves, and what must not change

Reading releases the interpreter's lock, so a thread is enough and nothing is copied between
processes. With a GPU the thread fills pinned memory, from which the copy to the GPU runs beside the work on it.
"""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import torch

from lowtide.dataset.batches import ArrayPool
from lowtide.dataset.items import Stream
from lowtide.dataset.order import Numbers
from lowtide.dataset.settings import whole
from lowtide.errors import UsageError

STATE_VERSION = 1
_STOP_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The rows of every batch that belong to this rank."""

    batch_size: int
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        if self.batch_size % self.world_size:
            fitting = max(1, round(self.batch_size / self.world_size)) * self.world_size
            raise UsageError(
                f"a batch of {self.batch_size} windows cannot be shared by {self.world_size} ranks",
                remedy=f"pass `batch_size={fitting}`: it counts the windows of all ranks together",
            )
        if not 0 <= self.rank < self.world_size:
            raise UsageError(
                f"there is no rank {self.rank} among {self.world_size}",
                remedy=f"ranks count from 0 to {self.world_size - 1}",
            )

    def rows(self, count: int) -> range:
        """This rank's rows of a batch of `count` windows; of a short last batch, perhaps none."""
        each = self.batch_size // self.world_size
        return range(min(count, self.rank * each), min(count, (self.rank + 1) * each))


class Loader:
    """Batches from position `start` on, in order, endless or up to `stop`. Holds `prefetch` batches."""

    def __init__(
        self,
        stream: Stream,
        batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        stop: int | None = None,
        device: str | torch.device | None = None,
        prefetch: int = 2,
        documents: bool = False,
    ) -> None:
        self._stream = stream
        self._share = Share(
            batch_size=whole("batch_size", batch_size, at_least=1),
            rank=whole("rank", rank, at_least=0),
            world_size=whole("world_size", world_size, at_least=1),
        )
        self._position = whole("start", start, at_least=0)
        self._stop = stop
        self._device = _usable(device) if device is not None else None
        self._gpu = _gpu_beside(self._device)
        self._prefetch = whole("prefetch", prefetch, at_least=1)
        self._arrays = 3 if documents else 2
        self._reading: _Reading | None = None

    @property
    def position(self) -> int:
        """Windows given out so far, over all ranks: where training resumes."""
        return self._position

    def __len__(self) -> int:
        """Number of batches left."""
        if self._stop is None:
            raise TypeError("an endless loader has no length; pass `epochs`")
        return max(0, -(-(self._stop - self._position) // self._share.batch_size))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Continue where the last iteration stopped."""
        self.close()
        plan = _Plan(
            stream=self._stream,
            share=self._share,
            start=self._position,
            stop=self._stop,
            arrays=self._arrays,
            gpu=self._gpu,
        )
        reading = self._reading = _Reading(plan, self._prefetch)
        try:
            while self._reading is reading:
                ready = reading.next()
                if ready is None:
                    return
                position, tensors = ready
                moved = tuple(map(self._moved, tensors))
                # Only now: a batch that was never given out must come after a resume.
                self._position = position
                yield moved
        finally:
            reading.ask_to_end()

    def state_dict(self) -> dict[str, object]:
        """The position to resume from, equal on every rank. Batch size and world size may change."""
        return {
            "version": STATE_VERSION,
            "position": self._position,
            "stream": self._stream.identity(),
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Resume from a state; UsageError if dataset, seed, context or order have changed."""
        known = state if isinstance(state, dict) else {}
        position, stream = known.get("position"), known.get("stream")
        if known.get("version") != STATE_VERSION or type(position) is not int or position < 0:
            raise UsageError(
                f"this is not a loader's state of version {STATE_VERSION}",
                remedy="pass what `Loader.state_dict()` gave",
            )
        _check_same(stream if isinstance(stream, dict) else {}, self._stream.identity())
        self.close()
        self._position = position

    def close(self) -> None:
        """End the thread; the position is kept."""
        if self._reading is not None:
            self._reading.end()
            self._reading = None

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self._device is None else tensor.to(self._device, non_blocking=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What the thread reads. It holds no reference to the loader, which may be dropped meanwhile."""

    stream: Stream
    share: Share
    start: int
    stop: int | None
    arrays: int
    gpu: int | None
    """The GPU that memory is pinned for."""

    def batches(self) -> Iterator[tuple[int, list[torch.Tensor]]]:
        """Each batch with the position after it."""
        if self.gpu is not None:
            # A thread begins with GPU 0, and would open it for every rank.
            torch.cuda.set_device(self.gpu)
        position, pool = self.start, ArrayPool()
        while self.stop is None or position < self.stop:
            count = self.share.batch_size
            if self.stop is not None:
                count = min(count, self.stop - position)
            rows = self.share.rows(count)
            tensors = self._tensors(len(rows), pool)
            if rows:
                self.stream.fill(position + rows.start, tuple(one.numpy() for one in tensors))
            position += count
            yield position, tensors

    def _tensors(self, rows: int, pool: ArrayPool) -> list[torch.Tensor]:
        """Tensors for one batch. torch pins the memory: it knows when a copy out of it has ended."""
        shape = (rows, self.stream.context)
        if self.gpu is not None:
            return [
                torch.empty(shape, dtype=torch.int64, pin_memory=True) for _ in range(self.arrays)
            ]
        if not rows:
            return [torch.empty(shape, dtype=torch.int64) for _ in range(self.arrays)]
        arrays: tuple[Numbers, ...] = pool.take(self.arrays, *shape)
        return [torch.from_numpy(one) for one in arrays]


_Batch: TypeAlias = tuple[int, list[torch.Tensor]]
_Ready: TypeAlias = queue.Queue[_Batch | BaseException | None]
"""Batches; then None at the end, or the error that ended the thread."""


class _Reading:
    """A thread that reads a plan into a short queue."""

    def __init__(self, plan: _Plan, prefetch: int) -> None:
        self._ready: _Ready = queue.Queue(prefetch)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=_read,
            args=(plan, self._ready, self._stopped),
            name="lowtide-loader",
            daemon=True,
        )
        _end_all_at_exit()
        _running[self._thread] = self._stopped
        self._thread.start()
        # Garbage collection may happen while the dataset's lock is held, so this must not wait.
        self.ask_to_end = weakref.finalize(self, self._stopped.set)
        self.ask_to_end.atexit = False

    def next(self) -> _Batch | None:
        """The next batch; None at the end. An error of the thread is raised here."""
        ready = self._ready.get()
        if isinstance(ready, BaseException):
            raise ready
        return ready

    def end(self) -> None:
        """End the thread and wait for it: afterwards the caller may remove the files."""
        self.ask_to_end()
        self._thread.join()
        with suppress(queue.Empty):
            while True:
                self._ready.get_nowait()
        self._ready.put(None)  # for an iteration that waits for the next batch


_running: dict[threading.Thread, threading.Event] = {}
"""Threads to end at exit: one that outlives the interpreter would read from memory that is unmapped."""


@cache
def _end_all_at_exit() -> None:
    atexit.register(_end_all)


def _end_all() -> None:
    for thread, stopped in list(_running.items()):
        stopped.set()
        thread.join()


def _read(plan: _Plan, ready: _Ready, stopped: threading.Event) -> None:
    try:
        for batch in plan.batches():
            if not _put(ready, batch, stopped):
                return
        _put(ready, None, stopped)
    except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
        _put(ready, error, stopped)
    finally:
        _running.pop(threading.current_thread(), None)


def _put(ready: _Ready, item: _Batch | BaseException | None, stopped: threading.Event) -> bool:
    """Wait for space in the queue; False if reading was stopped first."""
    while not stopped.is_set():
        try:
            ready.put(item, timeout=_STOP_POLL_SECONDS)
        except queue.Full:
            continue
        return True
    return False


def _usable(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as cause:  # what torch raises for a missing GPU
        raise UsageError(
            f"torch cannot use the device {str(device)!r}: {str(cause).splitlines()[0]}",
            remedy="pass `device='cpu'`, or leave it out",
        ) from cause
    return found


def _gpu_beside(device: torch.device | None) -> int | None:
    """The GPU that batches are for; None without a GPU, or if they stay on the CPU."""
    if not torch.cuda.is_available() or (device is not None and device.type != "cuda"):
        return None
    if device is not None and device.index is not None:
        return device.index
    return torch.cuda.current_device()


def _check_same(stored: dict[str, object], now: dict[str, str | int | float | None]) -> None:
    different = [
        f"{name} was {stored.get(name)!r} and is {now.get(name)!r}"
        for name in sorted({*stored, *now})
        if stored.get(name) != now.get(name)
    ]
    if different:
        raise UsageError(
            f"this state belongs to other batches: {'; '.join(different)}",
            remedy="open the dataset as it was, or start again without the state",
        )
