"""A shape's arithmetic is that of the model it describes, and of everyone else's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel

from lowtide.errors import UsageError
from lowtide.model.gpt import GPT
from lowtide.model.shape import SHAPES, ModelShape, find_shape
from tests.model.small import batch, lively, shapes

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
}


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_as_many_as_transformers_counts(name: str) -> None:
    shape = SHAPES[name]
    config = GPT2Config(
        n_layer=shape.layers,
        n_head=shape.heads,
        n_embd=shape.width,
        n_positions=shape.context,
        vocab_size=shape.vocabulary_size,
    )
    with torch.device("meta"):
        theirs = GPT2LMHeadModel(config)
    assert shape.parameter_count == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_models_have_their_published_size(name: str) -> None:
    assert find_shape(name).parameter_count == PUBLISHED[name]


@given(shape=shapes())
def test_stored_parameters_are_those_of_the_model(shape: ModelShape) -> None:
    with torch.device("meta"):
        model = GPT(shape)
    assert shape.stored_parameter_count == sum(p.numel() for p in model.parameters())
    block = sum(p.numel() for p in model.blocks[0].parameters())
    assert shape.block_parameter_count == block


@given(shape=shapes())
def test_the_vocabulary_is_padded_to_whole_tiles_and_no_further(shape: ModelShape) -> None:
    assert shape.padded_vocabulary % 128 == 0
    assert 0 <= shape.padded_vocabulary - shape.vocabulary_size < 128


def test_flops_are_those_that_torch_counts_in_a_step() -> None:
    shape = ModelShape(layers=2, heads=2, width=32, context=16, vocabulary_size=256)
    model = lively(shape)
    tokens, _ = batch(shape, rows=2)
    with FlopCounterMode(display=False) as counter:
        logits = model.features(tokens) @ model.token_embedding.weight.T
        logits.sum().backward()
    counted = counter.get_flop_counts()["Global"].items()
    in_matrices = sum(number for name, number in counted if "attention" not in str(name))
    in_attention = 12 * shape.layers * shape.width * shape.context
    assert (shape.flops_per_token - in_attention) * tokens.numel() == in_matrices


def test_another_vocabulary_and_context_change_nothing_else() -> None:
    shape = SHAPES["gpt2"].with_data(vocabulary_size=300, context=64)
    assert (shape.vocabulary_size, shape.context) == (300, 64)
    assert (shape.layers, shape.heads, shape.width) == (12, 12, 768)
    assert SHAPES["gpt2"].with_data(vocabulary_size=300).context == 1024


@pytest.mark.parametrize("name", ["layers", "heads", "width", "context", "vocabulary_size"])
def test_a_shape_of_nothing_is_refused(name: str) -> None:
    numbers = {"layers": 1, "heads": 1, "width": 1, "context": 1, "vocabulary_size": 1}
    assert ModelShape(**numbers)
    with pytest.raises(UsageError, match=f"{name} of 0"):
        ModelShape(**{**numbers, name: 0})


def test_a_shape_beyond_all_machines_is_refused() -> None:
    with pytest.raises(UsageError, match="layers of 1000000000000"):
        ModelShape(layers=10**12, heads=2, width=4)


def test_heads_must_share_the_width_evenly_and_the_remedy_works() -> None:
    with pytest.raises(UsageError, match="cannot be shared") as refused:
        ModelShape(layers=1, heads=3, width=10)
    advised = int(refused.value.remedy.rpartition(" ")[2])
    assert ModelShape(layers=1, heads=3, width=advised)


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="no model 'gpt3'") as refused:
        find_shape("gpt3")
    assert all(name in refused.value.remedy for name in SHAPES)
