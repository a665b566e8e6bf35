"""The formula against what torch allocates: every storage of a step is followed from birth to death.

Tensors are fake, on the CPU: shapes without bytes, so that a model of 774 M takes a second. Four things are
made to allocate as they do on a GPU: the loss (a Triton kernel, in place), the head's gradient (a product added
in place), norms under autocast (float32, there), and AdamW (fused).
"""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.model.chunks import chunk_rows
from lowtide.model.needs import (
    Precision,
    Recipe,
    StepKind,
    peak_of_evaluation,
    peak_of_run,
    peak_of_step,
)
from lowtide.model.shape import SHAPES, ModelShape
from lowtide.units import GIB

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from lowtide.model import head_loss  # noqa: E402
from lowtide.model.gpt import GPT  # noqa: E402
from lowtide.model.turn_logits import turn_logits_reference  # noqa: E402

ODD = ModelShape(layers=5, heads=3, width=192, context=256, vocabulary_size=3000)
SHAPES_TRIED = {"odd": ODD, "a third of gpt2": replace(SHAPES["gpt2"], layers=4)}
TOLERANCE = 0.01


class Held(TorchDispatchMode):  # type: ignore[misc]
    """Bytes of all storages that any operation made and that are still there; and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, Tensor):
                self._follow(one.untyped_storage())
        return made

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self.sizes:
            return
        self.sizes[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self.sizes.pop(key)


@pytest.fixture
def allocates_like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def turn(logits: Tensor, targets: Tensor, scale: Tensor, vocabulary_size: int) -> Tensor:
        return torch.empty(len(logits), dtype=torch.float32)

    def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
        total.add_(0)

    def norm(self: nn.LayerNorm, x: Tensor) -> Tensor:
        wide = x.float() if torch.is_autocast_enabled("cpu") else x
        with torch.autocast("cpu", enabled=False):
            return nn.functional.layer_norm(
                wide, self.normalized_shape, self.weight, self.bias, self.eps
            )

    def losses(logits: Tensor, targets: Tensor, vocabulary_size: int) -> Tensor:
        return torch.empty(len(logits), dtype=torch.float32)

    monkeypatch.setattr(head_loss, "turn_logits", turn)
    monkeypatch.setattr(head_loss, "row_losses", losses)
    monkeypatch.setattr(head_loss, "_add_product", add_product)
    monkeypatch.setattr(nn.LayerNorm, "forward", norm)


def measure_step(shape: ModelShape, micro_batch: int, kind: StepKind, *, fake: bool = True) -> int:
    """The peak of the second step: by then the optimizer has its state."""
    held = Held()
    with FakeTensorMode() if fake else nullcontext(), held:
        model = GPT(shape, recompute=kind.recomputes)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            held.peak = 0
            for _ in range(2 if kind.accumulating else 1):
                run_forward(model, micro_batch, kind).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return held.peak


def run_forward(model: GPT, micro_batch: int, kind: StepKind) -> Tensor:
    tokens, targets = torch.zeros(2, micro_batch, model.shape.context, dtype=torch.int64).unbind(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind.precision == "bfloat16"):
        return model(tokens, targets, torch.ones(()))


def tensors_of(shape: ModelShape, micro_batch: int, kind: StepKind) -> int:
    """Predicted, without what cuBLAS takes."""
    needs = peak_of_step(shape, micro_batch, kind)
    return needs.total - needs.workspace


EVERY_PAIR = [
    (name, precision, recipe, micro_batch, accumulating)
    for name, precision, recipe, micro_batch, accumulating in product(
        SHAPES_TRIED, ("bfloat16", "float32"), ("fast", "lean"), (2, 48), (False, True)
    )
    if ((name == "odd") ^ (precision == "float32")) == (micro_batch == 2)
    and ((name == "odd") ^ (recipe == "lean")) == accumulating
]
"""Eight of 32: of any two of these, every pair of values."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("allocates_like_a_gpu")
@pytest.mark.parametrize(("name", "precision", "recipe", "micro_batch", "accumulating"), EVERY_PAIR)
def test_the_predicted_peak_of_a_step_is_what_torch_allocates(
    name: str, precision: Precision, recipe: Recipe, micro_batch: int, accumulating: bool
) -> None:
    kind = StepKind(recipe=recipe, compiled=False, precision=precision, accumulating=accumulating)
    measured = measure_step(SHAPES_TRIED[name], micro_batch, kind)
    assert tensors_of(SHAPES_TRIED[name], micro_batch, kind) == pytest.approx(
        measured, rel=TOLERANCE
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("allocates_like_a_gpu")
@pytest.mark.parametrize("recipe", ["fast", "lean"])
@pytest.mark.parametrize("name", ["gpt2", "gpt2-large"])
def test_the_same_holds_for_a_large_model(name: str, recipe: Recipe) -> None:
    kind = StepKind(recipe=recipe, compiled=False)
    measured = measure_step(SHAPES[name], 2, kind)
    assert tensors_of(SHAPES[name], 2, kind) == pytest.approx(measured, rel=TOLERANCE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("allocates_like_a_gpu")
@pytest.mark.parametrize("micro_batch", [1, 64])
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", SHAPES_TRIED)
def test_the_predicted_peak_of_an_evaluation_is_what_torch_allocates(
    name: str, precision: Precision, micro_batch: int
) -> None:
    kind, held = StepKind(compiled=False, precision=precision), Held()
    with FakeTensorMode(), held, torch.no_grad():
        run_forward(GPT(SHAPES_TRIED[name]), micro_batch, kind)
    needs = peak_of_evaluation(SHAPES_TRIED[name], micro_batch, kind)
    predicted = needs.total - needs.workspace - needs.optimizer
    assert predicted == pytest.approx(held.peak, rel=2 * TOLERANCE)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("accumulating", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("recipe", ["fast", "lean"])
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_on_the_cpu_nothing_needs_to_be_pretended(
    precision: Precision, recipe: Recipe, accumulating: bool
) -> None:
    shape = ModelShape(layers=4, heads=4, width=128, context=128, vocabulary_size=5000)
    kind = StepKind(
        recipe=recipe,
        compiled=False,
        precision=precision,
        accumulating=accumulating,
        device="cpu",
    )
    measured = measure_step(shape, 8, kind, fake=False)
    assert tensors_of(shape, 8, kind) == pytest.approx(measured, rel=0.05)


def test_on_the_cpu_logits_are_turned_without_copies_of_them() -> None:
    logits, targets = torch.zeros(1024, 5120), torch.zeros(1024, dtype=torch.int64)
    with Held() as held:
        turn_logits_reference(logits, targets, torch.ones(()), 5000)
    assert held.peak < 1.5 * logits.nbytes  # themselves, which are seen through views, and slices


MEASURED_GIB = {
    ("gpt2", "compiled", "fast"): {4: 3.29, 16: 7.21, 64: 23.28},
    ("gpt2", "compiled", "lean"): {4: 2.11, 16: 2.66, 64: 5.76},
    ("gpt2", "compiled", "leanest"): {4: 1.54, 16: 1.97, 64: 5.07},
    ("gpt2", "eager", "fast"): {4: 3.28, 16: 7.21, 64: 23.29},
    ("gpt2", "eager", "lean"): {4: 2.16, 16: 2.73, 64: 6.03},
    ("gpt2", "eager", "leanest"): {4: 1.53, 16: 2.04, 64: 5.35},
    ("gpt2-medium", "compiled", "fast"): {4: 8.25, 16: 17.98, 64: 57.27},
    ("gpt2-medium", "compiled", "lean"): {4: 5.58, 16: 6.37, 64: 12.75},
}
"""`max_memory_allocated` of a step in one part on an H200 with torch 2.11, by `bench/peak_memory.py`."""


@pytest.mark.parametrize(("name", "mode", "recipe"), MEASURED_GIB)
def test_the_peaks_that_were_measured_on_an_h200_are_predicted(
    name: str, mode: str, recipe: Recipe
) -> None:
    kind = StepKind(recipe=recipe, compiled=mode == "compiled", accumulating=False)
    for micro_batch, measured in MEASURED_GIB[name, mode, recipe].items():
        predicted = peak_of_step(SHAPES[name], micro_batch, kind).total / GIB
        assert predicted == pytest.approx(measured, rel=0.05), micro_batch


ACCUMULATED_GIB = {
    ("gpt2", "fast", 16): 7.67,
    ("gpt2", "fast", 64): 23.75,
    ("gpt2", "lean", 16): 3.12,
    ("gpt2", "lean", 133): 10.66,
    ("gpt2", "leanest", 143): 10.62,
    ("gpt2-medium", "fast", 5): 10.38,
    ("gpt2-medium", "fast", 64): 58.59,
    ("gpt2-medium", "lean", 39): 10.75,
    ("gpt2-medium", "lean", 64): 14.07,
    ("gpt2-medium", "leanest", 53): 10.64,
}
"""The same of compiled steps in two parts; near 10.8 GiB the largest on 12, by `bench/small_card.py`."""


@pytest.mark.parametrize(("name", "recipe", "micro_batch"), ACCUMULATED_GIB)
def test_the_peaks_of_several_parts_are_predicted(
    name: str, recipe: Recipe, micro_batch: int
) -> None:
    predicted = peak_of_run(SHAPES[name], micro_batch, StepKind(recipe=recipe)).total / GIB
    assert predicted == pytest.approx(ACCUMULATED_GIB[name, recipe, micro_batch], rel=0.05)


EVALUATED_GIB = {
    ("gpt2", "compiled", "fast"): {4: 1.69, 16: 1.75, 64: 2.51},
    ("gpt2", "compiled", "lean"): {4: 1.69, 16: 1.75, 64: 2.40},
    ("gpt2", "compiled", "leanest"): {4: 1.00, 16: 1.07, 64: 1.71},
    ("gpt2", "eager", "fast"): {4: 1.85, 16: 1.95, 64: 2.94},
    ("gpt2", "eager", "lean"): {4: 1.85, 16: 1.95, 64: 2.94},
    ("gpt2", "eager", "leanest"): {4: 1.16, 16: 1.26, 64: 2.25},
    ("gpt2-medium", "compiled", "fast"): {4: 4.28, 16: 4.35, 64: 5.04},
    ("gpt2-medium", "compiled", "lean"): {4: 4.28, 16: 4.35, 64: 5.04},
}


@pytest.mark.parametrize(("name", "mode", "recipe"), EVALUATED_GIB)
def test_the_peaks_of_evaluations_are_predicted(name: str, mode: str, recipe: Recipe) -> None:
    kind = StepKind(recipe=recipe, compiled=mode == "compiled")
    for micro_batch, measured in EVALUATED_GIB[name, mode, recipe].items():
        predicted = peak_of_evaluation(SHAPES[name], micro_batch, kind).total / GIB
        assert predicted == pytest.approx(measured, rel=0.05), micro_batch


@given(
    micro_batch=st.integers(1, 300),
    recipe=st.sampled_from(["fast", "lean", "leanest"]),
    compiled=st.booleans(),
    precision=st.sampled_from(["bfloat16", "float32"]),
    name=st.sampled_from(sorted(SHAPES)),
)
def test_one_window_more_never_needs_less(
    micro_batch: int, recipe: Recipe, compiled: bool, precision: Precision, name: str
) -> None:
    kind = StepKind(recipe=recipe, compiled=compiled, precision=precision)
    fewer, more = (
        peak_of_run(SHAPES[name], count, kind) for count in (micro_batch, micro_batch + 1)
    )
    assert fewer.total <= more.total


@given(micro_batch=st.integers(1, 300), name=st.sampled_from(sorted(SHAPES)))
def test_a_leaner_recipe_never_needs_more(micro_batch: int, name: str) -> None:
    kinds = [StepKind(recipe=recipe) for recipe in ("fast", "lean", "leanest")]
    totals = [peak_of_step(SHAPES[name], micro_batch, kind).total for kind in kinds]
    assert totals == sorted(totals, reverse=True)


def test_logits_never_exist_whole() -> None:
    tokens = 64 * 1024
    whole = 4 * tokens * SHAPES["gpt2"].padded_vocabulary
    assert chunk_rows(tokens, SHAPES["gpt2"].padded_vocabulary) < tokens
    assert peak_of_step(SHAPES["gpt2"], 64, StepKind()).logits < whole / 4


def test_the_formula_does_not_load_torch() -> None:
    code = "import sys, lowtide.model.needs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
