"""`lowtide sample --chat`: a question through the template of the run's examples, and the answer alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide import Tokenizer
from lowtide.errors import UsageError
from lowtide.source.examples.built_in import CHATML
from lowtide.source.examples.templates import keep_template
from lowtide.stages.chat import SAMPLE_QUESTION, make_chat_prompt, read_answer
from lowtide.stages.sample import sample
from lowtide.tokenizer.byte_pairs import BytePairs
from tests.commands import lowtide
from tests.learnt import END_OF_TEXT, learnt
from tests.model.small import lively
from tests.runs import TINY, add_checkpoint, begin_run
from tests.stages.inboxes import make_scene
from tests.training.small_runs import (
    SHAPE,
    make_settings,
    tensors_of,
    told_of,
    write_plan,
)

QUESTION, ANSWER, BRIEF = "What is the tide?", "the sea, breathing.", "Be brief."
WITH_TURNS = (END_OF_TEXT, "<|im_start|>", "<|im_end|>")
JINJA = """\
{{ bos_token }}{% if pad_token is defined %}{{ pad_token }}{% endif %}
{% for message in messages %}
[{{ message.role }}] {{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}[assistant]{% endif %}
"""
TEMPLATES = {
    "chatml": (WITH_TURNS, "chatml"),
    "chatml without its tokens": ((END_OF_TEXT,), "chatml"),
    "plain": ((END_OF_TEXT,), "plain"),
    "a file": (WITH_TURNS, JINJA),
}


def save_tokenizer(folder: Path, special_tokens: tuple[str, ...]) -> BytePairs:
    pairs = learnt("gpt2", special_tokens)
    Tokenizer.from_byte_pairs(pairs).save(folder)
    config = folder / "tokenizer_config.json"
    named = {**json.loads(config.read_text()), "bos_token": special_tokens[-1]}
    config.write_text(json.dumps(named))
    return pairs


def tune(
    folder: Path,
    special_tokens: tuple[str, ...],
    template: str,
    *,
    steps: int = 60,
    context: int = 128,
    sample_every: int = 0,
) -> Path:
    """A run that knows one conversation by heart, after 60 steps."""
    pairs = save_tokenizer(folder / "tokenizer", special_tokens)
    if "{" in template:
        (folder / "t.jinja").write_text(template)
        template = str(folder / "t.jinja")
    turns = (("system", BRIEF), ("user", QUESTION), ("assistant", ANSWER))
    row = {"messages": [{"role": role, "content": content} for role, content in turns]}
    (folder / "chats.jsonl").write_text(40 * (json.dumps(row) + "\n"))
    made = lowtide(
        *("tokenize", folder / "chats.jsonl", "--examples", "chat", "--template", template),
        *("--tokenizer", folder / "tokenizer", "--out", folder / "tokens", "--val", "0"),
    )
    assert made.code == 0, made.err
    size = len(pairs.tokens) + len(special_tokens)
    shape = replace(SHAPE, context=context, width=32, vocabulary_size=size)
    settings = make_settings(
        folder / "tokens",
        shape=shape,
        batch_tokens=4 * shape.context,
        micro_batch=4,
        steps=steps,
        warmup_steps=min(4, steps // 2),
        learning_rate=1e-2,
        evaluate_every=0,
        checkpoint_every=steps,
        sample_every=sample_every,
        windows="document",
        attention="document",
    )
    plan = write_plan(folder / "plan.toml", settings)
    run = folder / "run"
    done = lowtide("train", folder / "tokens", "--plan", plan, "--out", run, "--quiet")
    assert done.code == 0, done.err
    assert f"lowtide sample {run} --chat" in done.out
    return run


@pytest.mark.slow  # trains a model until it knows an answer, and imports transformers
@pytest.mark.parametrize("case", TEMPLATES)
def test_a_tuned_model_answers_through_its_template_here_and_in_transformers(
    tmp_path: Path, case: str
) -> None:
    import transformers

    run = tune(tmp_path, *TEMPLATES[case])
    asked = ("--chat", "--system", BRIEF, "--prompt", QUESTION, "--temperature", "0")
    said = lowtide("sample", run, *asked, "--device", "cpu")
    assert (said.code, said.out, said.err) == (0, f"{ANSWER}\n", "")

    out = tmp_path / "out"
    exported = lowtide("export", run, "--to", "huggingface", "--out", out)
    assert exported.code == 0
    assert lowtide("sample", out, *asked, "--device", "cpu").out == f"{ANSWER}\n"
    messages = [
        {"role": "system", "content": BRIEF},
        {"role": "user", "content": f"{QUESTION} <|im_end|> {END_OF_TEXT}"},
    ]
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    tokenizer = Tokenizer.load(out)
    ours = make_chat_prompt(
        run / "tokenizer", tokenizer, messages[1]["content"], system=messages[0]["content"]
    )
    assert ours.text == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    stops = json.loads((out / "generation_config.json").read_text())["eos_token_id"]
    assert len(theirs) == tokenizer.size
    assert set(stops) == {tokenizer.end_of_text, ours.stop_token} - {None}
    assert (f"stop_strings=[{ours.stop_text!r}]" in exported.err) == bool(ours.stop_text)


ALONE = "{% if messages | length < 2 %}{{ raise_exception('not alone') }}{% endif %}"
SAMPLED: dict[str, tuple[tuple[str, ...], str, int, bool]] = {
    **{name: (*made, 128, True) for name, made in TEMPLATES.items()},
    "a file that refuses a question alone": (WITH_TURNS, ALONE + JINJA, 128, False),
    "windows shorter than the prompt": (WITH_TURNS, "chatml", 4, False),
}


@pytest.mark.parametrize("case", SAMPLED)
def test_samples_of_a_run_on_chats_answer_through_its_template(tmp_path: Path, case: str) -> None:
    special_tokens, template, context, is_answer = SAMPLED[case]
    runs = {}
    for every in (3, 0):
        (folder := tmp_path / str(every)).mkdir()
        runs[every] = tune(
            folder, special_tokens, template, steps=3, context=context, sample_every=every
        )
    assert tensors_of(runs[3]) == tensors_of(runs[0])
    (told,) = told_of(runs[3], "sample")
    question = SAMPLE_QUESTION if is_answer else ""
    assert [told["text"]] == sample(runs[3], question, count=60, chat=is_answer, device="cpu")
    assert told_of(runs[0], "sample") == []


def test_the_name_of_a_special_token_in_a_question_is_text(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, WITH_TURNS)
    (tmp_path / "chat_template.jinja").write_text(
        keep_template(CHATML, tokens={}, end_of_text=END_OF_TEXT)
    )
    tokenizer = Tokenizer.load(tmp_path)
    found = make_chat_prompt(tmp_path, tokenizer, "<|im_end|>")
    end = tokenizer.special_tokens["<|im_end|>"]
    assert found.text == "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert found.ids.count(end) == 1
    assert tokenizer.decode(found.ids) == found.text
    assert (found.stop_token, found.stop_text) == (end, "")


@pytest.mark.parametrize("cut", range(1, 12))
def test_an_answer_ends_before_the_text_that_ends_a_turn(cut: int) -> None:
    text = " 1 <|im 2<|im_end|> 3"
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    assert "".join(read_answer(iter(pieces), "<|im_end|>")) == "1 <|im 2"
    assert "".join(read_answer(iter(pieces), "")) == text.lstrip()


def test_a_model_of_text_has_no_template_to_answer_by(tmp_path: Path) -> None:
    run = begin_run(tmp_path / "run")
    add_checkpoint(run, lively(TINY), 1)
    refused = lowtide("sample", run, "--prompt", "x", "--chat", "--device", "cpu")
    assert refused.code == 2
    assert "--chat" in refused.hint
    with pytest.raises(UsageError):
        sample(run, "x", system="Be brief.", device="cpu")


def test_an_inbox_gives_its_run_the_template_of_its_files(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    kept = keep_template(CHATML, tokens={}, end_of_text=END_OF_TEXT)
    assert scene.prepare().source.chat_template == kept
    scene.configure(examples="none")
    assert scene.prepare().source.chat_template is None
