"""The model computes what GPT-2 is described to compute, and starts as GPT-2 starts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.model import head_loss as room
from lowtide.model.gpt import GPT, gelu, initialise
from lowtide.model.shape import ModelShape
from lowtide.model.targets import IGNORED
from tests.model.plain_gpt import plain_logits, plain_loss
from tests.model.small import SMALL, batch, gradients, lively, shapes

PATIENT = settings(deadline=None)


@PATIENT
@given(shape=shapes(), seed=st.integers(0, 99))
def test_logits_are_those_of_a_plain_gpt(shape: ModelShape, seed: int) -> None:
    model = lively(shape, seed=seed).double()
    tokens, _ = batch(shape, seed=seed)
    with torch.no_grad():
        ours = model.features(tokens) @ model.token_embedding.weight[: shape.vocabulary_size].T
        plain = plain_logits(model.state_dict(), shape, tokens)
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)


@PATIENT
@given(shape=shapes(), seed=st.integers(0, 99), ignored=st.sampled_from([0.0, 0.3, 1.0]))
def test_loss_and_every_gradient_are_those_of_a_plain_gpt(
    shape: ModelShape, seed: int, ignored: float
) -> None:
    """In float64: two nearly equal numbers in a norm of width 2 lose every digit of a float32 gradient."""
    model = lively(shape, seed=seed).double()
    tokens, targets = batch(shape, seed=seed, ignored=ignored)
    loss = model(tokens, targets)
    loss.backward()
    state = {name: p.detach().double().requires_grad_() for name, p in model.named_parameters()}
    plain = plain_loss(state, shape, tokens, targets)
    plain.backward()
    torch.testing.assert_close(loss.detach().double(), plain.detach(), rtol=1e-4, atol=1e-5)
    wanted = {name: leaf.grad for name, leaf in state.items()}
    scale = max(float(gradient.abs().max()) for gradient in wanted.values() if gradient is not None)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(
            gradient.double(), wanted[name], rtol=1e-3, atol=1e-4 * (scale + 0.1), msg=name
        )


def test_rows_that_only_pad_the_vocabulary_have_no_gradient() -> None:
    model = lively(SMALL)
    model(*batch(SMALL)).backward()
    gradient = gradients(model)["token_embedding.weight"]
    assert gradient[: SMALL.vocabulary_size].abs().sum() > 0
    assert not gradient[SMALL.vocabulary_size :].any()


def test_recomputed_blocks_give_the_same_bits() -> None:
    tokens, targets = batch(SMALL, ignored=0.2)
    kept, again = lively(SMALL), lively(SMALL, recompute=True)
    losses = [model(tokens, targets) for model in (kept, again)]
    for loss in losses:
        loss.backward()
    assert torch.equal(*losses)
    for name, gradient in gradients(kept).items():
        assert torch.equal(gradient, gradients(again)[name]), name


def test_recomputed_blocks_keep_fewer_activations() -> None:
    def kept_numbers(model: GPT) -> int:
        sizes: list[int] = []

        def note(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(*batch(SMALL))
        return sum(sizes)

    assert kept_numbers(lively(SMALL, recompute=True)) < kept_numbers(lively(SMALL)) / 2


def test_evaluation_has_the_loss_of_training() -> None:
    model = lively(SMALL)
    tokens, targets = batch(SMALL, ignored=0.2)
    training = model(tokens, targets)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, targets), training)
    with torch.inference_mode():
        torch.testing.assert_close(model(tokens, targets), training.detach())


@PATIENT
@given(cut=st.integers(1, 5), ignored=st.sampled_from([0.0, 0.5]), seed=st.integers(0, 20))
def test_parts_of_a_step_add_up_to_the_whole(cut: int, ignored: float, seed: int) -> None:
    tokens, targets = batch(SMALL, rows=6, ignored=ignored, seed=seed)
    whole, parts = lively(SMALL), lively(SMALL)
    loss = whole(tokens, targets)
    loss.backward()
    count = (targets != IGNORED).sum().clamp(min=1).float()
    total = 0.0
    for part in (slice(0, cut), slice(cut, None)):
        piece = parts(tokens[part], targets[part], count)
        piece.backward()
        total += float(piece.detach())
    assert total == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(parts)[name], gradient, rtol=1e-4, atol=1e-6)


def test_no_position_sees_a_later_one() -> None:
    model = lively(SMALL)
    tokens, _ = batch(SMALL)
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % SMALL.vocabulary_size
    with torch.no_grad():
        before, after = model.features(tokens), model.features(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_embedding_may_begin_anywhere_in_the_context() -> None:
    model = lively(SMALL)
    tokens, _ = batch(SMALL)
    torch.testing.assert_close(model.embed(tokens[:, 5:], 5), model.embed(tokens)[:, 5:])


def test_both_spellings_of_gelu_are_the_same_function(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    eager = gelu(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(gelu(x), eager, rtol=1e-12, atol=1e-12)


def test_under_autocast_the_loss_is_near_and_the_gradients_are_float32() -> None:
    exact, rounded = lively(SMALL), lively(SMALL)
    tokens, targets = batch(SMALL)
    wanted = exact(tokens, targets)
    with torch.autocast("cpu", torch.bfloat16):
        assert rounded.features(tokens).dtype == torch.bfloat16
        loss = rounded(tokens, targets)
        assert loss.dtype == torch.float32
        assert torch.is_autocast_enabled("cpu")
    loss.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=0.03)
    assert loss.item() != wanted.item()
    assert {gradient.dtype for gradient in gradients(rounded).values()} == {torch.float32}
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_does_not_reach_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    plain = room.turn_logits

    def watch(*arguments: object) -> torch.Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(room, "turn_logits", watch)
    with torch.autocast("cpu", torch.bfloat16):
        lively(SMALL)(*batch(SMALL)).backward()
    assert seen == [False] * len(seen) != []


def test_the_start_is_gpt2s() -> None:
    shape = ModelShape(layers=8, heads=4, width=128, context=64, vocabulary_size=1000)
    model = GPT(shape)
    initialise(model, 1)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert bool((parameter == 1).all()), name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        else:
            wanted = 0.02
            if name.endswith(("attention.out.weight", "perceptron.narrow.weight")):
                wanted /= math.sqrt(16)
            drawn = parameter[: shape.vocabulary_size]
            assert float(drawn.detach().std()) == pytest.approx(wanted, rel=0.05), name
            assert abs(float(drawn.detach().mean())) < wanted / 10, name


def test_the_first_loss_is_that_of_knowing_nothing() -> None:
    shape = ModelShape(layers=2, heads=2, width=64, context=32, vocabulary_size=500)
    model = GPT(shape)
    initialise(model, 0)
    assert float(model(*batch(shape, rows=8)).detach()) == pytest.approx(math.log(500), abs=0.1)


def test_the_start_depends_on_the_seed_and_not_on_what_was_there() -> None:
    first, second, other = GPT(SMALL), GPT(SMALL), GPT(SMALL)
    torch.manual_seed(99)
    initialise(first, 5)
    state = torch.get_rng_state()
    initialise(second, 5)
    initialise(other, 6)
    assert torch.equal(state, torch.get_rng_state())
    for (name, a), b, c in zip(
        first.named_parameters(), second.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b), name
        assert a.dim() < 2 or not torch.equal(a, c), name


def test_padding_is_zero_and_changes_no_other_number(monkeypatch: pytest.MonkeyPatch) -> None:
    padded = GPT(SMALL)
    initialise(padded, 3)
    monkeypatch.setattr("lowtide.model.shape._ROWS_OF_A_TILE", 1)
    bare = GPT(SMALL)
    initialise(bare, 3)
    assert len(bare.token_embedding.weight) == SMALL.vocabulary_size
    for (name, with_padding), without in zip(
        padded.named_parameters(), bare.parameters(), strict=True
    ):
        assert torch.equal(with_padding[: len(without)], without), name
        assert not with_padding[len(without) :].any(), name
