"""DataLoader, training loops and other processes get the dataset's own windows, in its order."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402

from lowtide import Mixture, TokenDataset  # noqa: E402
from lowtide.errors import UsageError  # noqa: E402
from lowtide.shards.layout import ShardLayout  # noqa: E402
from tests.shards.streams import make_dataset, make_stream  # noqa: E402

VOCABULARY = 300
LENGTHS = [5, 1, 30, 12, 7, 19, 2, 60, 9, 23]
TIMEOUT_SECONDS = 300
"""A worker that hangs is an error, and no test that never ends."""

forks = pytest.mark.filterwarnings(
    r"ignore:This process .* is multi-threaded, use of fork\(\):DeprecationWarning"
)
"""Python 3.12 and later warn of every fork beside a thread; torch has threads."""


def write(folder: Path, *, seed: int = 0) -> Path:
    layout = ShardLayout(format="npy", vocabulary_size=VOCABULARY, shard_tokens=64)
    make_dataset(folder, layout, train=make_stream(LENGTHS, VOCABULARY, seed=seed))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("adapters") / "web")


@pytest.fixture
def dataset(folder: Path) -> Iterator[TokenDataset]:
    """34 windows an epoch."""
    opened = TokenDataset(folder, context=5, seed=3)
    yield opened
    opened.close()


@pytest.fixture
def mixture(folder: Path, tmp_path: Path) -> Mixture:
    web = TokenDataset(folder, context=5)
    code = TokenDataset(write(tmp_path / "code", seed=1), context=5)
    return Mixture({"web": (web, 0.7), "code": (code, 0.3)})


def data_loader(items: object, workers: int, context: str | None, **more: object) -> DataLoader:
    return DataLoader(
        items,
        batch_size=8,
        shuffle=False,
        num_workers=workers,
        multiprocessing_context=context,
        timeout=TIMEOUT_SECONDS if workers else 0,
        **more,
    )


def read_all(batches: DataLoader) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x.numpy(), y.numpy()) for x, y in batches]


def equal(found: object, wanted: object) -> bool:
    """The same batches, one by one."""
    return all(
        np.array_equal(one, other)
        for pair in zip(found, wanted, strict=True)
        for one, other in zip(*pair, strict=True)
    )


# torch.utils.data.DataLoader


@forks
@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (2, "spawn")])
def test_a_data_loader_gives_the_batches_of_the_epoch_in_order(
    dataset: TokenDataset, workers: int, context: str | None
) -> None:
    found = read_all(data_loader(dataset.items(), workers, context))
    assert [len(x) for x, _ in found] == [8, 8, 8, 8, 2]
    assert equal(found, list(dataset.epoch(8)))


@forks
@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork")])
@pytest.mark.parametrize("kind", ["contiguous", "document"])
def test_a_data_loader_takes_the_dataset_itself(
    folder: Path, kind: str, workers: int, context: str | None
) -> None:
    dataset = TokenDataset(folder, context=5, seed=3, windows=kind)
    found = read_all(data_loader(dataset, workers, context))
    assert sum(len(x) for x, _ in found) == len(dataset) == dataset.window_count
    assert equal(found, list(dataset.epoch(8)))


@forks
@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork")])
def test_workers_get_a_mixture(mixture: Mixture, workers: int, context: str | None) -> None:
    kept = mixture.batch(0, 8)  # arrays in use must not hinder
    found = read_all(data_loader(mixture.items(48), workers, context))
    assert equal(found, [kept, *(mixture.batch(k, 8) for k in range(1, 6))])


def test_items_travel_without_their_buffers(dataset: TokenDataset, mixture: Mixture) -> None:
    """As they do to spawned workers."""
    for stream, items in ((dataset, dataset.items()), (mixture, mixture.items(40))):
        kept = [stream.batch(k, 500) for k in range(2)]
        del kept[0]
        sent = pickle.dumps(items)
        assert len(sent) < 3000
        x, y = pickle.loads(sent)[7]  # noqa: S301 - our own
        assert equal([(x, y)], [tuple(one[0] for one in stream.read(7, 1))])


def test_items_go_on_where_a_run_was_left(dataset: TokenDataset) -> None:
    found = read_all(data_loader(dataset.items(epochs=2, start=21), 0, None))
    wanted = dataset.read(21, 47)
    assert all(map(np.array_equal, map(np.concatenate, zip(*found, strict=True)), wanted))


@forks
@pytest.mark.parametrize("workers", [0, 2])
def test_distributed_samplers_share_the_batches(dataset: TokenDataset, workers: int) -> None:
    items = dataset.items(epochs=2)
    ranks = [
        read_all(
            DataLoader(
                items,
                batch_size=4,
                sampler=DistributedSampler(items, num_replicas=2, rank=rank, shuffle=False),
                num_workers=workers,
                multiprocessing_context="fork" if workers else None,
                timeout=TIMEOUT_SECONDS if workers else 0,
            )
        )
        for rank in (0, 1)
    ]
    for k, shares in enumerate(zip(*ranks, strict=True)):  # the sampler deals rows out in turn
        dealt = [np.stack(one, axis=1).reshape(-1, 5) for one in zip(*shares, strict=True)]
        assert all(map(np.array_equal, dealt, dataset.read(8 * k, len(dealt[0]))))
    assert sum(len(x) for rank in ranks for x, _ in rank) == 68


def test_items_are_a_sequence(dataset: TokenDataset) -> None:
    items = dataset.items()
    assert len(items) == len(list(items)) == 34
    assert equal([items[-1]], [items[33]])
    for outside in (34, -35):
        with pytest.raises(IndexError):
            items[outside]
    for start in (34, -1):
        with pytest.raises(UsageError, match=r"position|start"):
            dataset.items(start=start)


def test_a_dataset_is_a_sequence_of_the_windows_of_its_first_epoch(dataset: TokenDataset) -> None:
    wanted = [(x[0], y[0]) for x, y in dataset.epoch(1)]
    assert equal([dataset[at] for at in range(len(dataset))], wanted)
    assert equal(list(dataset), wanted)
    assert equal([dataset[-1], dataset[-34]], [wanted[33], wanted[0]])
    assert equal(dataset.__getitems__([3, 33, 4, -1]), [wanted[at] for at in (3, 33, 4, 33)])
    for outside in (34, -35):
        with pytest.raises(IndexError):
            dataset[outside]
    with pytest.raises(TypeError, match="an item is an integer"):
        dataset[0:3]  # type: ignore[index]
    shuffled = DataLoader(dataset, batch_size=4, shuffle=True)
    assert sum(len(x) for x, _ in shuffled) == len(dataset)


def test_items_asked_for_together_are_the_items_asked_for_one_by_one(
    dataset: TokenDataset,
) -> None:
    items = dataset.items(start=2)
    for wanted in ([3, 4, 5, 31, 0, 3], [-1, -32], []):  # Subset hands on whatever it was given
        assert equal(items.__getitems__(wanted), [items[at] for at in wanted])
    for outside in (32, -33):
        with pytest.raises(IndexError):
            items.__getitems__([0, outside])


def test_items_travel_to_a_process_in_another_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    dataset = TokenDataset(folder.name, context=5)
    items, wanted = dataset.items(), dataset.items()[7]
    monkeypatch.chdir(tmp_path)
    assert equal([items[7], pickle.loads(pickle.dumps(items))[7]], [wanted] * 2)  # noqa: S301


# Training


class TinyModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(VOCABULARY, 8)
        self.head = torch.nn.Linear(8, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


def train(batches: object, *, ignore_index: int = -100) -> list[float]:
    """A loop as nanoGPT has it; the loss of each step."""
    model, losses = TinyModel(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for x, y in batches:
        logits = model(x)
        loss = functional.cross_entropy(
            logits.view(-1, VOCABULARY), y.view(-1), ignore_index=ignore_index
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@forks
@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork")])
def test_a_data_loader_trains_as_the_batches_do(
    dataset: TokenDataset, workers: int, context: str | None
) -> None:
    losses = train(itertools.islice(data_loader(dataset.items(), workers, context), 2))
    by_hand = train(tuple(map(torch.from_numpy, dataset.batch(k, 8))) for k in (0, 1))
    assert losses == by_hand
    assert all(map(math.isfinite, losses))


@pytest.mark.parametrize("windows", ["contiguous", "document"])
def test_a_loop_with_nanogpts_ignore_index_learns_the_same(folder: Path, windows: str) -> None:
    losses = [
        train(
            TokenDataset(folder, context=16, windows=windows, ignore_index=index).loader(
                4, epochs=3, device="cpu"
            ),
            ignore_index=index,
        )
        for index in (-1, -100)
    ]
    assert losses[0] == losses[1]
    assert all(map(math.isfinite, losses[0]))
    third = len(losses[0]) // 3
    assert sum(losses[0][-third:]) < sum(losses[0][:third])


# Mixtures behind a loader


def test_a_mixture_resumes_like_a_dataset(mixture: Mixture) -> None:
    first = mixture.loader(8, windows=60)
    found = list(itertools.islice(first, 3))
    state = json.loads(json.dumps(first.state_dict()))
    ranks = [mixture.loader(12, rank=rank, world_size=2, windows=60) for rank in (0, 1)]
    for loader in ranks:
        loader.load_state_dict(state)
    found += [share for shares in zip(*map(list, ranks), strict=True) for share in shares]
    joined = [torch.cat(one).numpy() for one in zip(*found, strict=True)]
    assert all(map(np.array_equal, joined, mixture.read(0, 60)))


def test_a_mixture_in_another_order_or_of_other_weights_is_another_stream(
    mixture: Mixture,
) -> None:
    state = mixture.loader(4).state_dict()
    web, code = mixture.sources.values()
    for other in (
        Mixture({"code": (code, 0.3), "web": (web, 0.7)}),
        Mixture({"web": (web, 0.6), "code": (code, 0.4)}),
    ):
        assert not np.array_equal(other.read(0, 60)[0], mixture.read(0, 60)[0])
        with pytest.raises(UsageError, match="other batches"):
            other.loader(4).load_state_dict(state)


# Processes


@forks
def test_workers_forked_in_the_middle_of_a_read_neither_hang_nor_err(
    dataset: TokenDataset,
) -> None:
    wanted = list(dataset.epoch(8))
    busy = dataset.loader(512, documents=True, prefetch=100)  # the thread reads nearly all the time
    for k, (x, _, _) in enumerate(itertools.islice(busy, 6)):
        assert equal(read_all(data_loader(dataset.items(), 2, "fork")), wanted)
        assert np.array_equal(x, dataset.batch(k, 512)[0])


ENDING = """
import sys, time
import lowtide
batches = iter(lowtide.TokenDataset(sys.argv[1], context=5).loader(4, prefetch=3))
next(batches)
print("running", flush=True)
if sys.argv[2] == "interrupted":
    for batch in batches:
        time.sleep(0.001)
"""

FORKING = """
import itertools, os, sys, warnings
import lowtide
warnings.simplefilter("ignore", DeprecationWarning)
dataset = lowtide.TokenDataset(sys.argv[1], context=5)
loader = dataset.loader(4, prefetch=3)
print("running", flush=True)
for _ in itertools.islice(loader, 2):
    child = os.fork()
    if not child:
        again = list(itertools.islice(loader, 2)) and list(itertools.islice(dataset.loader(4), 3))
        sys.exit(int((again[2][0].numpy() != dataset.batch(2, 4)[0]).any()))
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["returned", "interrupted", "forked"])
def test_a_process_with_a_loader_at_work_ends_at_once(folder: Path, ending: str) -> None:
    program = FORKING if ending == "forked" else ENDING
    command = [sys.executable, "-c", program, str(folder), ending]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout.readline() == "running\n"
        if ending == "interrupted":
            process.send_signal(signal.SIGINT)
        try:
            _, complaints = process.communicate(timeout=300)
        finally:
            process.kill()
    if ending == "interrupted":
        assert process.returncode == -signal.SIGINT
        assert complaints.splitlines()[-1] == "KeyboardInterrupt"
        assert complaints.count("Traceback") == 1
    else:
        assert (process.returncode, complaints) == (0, "")
