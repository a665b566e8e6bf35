"""With documents, each is as if it were alone in the world: its own positions, and nobody else to look at."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lowtide.model.gpt import GPT, document_mask, document_positions
from lowtide.model.shape import ModelShape
from lowtide.model.targets import IGNORED
from tests.model.plain_gpt import plain_logits, plain_loss
from tests.model.small import SMALL, batch, gradients, lively

PATIENT = settings(deadline=None)
ALONE = {"rtol": 1e-9, "atol": 1e-9}


def numbers(lengths: list[int], context: int) -> Tensor:
    """One row: documents of these lengths, then padding."""
    told = [number for number, length in enumerate(lengths) for _ in range(length)][:context]
    return torch.tensor([told + [-1] * (context - len(told))])


@st.composite
def packed(draw: st.DrawFn) -> Tensor:
    """A few rows of documents; some full, some with padding, one of nothing else."""
    rows = draw(st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=4))
    return torch.cat([numbers(row, SMALL.context) for row in rows])


def stretches(row: Tensor) -> list[slice]:
    """Where each document of a row lies."""
    told = row.tolist()
    starts = [at for at, one in enumerate(told) if one >= 0 and (at == 0 or told[at - 1] != one)]
    return [slice(at, at + told.count(told[at])) for at in starts]


@PATIENT
@given(documents=packed(), seed=st.integers(0, 99))
def test_predictions_are_those_of_each_document_alone(documents: Tensor, seed: int) -> None:
    model = lively(SMALL, seed=seed).double()
    tokens, _ = batch(SMALL, rows=len(documents), seed=seed)
    with torch.no_grad():
        features = model.features(tokens, documents)
        logits = features @ model.token_embedding.weight[: SMALL.vocabulary_size].T
        for row in range(len(documents)):
            for place in stretches(documents[row]):
                alone = plain_logits(model.state_dict(), SMALL, tokens[row : row + 1, place])
                torch.testing.assert_close(logits[row, place], alone[0], **ALONE)
    assert features.isfinite().all()


@pytest.mark.parametrize("recompute", [False, True])
def test_loss_and_gradients_are_those_of_documents_in_rows_of_their_own(recompute: bool) -> None:
    documents = torch.cat([numbers([5, 4, 2], 12), numbers([12], 12), numbers([3], 12)])
    tokens, targets = batch(SMALL, ignored=0.3)
    targets[documents < 0] = IGNORED
    model = lively(SMALL, recompute=recompute)
    loss = model(tokens, targets, documents=documents)
    loss.backward()
    alone, aims = torch.zeros(5, 12, dtype=torch.int64), torch.full((5, 12), IGNORED)
    places = [(row, place) for row in range(3) for place in stretches(documents[row])]
    for at, (row, place) in enumerate(places):
        length = place.stop - place.start
        alone[at, :length], aims[at, :length] = tokens[row, place], targets[row, place]
    state = {name: p.detach().double().requires_grad_() for name, p in model.named_parameters()}
    plain = plain_loss(state, SMALL, alone, aims)
    plain.backward()
    torch.testing.assert_close(loss.detach().double(), plain.detach(), rtol=1e-5, atol=1e-6)
    for name, gradient in gradients(model).items():
        wanted = state[name].grad
        torch.testing.assert_close(gradient.double(), wanted, rtol=1e-3, atol=1e-4, msg=name)


def test_a_row_of_one_document_is_the_row_without_any() -> None:
    model, (tokens, targets) = lively(SMALL), batch(SMALL)
    one = torch.zeros_like(tokens)
    with torch.no_grad():
        torch.testing.assert_close(
            model(tokens, targets, documents=one), model(tokens, targets), rtol=1e-6, atol=1e-6
        )


def test_padding_alone_is_no_loss_and_no_gradient() -> None:
    model, (tokens, targets) = lively(SMALL), batch(SMALL)
    documents = torch.full_like(tokens, -1)
    loss = model(tokens, torch.full_like(targets, IGNORED), documents=documents)
    loss.backward()
    assert loss.item() == 0
    assert all(not gradient.any() for gradient in gradients(model).values())


def test_autocast_gives_a_mask_of_its_own_kind() -> None:
    model, (tokens, targets) = lively(SMALL), batch(SMALL)
    documents = numbers([5, 4, 2], 12).expand_as(tokens)
    plain = model(tokens, targets, documents=documents)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(tokens, targets, documents=documents)
    rounded.backward()
    assert rounded.item() == pytest.approx(plain.item(), rel=0.02)


def test_positions_and_places_to_look_at() -> None:
    documents = torch.tensor([[0, 0, 1, 2, 2, -1, -1]])
    assert document_positions(documents).tolist() == [[0, 1, 0, 0, 1, 0, 1]]
    seen = document_mask(documents, torch.float32)[0, 0] == 0
    wanted = [[0], [0, 1], [2], [3], [3, 4], [5], [5, 6]]
    assert [row.nonzero().flatten().tolist() for row in seen] == wanted


def test_a_compiled_model_takes_documents_too() -> None:
    """Traced and differentiated as a whole, without the minute that machine code takes."""
    shape = ModelShape(layers=1, heads=2, width=8, context=12, vocabulary_size=131)
    model, (tokens, targets) = lively(shape), batch(shape)
    documents = numbers([5, 4, 2], 12).expand_as(tokens)
    plain = model(tokens, targets, documents=documents)
    plain.backward()
    wanted = {name: gradient.clone() for name, gradient in gradients(model).items()}
    compiled: GPT = lively(shape)
    compiled.features = torch.compile(compiled.features, backend="aot_eager", fullgraph=True)  # type: ignore[method-assign]
    loss = compiled(tokens, targets, documents=documents)
    loss.backward()
    torch.testing.assert_close(loss, plain)
    for name, gradient in gradients(compiled).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-5, msg=name)
