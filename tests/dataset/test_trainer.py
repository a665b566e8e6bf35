"""The Hugging Face Trainer trains on the dataset's windows, in the dataset's order, also after a resume."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from torch.nn import functional  # noqa: E402

from lowtide import Mixture, TokenDataset  # noqa: E402
from lowtide.dataset.items import TrainerItems  # noqa: E402
from lowtide.shards.layout import ShardLayout  # noqa: E402
from tests.shards.streams import make_dataset, make_stream  # noqa: E402

VOCABULARY = 300
CONTEXT = 16
LENGTHS = [5, 1, 30, 12, 7, 19, 2, 60, 9, 23]


def write(folder: Path, *, seed: int = 0, eot: str = "end") -> Path:
    layout = ShardLayout(format="npy", vocabulary_size=VOCABULARY, shard_tokens=64)
    stream = make_stream(LENGTHS, VOCABULARY, seed=seed, eot=eot)
    make_dataset(folder, layout, train=stream, eot=eot)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("trainer") / "web")


@pytest.fixture
def dataset(folder: Path) -> TokenDataset:
    """168 tokens, 11 windows an epoch."""
    return TokenDataset(folder, context=CONTEXT, seed=3)


def tiny_model() -> transformers.GPT2LMHeadModel:
    torch.manual_seed(0)
    shape = {"n_positions": CONTEXT, "n_embd": 16, "n_layer": 1, "n_head": 2}
    silent = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    special = {"bos_token_id": None, "eos_token_id": None}
    config = transformers.GPT2Config(vocab_size=VOCABULARY, **shape, **silent, **special)
    return transformers.GPT2LMHeadModel(config)


class Recorder(transformers.Trainer):
    """A Trainer that writes down the ids it trains on."""

    seen: list[np.ndarray]

    def training_step(
        self, model: object, inputs: dict[str, torch.Tensor], *more: object
    ) -> object:
        if not hasattr(self, "seen"):
            self.seen = []
        self.seen.append(inputs["input_ids"].numpy().copy())
        return super().training_step(model, inputs, *more)


def make_trainer(items: TrainerItems, out: Path, **changes: object) -> Recorder:
    settings: dict[str, object] = {
        "per_device_train_batch_size": 4,
        "max_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "learning_rate": 1e-3,
        "dataloader_pin_memory": False,
        "train_sampling_strategy": "sequential",  # the order is shuffled already, and resumes
    }
    arguments = transformers.TrainingArguments(output_dir=str(out), **{**settings, **changes})
    return Recorder(model=tiny_model(), args=arguments, train_dataset=items)


def losses(trainer: Recorder) -> list[float]:
    return [record["loss"] for record in trainer.state.log_history if "loss" in record]


@pytest.mark.filterwarnings(
    r"ignore:This process .* is multi-threaded, use of fork\(\):DeprecationWarning"
)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_trainer_takes_two_steps_on_batches_0_and_1(
    dataset: TokenDataset, tmp_path: Path, workers: int
) -> None:
    trainer = make_trainer(dataset.trainer_items(), tmp_path, dataloader_num_workers=workers)
    trainer.train()
    assert len(trainer.seen) == 2
    assert all(np.array_equal(ids, dataset.batch(k, 4)[0]) for k, ids in enumerate(trainer.seen))
    assert all(map(math.isfinite, losses(trainer)))
    assert losses(trainer)[0] == pytest.approx(loss_by_hand(dataset), abs=1e-4)


def loss_by_hand(dataset: TokenDataset) -> float:
    """Of batch 0: every position but a row's last against the dataset's own targets."""
    x, y = map(torch.from_numpy, dataset.batch(0, 4))
    with torch.no_grad():
        logits = tiny_model()(input_ids=x).logits[:, :-1]
    targets = y[:, :-1].reshape(-1)
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets).item()


@pytest.mark.parametrize("eot", ["end", "start"])
@pytest.mark.parametrize("windows", ["contiguous", "document"])
@pytest.mark.parametrize("ignore_index", [-100, -1])
def test_labels_shifted_by_the_model_are_the_targets(
    tmp_path: Path, windows: str, eot: str, ignore_index: int
) -> None:
    dataset = TokenDataset(
        write(tmp_path / "tokens", eot=eot),
        context=CONTEXT,
        windows=windows,
        ignore_index=ignore_index,
    )
    items = dataset.trainer_items(epochs=2)
    assert len(items) == 2 * dataset.window_count
    for at, (item, x, y) in enumerate(zip(items, *dataset.read(0, len(items)), strict=True)):
        assert np.array_equal(item["input_ids"], x)
        assert np.array_equal(items.__getitems__([at])[0]["labels"], item["labels"])
        assert item["labels"][0] == -100
        assert np.array_equal(item["labels"][1:], np.where(y[:-1] == ignore_index, -100, y[:-1]))


def test_a_model_given_items_has_the_loss_of_the_targets(folder: Path) -> None:
    dataset = TokenDataset(folder, context=CONTEXT, windows="document")
    items = dataset.trainer_items()
    batch = transformers.default_data_collator([items[at] for at in range(4)])
    assert batch["labels"].dtype == torch.int64
    assert tiny_model()(**batch).loss.item() == pytest.approx(loss_by_hand(dataset), abs=1e-5)


def test_a_trainer_resumed_from_its_checkpoint_sees_the_same_data(
    dataset: TokenDataset, tmp_path: Path
) -> None:
    saving = {"max_steps": 5, "save_strategy": "steps", "save_steps": 2}
    whole = make_trainer(dataset.trainer_items(epochs=2), tmp_path / "whole", **saving)
    whole.train()
    again = make_trainer(dataset.trainer_items(epochs=2), tmp_path / "again", **saving)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert [ids.tolist() for ids in again.seen] == [ids.tolist() for ids in whole.seen[2:]]
    assert losses(again)[-3:] == pytest.approx(losses(whole)[-3:], abs=1e-6)
    assert all(np.array_equal(ids, dataset.batch(k, 4)[0]) for k, ids in enumerate(whole.seen))


def test_epochs_of_the_items_are_other_orders_in_one_epoch_of_the_trainer(
    dataset: TokenDataset, tmp_path: Path
) -> None:
    one_pass = {"max_steps": -1, "num_train_epochs": 1}
    trainer = make_trainer(dataset.trainer_items(epochs=2), tmp_path, **one_pass)
    trainer.train()
    assert np.array_equal(np.concatenate(trainer.seen), dataset.read(0, 22)[0])
    assert trainer.state.global_step == 6


def test_items_from_a_position_on_are_a_resume_without_a_checkpoint(
    dataset: TokenDataset, tmp_path: Path
) -> None:
    trainer = make_trainer(dataset.trainer_items(start=3), tmp_path)
    trainer.train()
    assert np.array_equal(np.concatenate(trainer.seen), dataset.read(3, 8)[0])


def test_the_trainer_takes_a_mixture(dataset: TokenDataset, tmp_path: Path) -> None:
    code = TokenDataset(write(tmp_path / "code", seed=1), context=CONTEXT)
    mixture = Mixture({"web": (dataset, 0.7), "code": (code, 0.3)})
    trainer = make_trainer(mixture.trainer_items(20), tmp_path / "run")
    trainer.train()
    assert np.array_equal(np.concatenate(trainer.seen), mixture.read(0, 8)[0])
    assert all(map(math.isfinite, losses(trainer)))
