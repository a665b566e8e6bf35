"""A model of ours is transformers' GPT-2, and the other way round: same files, same logits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

from lowtide import Tokenizer
from lowtide.errors import DataError, UsageError, VerificationError
from lowtide.guard import process_folders
from lowtide.model.gpt import GPT
from lowtide.model.hugging_face import (
    config_of,
    from_hugging_face,
    pairs_of,
    shape_of,
    to_hugging_face,
)
from lowtide.model.shape import SHAPES, ModelShape
from lowtide.stages.export_model import export_model
from lowtide.stages.open_model import open_model
from tests.commands import bytes_of, lowtide
from tests.model.plain_gpt import plain_logits
from tests.model.small import SMALL, batch, lively
from tests.runs import TINY, add_checkpoint, begin_run


def their_model(shape: ModelShape, **changed: object) -> GPT2LMHeadModel:
    """A GPT2LMHeadModel whose every number was drawn, biases too."""
    torch.manual_seed(11)
    model = GPT2LMHeadModel(GPT2Config(**{**config_of(shape), **changed}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    return model.eval()


def assert_same_logits(ours: GPT, theirs: GPT2LMHeadModel) -> None:
    shape = ours.shape
    tokens, _ = batch(shape)
    with torch.no_grad():
        mine = ours.features(tokens) @ ours.token_embedding.weight[: shape.vocabulary_size].T
        wanted = theirs(tokens).logits
    assert wanted.shape == mine.shape
    assert float(wanted.std()) > 0.1
    torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two checkpoints."""
    folder = begin_run(tmp_path / "run")
    for step in (1000, 2000):
        add_checkpoint(folder, lively(TINY, seed=step), step)
    return folder


def test_an_exported_run_opens_in_transformers_with_the_same_logits(
    run: Path, tmp_path: Path
) -> None:
    out = export_model(run, tmp_path / "out")
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        out, output_loading_info=True
    )
    assert not any(report.values()), report
    assert isinstance(theirs, GPT2LMHeadModel)
    assert_same_logits(lively(TINY, seed=2000), theirs)


def test_the_loss_is_transformers_too(run: Path, tmp_path: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(export_model(run, tmp_path / "out"))
    tokens, _ = batch(TINY)
    with torch.no_grad():
        wanted = theirs(tokens, labels=tokens).loss
        ours = lively(TINY, seed=2000)(tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)


def test_an_exported_tokenizer_opens_in_transformers(run: Path, tmp_path: Path) -> None:
    out = export_model(run, tmp_path / "out")
    ours = Tokenizer.load(run / "tokenizer")
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert theirs.model_max_length == json.loads((out / "config.json").read_text())["n_positions"]
    text = "The tide, über  allem: 潮 12345\n\n"
    assert theirs(text)["input_ids"] == ours.encode(text)
    assert theirs.decode(ours.encode(text)) == text
    assert theirs.eos_token_id == ours.end_of_text
    config = transformers.AutoConfig.from_pretrained(out)
    assert config.eos_token_id == config.bos_token_id == ours.end_of_text


def test_transformers_generates_from_an_exported_run(run: Path, tmp_path: Path) -> None:
    from lowtide.model.generate import generate

    out = export_model(run, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out)
    wanted = theirs.generate(
        torch.tensor([[5, 6]]),
        max_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    ours = list(generate(lively(TINY, seed=2000), [5, 6], count=12, temperature=0))
    assert wanted[0, 2:].tolist() == ours


def test_an_exported_folder_comes_back_as_the_same_numbers(run: Path, tmp_path: Path) -> None:
    opened = open_model(export_model(run, tmp_path / "out", step=1000), device="cpu")
    wanted = lively(TINY, seed=1000).state_dict()
    wanted["token_embedding.weight"][TINY.vocabulary_size :] = 0
    assert opened.model.shape == TINY
    assert_equal(opened.model.state_dict(), wanted)
    assert opened.tokenizer is not None


def test_a_run_without_a_tokenizer_is_exported_without_one(tmp_path: Path) -> None:
    run = begin_run(tmp_path / "run", with_tokenizer=False)
    add_checkpoint(run, lively(TINY), 1)
    out = export_model(run, tmp_path / "out")
    assert {path.name for path in out.iterdir()} == {
        "config.json",
        "generation_config.json",
        "lowtide-export.json",
        "model.safetensors",
    }
    transformers.AutoModelForCausalLM.from_pretrained(out)


@pytest.mark.parametrize("kind", [GPT2LMHeadModel, GPT2Model])
@pytest.mark.parametrize("size", ["5GB", "20KB"])
def test_a_model_saved_by_transformers_loads_with_the_same_logits(
    kind: type, size: str, tmp_path: Path
) -> None:
    theirs = their_model(SMALL)
    saved = theirs if kind is GPT2LMHeadModel else theirs.transformer
    saved.save_pretrained(tmp_path, max_shard_size=size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (size == "20KB")
    assert_same_logits(open_model(tmp_path, device="cpu").model, theirs)


def test_a_model_in_half_precision_loads_in_float32(tmp_path: Path) -> None:
    theirs = their_model(SMALL).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    opened = open_model(tmp_path, device="cpu").model
    assert {parameter.dtype for parameter in opened.parameters()} == {torch.float32}
    assert_same_logits(opened, theirs.float())


def test_the_weights_that_were_published_first_have_other_names_and_load() -> None:
    """Without `transformer.`, with masks among the weights, and sometimes with the head."""
    theirs = their_model(SMALL)
    state = {k.removeprefix("transformer."): v for k, v in theirs.state_dict().items()}
    state["h.0.attn.bias"] = torch.ones(1, 1, 12, 12).tril()
    state["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    ours = GPT(SMALL)
    ours.load_state_dict(from_hugging_face(state, SMALL))
    assert_same_logits(ours, theirs)


def test_there_and_back_nothing_changes() -> None:
    state = lively(SMALL).state_dict()
    state["token_embedding.weight"][SMALL.vocabulary_size :] = 0
    assert_equal(from_hugging_face(to_hugging_face(state, SMALL), SMALL), state)


def test_names_and_sizes_are_exactly_those_of_transformers() -> None:
    theirs = their_model(SMALL).state_dict()
    ours = to_hugging_face(lively(SMALL).state_dict(), SMALL)
    assert {**ours, "lm_head.weight": ours["transformer.wte.weight"]}.keys() == theirs.keys()
    assert all(tensor.shape == theirs[name].shape for name, tensor in ours.items())
    assert {pair.ours for pair in pairs_of(SMALL)} == lively(SMALL).state_dict().keys()


def test_conversion_copies_nothing() -> None:
    state = lively(SMALL).state_dict()
    held = {tensor.untyped_storage().data_ptr() for tensor in state.values()}
    for name, tensor in to_hugging_face(state, SMALL).items():
        assert tensor.untyped_storage().data_ptr() in held, name


def test_the_plain_gpt_of_these_tests_is_transformers_too() -> None:
    theirs = their_model(SMALL)
    tokens, _ = batch(SMALL)
    with torch.no_grad():
        plain = plain_logits(from_hugging_face(theirs.state_dict(), SMALL), SMALL, tokens)
        torch.testing.assert_close(plain, theirs(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_a_config_leads_back_to_its_shape(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    config = config_of(shape, end_of_text=50256)
    assert shape_of(config) == shape
    GPT2Config(**config).save_pretrained(tmp_path)
    assert shape_of(json.loads((tmp_path / "config.json").read_text())) == shape


def test_an_absent_setting_is_gpt2s() -> None:
    assert shape_of({"model_type": "gpt2"}) == SHAPES["gpt2"]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"model_type": "llama"}, "type 'llama'"),
        ({"model_type": None}, "type None"),
        ({"activation_function": "relu"}, "activation 'relu'"),
        ({"activation_function": "gelu"}, "activation 'gelu'"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon of 1e-06"),
        ({"scale_attn_weights": False}, "scale_attn_weights of False"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx of True"),
        ({"add_cross_attention": True}, "add_cross_attention of True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings of False"),
        ({"quantization_config": {"bits": 4}}, "quantization_config of"),
        ({"n_inner": 17}, "n_inner of 17 instead of 64"),
        ({"n_layer": 0}, "n_layer is 0"),
        ({"n_embd": "wide"}, "n_embd is 'wide'"),
    ],
)
def test_another_architecture_is_refused(changed: dict[str, object], problem: str) -> None:
    config = config_of(SMALL)
    config.update(changed)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=problem):
        shape_of(config)


@pytest.mark.parametrize("changed", [{"activation_function": "gelu_pytorch_tanh"}, {"n_inner": 64}])
def test_another_spelling_of_the_same_is_not(changed: dict[str, object], tmp_path: Path) -> None:
    theirs = their_model(SMALL, **changed)
    theirs.save_pretrained(tmp_path)
    assert_same_logits(open_model(tmp_path, device="cpu").model, theirs)


def test_weights_that_belong_to_another_config_are_refused(tmp_path: Path) -> None:
    their_model(SMALL).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_positions": 99}))
    with pytest.raises(DataError, match=r"wpe.weight has \(12, 16\)"):
        open_model(tmp_path, device="cpu")
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_layer": 3}))
    with pytest.raises(DataError, match=r"no transformer.h.2"):
        open_model(tmp_path, device="cpu")


def test_a_head_of_its_own_is_refused() -> None:
    state = dict(their_model(SMALL).state_dict())
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    with pytest.raises(DataError, match="not the embedding"):
        from_hugging_face(state, SMALL)


def test_damaged_or_absent_files_are_named(tmp_path: Path) -> None:
    their_model(SMALL).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    with pytest.raises(DataError, match=r"cannot read .*model.safetensors"):
        open_model(tmp_path)
    weights.unlink()
    with pytest.raises(DataError, match=r"holds no model.safetensors"):
        open_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(DataError, match="not an index of weights"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match="not whole JSON"):
        open_model(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        open_model(tmp_path / "nowhere")


def test_a_head_saved_beside_the_embedding_is_no_obstacle(tmp_path: Path) -> None:
    theirs = their_model(SMALL)
    theirs.save_pretrained(tmp_path)
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert_same_logits(open_model(tmp_path, device="cpu").model, theirs)


def test_an_export_is_absent_or_whole(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lowtide.stages.export_model._write_json", fail)
    with pytest.raises(KeyboardInterrupt):
        export_model(run, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_export_outlives_the_checkpoint_that_it_has_read(run: Path, tmp_path: Path) -> None:
    def prune(_: object) -> None:
        shutil.rmtree(run / "checkpoints" / "step-00001000")

    whole = export_model(run, tmp_path / "whole", step=1000)
    pruned = export_model(run, tmp_path / "pruned", step=1000, listen=prune)
    assert bytes_of(pruned) == bytes_of(whole)


def test_an_export_takes_an_empty_folder_and_no_other(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    assert export_model(run, out) == out
    (out / "lowtide-export.json").unlink()  # then it may be anyone's
    with pytest.raises(UsageError, match=r"already holds something, such as config.json"):
        export_model(run, out)
    with pytest.raises(UsageError, match="is a file"):
        export_model(run, out / "config.json")


def test_an_export_that_is_done_is_found_done_and_only_that_one(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("export", run, "--to", "huggingface", "--out", out, "--json")
    first, again = lowtide(*words), lowtide(*words, "--step", "2000")
    assert (first.json["already_done"], again.json["already_done"]) == (False, True)
    before = bytes_of(out)
    other = lowtide(*words, "--step", "1000")
    assert other.code == 2
    assert "step-00002000" in other.problem
    assert "step-00001000" in other.problem
    another = begin_run(tmp_path / "another")
    add_checkpoint(another, lively(TINY, seed=7), 2000)
    assert lowtide("export", another, *words[2:]).code == 2
    assert bytes_of(out) == before
    (out / "config.json").write_text("{}")
    changed = lowtide(*words)
    assert changed.code == 2
    assert "config.json" in changed.problem
    assert (out / "config.json").read_text() == "{}"


def test_an_export_names_the_steps_there_are(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkpoint of step 7") as refused:
        export_model(run, tmp_path / "out", step=7)
    assert "1000, 2000" in refused.value.remedy
    with pytest.raises(UsageError, match="not a folder of a training run"):
        export_model(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_checkpoint_is_not_exported(run: Path, tmp_path: Path) -> None:
    weights = run / "checkpoints" / "step-00002000" / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-5] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(VerificationError, match="step-00002000"):
        export_model(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    shutil.rmtree(weights.parent)  # as the remedy says
    assert export_model(run, tmp_path / "out").exists()


def assert_equal(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def test_what_a_killed_export_left_goes_with_the_next(run: Path, tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    mark = process_folders.process_folder_name("").replace(f"-{os.getpid()}-", f"-{dead.pid}-")
    left, mine = tmp_path / f".out.{mark}.tmp", tmp_path / f".other.{mark}.tmp"
    for folder in (left, mine, tmp_path / ".out.x.tmp"):
        folder.mkdir()
    export_model(run, tmp_path / "out")
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {mine.name, ".out.x.tmp", "out", "run"}


def test_an_export_under_way_on_another_machine_is_left_alone(run: Path, tmp_path: Path) -> None:
    """On a shared disk its process has a number that may be nobody's here, or somebody else's."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    machine, _, began = process_folders.process_folder_name("").split("-")
    other = f"{int(machine, 16) ^ 1:08x}"
    at_work = [f".out.{other}-{dead.pid}-{began}.tmp", f".out.{dead.pid}.tmp"]
    ours = f".out.{machine}-{os.getpid()}-{int(began) - 1}.tmp"  # of one that had our number before
    for name in (*at_work, ours):
        (tmp_path / name).mkdir()
    export_model(run, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {*at_work, "out", "run"}
