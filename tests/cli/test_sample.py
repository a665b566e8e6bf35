"""`lowtide sample` lets a model speak: as the text comes, from the newest checkpoint, or with a clear no."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from lowtide import Tokenizer
from lowtide.errors import UsageError
from lowtide.model.generate import generate
from lowtide.model.gpt import GPT
from lowtide.model.shape import ModelShape
from lowtide.show.training_results import show_samples
from lowtide.stages import open_model as room
from lowtide.stages.export_model import export_model
from lowtide.stages.sample import sample, stream_samples
from lowtide.tokenizer.byte_pairs import BytePairs
from lowtide.tokenizer.tokenizer import decode_stream
from lowtide.training.run_folder import RUN_NAME, read_run_record
from tests.commands import LOWTIDE, call, lowtide
from tests.learnt import learnt
from tests.model.small import lively
from tests.runs import TINY, add_checkpoint, begin_run
from tests.training.small_runs import told_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints; read it, do not change it."""
    folder = begin_run(tmp_path_factory.mktemp("sample") / "run")
    for step in (1000, 2000):
        add_checkpoint(folder, lively(TINY, seed=step), step)
    return folder


def wanted_text(prompt: str, *, model_seed: int = 2000, seed: int = 0, count: int = 100) -> str:
    """What the model says, by hand."""
    tokenizer = Tokenizer.from_byte_pairs(learnt("gpt2"))
    found = generate(
        lively(TINY, seed=model_seed),
        tokenizer.encode(prompt),
        count=count,
        seed=seed,
        stop=tokenizer.end_of_text,
    )
    return tokenizer.decode(list(found))


def test_it_goes_on_from_the_prompt(run: Path) -> None:
    said = lowtide("sample", run, "--prompt", "The tide", "--count", "40", "--device", "cpu")
    assert said.code == 0, said.err
    assert said.out == f"The tide{wanted_text('The tide', count=40)}\n"
    assert said.err == ""


def test_stdin_is_the_prompt_for_a_dash(run: Path) -> None:
    asked = ("sample", run, "--count", "9", "--device", "cpu", "--prompt")
    said = lowtide(*asked, "-", stdin="über\n".encode())
    assert said.out == lowtide(*asked, "über\n").out
    assert said.out.startswith("über\n")


def test_json_holds_the_prompt_and_every_sample(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = call(
        capsys, "sample", run, "--prompt", "tide", "--samples", "3", "--seed", "4", "--json"
    ).json
    assert said["prompt"] == "tide"
    assert said["schema_version"] == 1
    assert said["samples"] == [wanted_text("tide", seed=seed) for seed in (4, 5, 6)]


def test_samples_are_told_apart(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = call(capsys, "sample", run, "--prompt", "tide", "--samples", "2", "--count", "5")
    first, second = (f"tide{wanted_text('tide', seed=seed, count=5)}" for seed in (0, 1))
    assert said.out == f"{first}\n---\n{second}\n"


def test_a_step_may_be_named(run: Path) -> None:
    older = sample(run, "tide", step=1000, device="cpu")
    assert older == [wanted_text("tide", model_seed=1000)]
    assert older != sample(run, "tide", device="cpu")


def test_every_dial_reaches_the_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("sample", run, "--prompt", "tide", "--count", "30", "--temperature", "5")
    plain = call(capsys, *asked).out
    for dial in (("--temperature", "0"), ("--top-k", "1"), ("--top-p", "0.01"), ("--seed", "1")):
        assert call(capsys, *asked, *dial).out != plain, dial
    likeliest = call(capsys, *asked, "--temperature", "0").out
    assert call(capsys, *asked, "--top-k", "1").out == likeliest
    assert call(capsys, *asked, "--top-p", "1e-9").out == likeliest


def test_an_exported_folder_speaks_like_its_run(run: Path, tmp_path: Path) -> None:
    out = export_model(run, tmp_path / "out")
    assert sample(out, "tide", device="cpu") == sample(run, "tide", device="cpu")


def test_an_empty_prompt_begins_a_document(run: Path) -> None:
    assert sample(run, "", device="cpu") == sample(run, "<|endoftext|>", device="cpu")


def test_text_ends_before_the_end_of_text(tmp_path: Path) -> None:
    run = begin_run(tmp_path / "run")
    model = lively(TINY)
    end = Tokenizer.load(run / "tokenizer").end_of_text
    assert end is not None
    with torch.no_grad():  # whatever it reads, the end comes next
        model.final_norm.weight.zero_()
        model.final_norm.bias.copy_(model.token_embedding.weight[end] * 100)
    add_checkpoint(run, model, 1)
    assert sample(run, "tide", temperature=0, device="cpu") == [""]


def test_text_comes_as_it_is_made(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    embed = GPT.embed

    def watch(self: GPT, tokens: torch.Tensor, first: int = 0) -> torch.Tensor:
        made.append(1)
        return embed(self, tokens, first)

    monkeypatch.setattr(GPT, "embed", watch)
    streams = stream_samples(run, "tide", count=1000, device="cpu")
    assert made == []
    next(next(streams))
    assert len(made) < 10


@pytest.mark.slow
def test_a_reader_who_leaves_ends_it_quietly(run: Path) -> None:
    asked = [*LOWTIDE, "sample", str(run), "--prompt", "tide", "--count", "100k", "--device", "cpu"]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(200)
        process.stdout.close()
        assert process.wait(timeout=300) != 0
        assert b"Traceback" not in process.stderr.read()


def test_a_character_in_pieces_appears_when_it_is_whole() -> None:
    pairs = learnt("gpt2")
    bytes_alone = BytePairs(
        pattern="gpt2",
        special_tokens={},
        tokens={token: n for n, token in enumerate(t for t in pairs.tokens if len(t) == 1)},
        merges=(),
    )
    tokenizer = Tokenizer.from_byte_pairs(bytes_alone)
    text = "潮 über"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert list(decode_stream(tokenizer, iter(ids))) == list(text)
    assert "".join(decode_stream(tokenizer, iter(ids[:2]))) == "�"


def test_an_id_that_the_tokenizer_does_not_know_is_shown_as_such() -> None:
    tokenizer = Tokenizer.from_byte_pairs(learnt("gpt2"))
    ids = [*tokenizer.encode("a tide"), 99_999, *tokenizer.encode(" and boats")]
    assert "".join(decode_stream(tokenizer, iter(ids))) == "a tide� and boats"


def test_a_stream_is_the_whole_text(run: Path) -> None:
    tokenizer = Tokenizer.load("gpt2")
    text = "Tides 潮汐 🌊 and naïve boats,\n\n  twice." * 20
    assert "".join(decode_stream(tokenizer, iter(tokenizer.encode(text)))) == text


def test_a_checkpoint_that_vanishes_is_replaced_by_the_newest(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = tmp_path / "run"
    shutil.copytree(run, moving)
    load, seen = room.load_model, []

    def lose_the_first(checkpoint: Path, model: GPT) -> None:
        seen.append(checkpoint.name)
        if len(seen) == 1:
            add_checkpoint(moving, lively(TINY, seed=3000), 3000)
            (checkpoint / "model.safetensors").unlink()
        load(checkpoint, model)

    monkeypatch.setattr(room, "load_model", lose_the_first)
    assert sample(moving, "tide", device="cpu") == [wanted_text("tide", model_seed=3000)]
    assert seen == ["step-00002000", "step-00003000"]


def test_it_speaks_while_checkpoints_come_and_go(tmp_path: Path) -> None:
    run = begin_run(tmp_path / "run")
    add_checkpoint(run, lively(TINY), 1)
    done = threading.Event()

    def train() -> None:
        step = 1
        model = lively(TINY)
        while not done.is_set():
            step += 1
            add_checkpoint(run, model, step)
            shutil.rmtree(run / "checkpoints" / f"step-{step - 1:08d}")

    training = threading.Thread(target=train)
    training.start()
    try:
        for _ in range(20):
            assert sample(run, "tide", count=2, device="cpu")
    finally:
        done.set()
        training.join()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (["--temperature", "-1"], "temperature of -1.0"),
        (["--temperature", "nan"], "temperature of nan"),
        (["--top-k", "0"], "--top-k 0"),
        (["--top-p", "2"], "2.0 is not a probability"),
        (["--samples", "0"], "0 samples"),
        (["--step", "7"], "no checkpoint of step 7"),
        (["--prompt", "tide " * 100], "tokens but the model sees 24"),
        (["--device", "tpu"], "'tpu' is not one of"),
        (["--count", "some"], "'some' is not a count"),
    ],
)
def test_what_cannot_be_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], changed: list[str], problem: str
) -> None:
    refused = call(capsys, "sample", run, "--prompt", "tide", *changed)
    assert refused.code == 2
    assert problem in refused.problem
    assert refused.hint
    assert refused.out == ""


def test_a_folder_that_cannot_speak_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(folder: Path) -> str:
        outcome = call(capsys, "sample", folder, "--prompt", "tide")
        assert outcome.code == 2
        return outcome.problem

    assert "nowhere does not exist" in refused(tmp_path / "nowhere")
    assert f"neither {RUN_NAME} nor config.json" in refused(tmp_path)
    run = begin_run(tmp_path / "run", with_tokenizer=False)
    assert "no checkpoint yet" in refused(run)
    add_checkpoint(run, lively(TINY), 1)
    assert "has no tokenizer" in refused(run)


def test_a_run_without_a_tokenizer_gets_one_as_the_hint_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A peer's files name none; the weights are those that were trained."""
    vocabulary = Tokenizer.from_byte_pairs(learnt("gpt2"))
    vocabulary.save(tmp_path / "vocabulary")
    ids = vocabulary.encode("The tide comes in and the tide goes out. " * 400)
    (tmp_path / "tokens").mkdir()
    np.array(ids, dtype="<u2").tofile(tmp_path / "tokens" / "train.bin")
    words = ("train", tmp_path / "tokens", "--out", tmp_path / "run", "--steps", "1")
    words += ("--model", "gpt2-pico", "--context", "16", "--batch-tokens", "32", "--device", "cpu")
    trained = call(capsys, *words)
    assert trained.code == 0, trained.err
    assert "--tokenizer" in trained.err
    assert "lowtide sample" not in trained.out
    asked = ("sample", tmp_path / "run", "--prompt", "The tide", "--count", "3", "--device", "cpu")
    refused = call(capsys, *asked)
    assert refused.code == 2
    assert "`lowtide train`" in refused.hint
    assert "--tokenizer" in refused.hint
    again = call(capsys, *words, "--tokenizer", tmp_path / "vocabulary")
    assert again.code == 0, again.err
    assert "lowtide sample" in again.out
    assert call(capsys, *asked).code == 0


def test_a_run_on_one_file_of_a_dataset_has_its_tokenizer_and_its_validation_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Tokenizer.from_byte_pairs(learnt("gpt2")).save(tmp_path / "vocabulary")
    (tmp_path / "a.txt").write_text("The tide comes in and the tide goes out.\n\n" * 900)
    tokens, run = tmp_path / "tokens", tmp_path / "run"
    words = ("--tokenizer", tmp_path / "vocabulary", "--val", "0.2", "--format", "nanogpt")
    made = call(capsys, "tokenize", tmp_path / "a.txt", *words, "--out", tokens)
    assert made.code == 0, made.err
    words = ("train", tokens / "train.bin", "--out", run, "--steps", "2", "--model", "gpt2-pico")
    words += ("--context", "16", "--batch-tokens", "32", "--device", "cpu")
    assert call(capsys, *words).code == 0
    assert read_run_record(run).settings.val_fraction is None
    assert told_of(run, "evaluation")
    assert (run / "tokenizer").is_dir()
    assert call(capsys, *words, "--json").json["already_done"] is True


def test_a_damaged_checkpoint_is_named_and_the_one_before_offered(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    weights = copied / "checkpoints" / "step-00002000" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    refused = call(capsys, "sample", copied, "--prompt", "tide")
    assert refused.code == 4
    assert "step-00002000" in refused.problem
    assert "step-00001000" in refused.hint
    assert call(capsys, "sample", copied, "--prompt", "tide", "--step", "1000").code == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(run: Path) -> None:
    with pytest.raises(UsageError, match="no GPU"):
        sample(run, "tide", device="cuda")


def test_a_model_smaller_than_its_tokenizer_refuses_tokens_it_does_not_know(
    tmp_path: Path,
) -> None:
    small = ModelShape(layers=1, heads=1, width=4, context=24, vocabulary_size=100)
    run = begin_run(tmp_path / "run", shape=small)
    add_checkpoint(run, lively(small), 1)
    with pytest.raises(UsageError, match="but the model knows 0 to 99"):
        sample(run, "tide and boats", device="cpu")


@pytest.mark.parametrize(
    ("terminal", "shown"), [(True, "a\\x1b[2Jb\n\tc"), (False, "a\x1b[2Jb\n\tc")]
)
def test_what_a_model_writes_cannot_move_a_cursor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: str
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    show_samples("", [["a\x1b[2Jb\n\tc"]], as_json=False)
    assert capsys.readouterr().out == shown + "\n"
