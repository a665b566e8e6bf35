"""Our GPT and transformers' GPT2LMHeadModel: the same numbers under other names. transformers is not needed.

    blocks.0.attention.out.weight (out, in)   ⇄   transformer.h.0.attn.c_proj.weight (in, out)

Their matrices lie on their side (Conv1D). Their vocabulary has no padding: rows are cut off on the way out,
zeros put back on the way in. Their head is the embedding, as ours is, and is not stored twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lowtide.errors import DataError
from lowtide.model.gpt import GPT
from lowtide.model.shape import ModelShape
from lowtide.storage.sealed_json import JsonObject, JsonValue

_OF_BLOCK = {
    "attention_norm": "ln_1",
    "attention.queries_keys_values": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "perceptron_norm": "ln_2",
    "perceptron.widen": "mlp.c_fc",
    "perceptron.narrow": "mlp.c_proj",
}
_EMBEDDING = "token_embedding.weight"
_HEAD = "lm_head.weight"
_PREFIX = "transformer."
_LAYER = re.compile(r"(?:transformer\.)?h\.(\d+)\.")
_SAME_ACTIVATION = ("gelu_new", "gelu_pytorch_tanh")
_MUST_BE: dict[str, tuple[JsonValue, JsonValue]] = {
    "layer_norm_epsilon": (1e-5, 1e-5),
    "scale_attn_weights": (True, True),
    "scale_attn_by_inverse_layer_idx": (False, False),
    "add_cross_attention": (False, False),
    "tie_word_embeddings": (True, True),
    "quantization_config": (None, None),
}
"""What another value would compute otherwise: the value it must have, and what an absent one means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One tensor under both names."""

    ours: str
    theirs: str
    lies_on_its_side: bool
    """Theirs is ours transposed."""


def pairs_of(shape: ModelShape) -> list[Pair]:
    """Every tensor of a model, in the order in which it is used."""
    found = [
        Pair(ours=_EMBEDDING, theirs="transformer.wte.weight", lies_on_its_side=False),
        Pair(
            ours="position_embedding.weight",
            theirs="transformer.wpe.weight",
            lies_on_its_side=False,
        ),
    ]
    for layer in range(shape.layers):
        for ours, theirs in _OF_BLOCK.items():
            found += _weight_and_bias(f"blocks.{layer}.{ours}", f"transformer.h.{layer}.{theirs}")
    return found + _weight_and_bias("final_norm", "transformer.ln_f")


def to_hugging_face(state: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """The tensors of a GPT2LMHeadModel, as its `model.safetensors` holds them.

    They are views of ours, some on their side: nothing is copied before it is written.
    """
    found = {}
    for pair in pairs_of(shape):
        tensor = state[pair.ours]
        if pair.ours == _EMBEDDING:
            tensor = tensor[: shape.vocabulary_size]
        found[pair.theirs] = tensor.T if pair.lies_on_its_side else tensor
    return found


def from_hugging_face(state: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """Our tensors, in float32, out of those of a GPT2LMHeadModel or GPT2Model."""
    return dict(each_from_hugging_face(state, shape))


def each_from_hugging_face(
    state: Mapping[str, Tensor], shape: ModelShape
) -> Iterator[tuple[str, Tensor]]:
    """The same one after another, for a caller who puts each where it belongs: no two are held at a time."""
    _refuse_more_layers(state, shape)
    for pair in pairs_of(shape):
        ours = _ours(state, pair, shape)
        if pair.ours == _EMBEDDING and _HEAD in state:
            _check_head(state[_HEAD], ours[: shape.vocabulary_size])
        yield pair.ours, ours


@torch.no_grad()
def fill_from_hugging_face(model: GPT, state: Mapping[str, Tensor]) -> None:
    """Every parameter of ours gets its numbers, one after another."""
    parameters = dict(model.named_parameters())
    for name, tensor in each_from_hugging_face(state, model.shape):
        parameters[name].copy_(tensor)


def config_of(shape: ModelShape, *, end_of_text: int | None = None) -> JsonObject:
    """What config.json says about a model of this shape."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_embd": shape.width,
        "n_inner": None,
        "n_positions": shape.context,
        "n_ctx": shape.context,
        "vocab_size": shape.vocabulary_size,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "tie_word_embeddings": True,
        "use_cache": True,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "dtype": "float32",
        "torch_dtype": "float32",  # what transformers before release 5 calls it
    }


def shape_of(config: Mapping[str, JsonValue]) -> ModelShape:
    """The shape of the model that a config.json describes; DataError for one that is not GPT-2's."""
    if config.get("model_type") != "gpt2":
        raise _not_ours(f"a model of type {config.get('model_type')!r}")
    activation = config.get("activation_function", "gelu_new")
    if activation not in _SAME_ACTIVATION:
        raise _not_ours(f"the activation {activation!r}")
    for name, (wanted, if_absent) in _MUST_BE.items():
        if config.get(name, if_absent) != wanted:
            raise _not_ours(f"{name} of {config[name]!r} instead of {wanted!r}")
    shape = ModelShape(
        layers=_number(config, "n_layer", 12),
        heads=_number(config, "n_head", 12),
        width=_number(config, "n_embd", 768),
        context=_number(config, "n_positions", 1024),
        vocabulary_size=_number(config, "vocab_size", 50257),
    )
    if config.get("n_inner") not in (None, 4 * shape.width):
        raise _not_ours(f"n_inner of {config['n_inner']!r} instead of {4 * shape.width}")
    return shape


def _weight_and_bias(ours: str, theirs: str) -> list[Pair]:
    matrix = not ours.endswith("norm")
    return [
        Pair(ours=f"{ours}.weight", theirs=f"{theirs}.weight", lies_on_its_side=matrix),
        Pair(ours=f"{ours}.bias", theirs=f"{theirs}.bias", lies_on_its_side=False),
    ]


def _ours(state: Mapping[str, Tensor], pair: Pair, shape: ModelShape) -> Tensor:
    tensor = _find(state, pair.theirs)
    wanted = _their_size(pair.ours, shape)
    if pair.lies_on_its_side:
        tensor = tensor.T
    if tuple(tensor.shape) != wanted:
        raise DataError(
            f"{pair.theirs} has {tuple(tensor.shape)} numbers where config.json promises {wanted}",
            remedy="pass a folder whose config.json and weights belong together",
        )
    if pair.ours == _EMBEDDING:
        padded = torch.zeros(shape.padded_vocabulary, shape.width)
        padded[: shape.vocabulary_size] = tensor
        return padded
    return tensor.to(torch.float32).contiguous()


def _check_head(head: Tensor, embedding: Tensor) -> None:
    if not torch.equal(head.float(), embedding):
        raise DataError(
            f"{_HEAD} is not the embedding, which GPT-2's head is",
            remedy="pass a GPT-2 model whose word embeddings are tied",
        )


def _refuse_more_layers(state: Mapping[str, Tensor], shape: ModelShape) -> None:
    """Layers that the config does not count would be left out in silence."""
    found = {int(match[1]) for name in state if (match := _LAYER.match(name))}
    if found and max(found) >= shape.layers:
        raise DataError(
            f"the weights have {max(found) + 1} layers, and config.json says {shape.layers}",
            remedy="pass a folder whose config.json and weights belong together",
        )


def _find(state: Mapping[str, Tensor], name: str) -> Tensor:
    """A GPT2Model, and the weights that OpenAI published, have the names without `transformer.`."""
    for spelled in (name, name.removeprefix(_PREFIX)):
        if spelled in state:
            return state[spelled]
    raise DataError(f"the weights hold no {name}", remedy="pass the whole folder of a GPT-2 model")


def _their_size(ours: str, shape: ModelShape) -> tuple[int, ...]:
    """Of one of our tensors, as a model of this shape has it, without padding."""
    C = shape.width
    if ours == _EMBEDDING:
        return (shape.vocabulary_size, C)
    if ours == "position_embedding.weight":
        return (shape.context, C)
    wide = {"queries_keys_values": (3 * C, C), "widen": (4 * C, C), "narrow": (C, 4 * C)}
    layer, kind = ours.split(".")[-2:]
    size = wide.get(layer, (C, C))
    return size if kind == "weight" and not layer.endswith("norm") else size[:1]


def _number(config: Mapping[str, JsonValue], name: str, if_absent: int) -> int:
    value = config.get(name, if_absent)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DataError(
            f"config.json says {name} is {value!r}, which is not a count",
            remedy="pass a folder with the config.json of a GPT-2 model",
        )
    return value


def _not_ours(what: str) -> DataError:
    return DataError(
        f"config.json describes {what}, which is not GPT-2's architecture",
        remedy='pass a GPT-2 model: "model_type": "gpt2" with gelu_new and tied word embeddings',
    )
