"""What a state, a worker or a forked process finds is what was opened, or an error."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from lowtide import Mixture, TokenDataset
from lowtide.errors import DataError, LowtideError, UsageError, VerificationError
from lowtide.shards.layout import ShardLayout
from tests.shards.streams import NARROW, make_dataset, make_stream

END_OF_TEXT = 50256


def write_train_bin(folder: Path, tokens: int = 5000, every: int = 17) -> Path:
    ids = np.arange(tokens, dtype=np.uint16) % 50_000
    ids[every - 1 :: every] = END_OF_TEXT
    folder.mkdir(exist_ok=True)
    ids.tofile(folder / "train.bin")
    return folder / "train.bin"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_that_ends_takes_nothing_with_it(tmp_path: Path) -> None:
    path = write_train_bin(tmp_path / "a", tokens=400_000)
    dataset = TokenDataset(path, context=32, windows="document", tokenizer="gpt2")
    child = os.fork()
    if not child:
        del dataset
        os._exit(0)
    os.waitpid(child, 0)
    for k in range(400):
        dataset.batch(k, 16)


def test_a_state_is_refused_when_documents_end_elsewhere(tmp_path: Path) -> None:
    layout = ShardLayout(format="megatron", vocabulary_size=NARROW)
    make_dataset(tmp_path / "a", layout, train=make_stream([40] * 10, NARROW))
    (tmp_path / "a" / "lowtide.json").unlink()
    state = TokenDataset(tmp_path / "a", context=16, windows="document").loader(4).state_dict()
    make_dataset(tmp_path / "b", layout, train=make_stream([50] * 8, NARROW))
    (tmp_path / "b" / "train.idx").replace(tmp_path / "a" / "train.idx")
    again = TokenDataset(tmp_path / "a", context=16, windows="document").loader(4)
    with pytest.raises(UsageError, match="documents"):
        again.load_state_dict(state)


def test_a_worker_refuses_a_file_that_was_replaced_since(tmp_path: Path) -> None:
    path = write_train_bin(tmp_path / "a")
    packed = pickle.dumps(TokenDataset(path, context=16).items())
    other = write_train_bin(tmp_path / "b", every=19)
    os.utime(other, ns=(0, 1))
    other.replace(path)
    with pytest.raises(VerificationError, match=r"train\.bin"):
        pickle.loads(packed)  # noqa: S301 - our own bytes


def test_a_worker_finds_the_tokenizer_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lowtide import Tokenizer

    write_train_bin(tmp_path)
    Tokenizer.load("gpt2").save(tmp_path / "tok")
    monkeypatch.chdir(tmp_path)
    dataset = TokenDataset("train.bin", context=16, tokenizer="tok/tokenizer.json")
    packed = pickle.dumps(dataset)
    monkeypatch.chdir("/")
    assert pickle.loads(packed).tokens == dataset.tokens  # noqa: S301 - our own bytes


def test_a_shard_that_is_gone_troubles_only_who_reads_it(tmp_path: Path) -> None:
    for number in range(40):
        np.save(tmp_path / f"s{number:03d}.npy", np.full(200, number, dtype=np.uint16))
    dataset = TokenDataset(tmp_path, context=100, order="shuffled")
    dataset._read_ahead._slow_seconds = 0.0  # type: ignore[union-attr] # every read is slow
    wanted = TokenDataset(tmp_path, context=100)
    x, _ = wanted.batch(39, 2)
    gone = int(x[0, 50])
    good = [k for k in range(39) if gone not in wanted.batch(k, 2)[0]]
    (tmp_path / f"s{gone:03d}.npy").unlink()
    for k in good[:10]:
        assert np.array_equal(dataset.batch(k, 2)[0], wanted.batch(k, 2)[0])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_among_the_files_is_named(tmp_path: Path) -> None:
    write_train_bin(tmp_path)
    os.mkfifo(tmp_path / "val.bin")
    with pytest.raises(UsageError, match=r"val\.bin is not a plain file"):
        TokenDataset(tmp_path, context=16)


def test_splits_are_words_of_a_name(tmp_path: Path) -> None:
    for name in ("books_0", "medieval_0", "latest_news_0", "set-validation-1", "x_test"):
        np.save(tmp_path / f"{name}.npy", np.arange(100, dtype=np.uint16))
    assert TokenDataset(tmp_path, context=16).tokens == 300
    assert TokenDataset(tmp_path, "val", context=16).tokens == 100
    assert TokenDataset(tmp_path, "test", context=16).tokens == 100


def test_a_few_wide_ids_are_not_read_as_twice_as_many(tmp_path: Path) -> None:
    np.arange(8, 28, dtype=np.uint32).tofile(tmp_path / "train.bin")
    with pytest.raises(DataError, match="4 bytes"):
        TokenDataset(tmp_path / "train.bin", context=4)


def test_no_rows_are_filled_at_once(tmp_path: Path) -> None:
    dataset = TokenDataset(write_train_bin(tmp_path), context=16)
    nothing = np.zeros((0, 16), dtype=np.int64)
    dataset.fill(0, (nothing, nothing.copy()))


def test_a_mixture_fills_only_arrays_that_hold_ids(tmp_path: Path) -> None:
    dataset = TokenDataset(write_train_bin(tmp_path), context=16, tokenizer="gpt2")
    narrow = np.zeros((4, 16), dtype=np.int16)
    with pytest.raises(UsageError, match="int16"):
        Mixture({"a": (dataset, np.float32(0.5))}).fill(0, (narrow, narrow.copy()))  # type: ignore[arg-type]


def test_arguments_of_any_integer_kind_make_states_of_plain_numbers(tmp_path: Path) -> None:
    dataset = TokenDataset(write_train_bin(tmp_path), context=16)
    loader = dataset.loader(np.int64(8), start=np.int64(16))  # type: ignore[arg-type]
    next(iter(loader))
    state = loader.state_dict()
    assert type(state["position"]) is int
    dataset.loader(4).load_state_dict(state)
    loader.close()


@pytest.mark.parametrize(
    "call",
    [
        "dataset.batch(2**62, 4)",
        "dataset.batch(2**61 - 1, 4)",
        "dataset.batch(0, 2**45)",
        "dataset.epoch(8, epoch=2**62).__next__()",
        "dataset.loader(8.0)",
        "dataset.loader('8')",
        "dataset.loader(8, rank=1.0, world_size=2)",
        "dataset.loader(8, world_size=0)",
        "dataset.loader(8, prefetch=1.5)",
        "dataset.loader(8, device='cuda:63')",
        "dataset.loader(8).load_state_dict([])",
        "dataset.loader(8).load_state_dict({'version': 1, 'position': True, 'stream': {}})",
        "dataset.items(epochs=2.0)",
        "dataset.items(start=1.5)",
        "TokenDataset(dataset.settings.path, val_fraction='0.1')",
        "Mixture({'a': dataset})",
        "Mixture({'a': ('path', 1)})",
        "Mixture({'a': (dataset, '1')})",
        "mixture.loader(4, windows=5.5)",
        "mixture.loader(4, windows=-1)",
        "mixture.items(0)",
        "mixture.batch(2**62, 4)",
    ],
)
def test_what_cannot_be_meant_is_told_with_a_remedy(call: str, tmp_path: Path) -> None:
    dataset = TokenDataset(write_train_bin(tmp_path), context=16, tokenizer="gpt2")
    names = {"dataset": dataset, "mixture": Mixture({"a": (dataset, 1.0)}), "Mixture": Mixture}
    with pytest.raises(LowtideError) as caught:
        eval(call, {**names, "TokenDataset": TokenDataset})
    assert caught.value.remedy
    assert f"hint: {caught.value.remedy}" in caught.value.__notes__


def test_torch_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = TokenDataset(write_train_bin(tmp_path), context=16)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="torch is not installed"):
        dataset.loader(4)
