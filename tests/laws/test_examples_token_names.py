"""A template's `bos_token` and `eos_token` are what transformers gives it, and never a guess."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import lowtide
from lowtide import TokenizeSettings
from lowtide.errors import StoppedError, UsageError
from lowtide.events import Advanced, Event
from tests.laws.chats import Chat, make_chats, read_examples, write_rows
from tests.tokenizer_json import added_token, tokenizer_json

LLAMA_3 = """\
{% set loop_messages = messages %}
{% for message in loop_messages %}
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'
    + message['content'] | trim + '<|eot_id|>' %}
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
{{- content -}}
{% endfor %}"""
MISTRAL = """\
{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% set messages = messages[1:] %}{% endif %}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}
{%- endif %}
{%- endfor %}"""
OTHERS = (
    "{{ sep_token }}{{ cls_token }}{{ mask_token }}{{ pad_token }}{{ image_token }}{{ unk_token }}"
    "{{ messages[-1].content }}"
)
NAMES = (
    *("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|endoftext|>", "<s>", "</s>", "[INST]", "[/INST]", "<|image|>", "<|sep|>"),
)
LLAMA_CONFIG = {
    "bos_token": "<|begin_of_text|>",
    "eos_token": {"content": "<|eot_id|>", "__type": "AddedToken", "lstrip": False},
    "tokenizer_class": "PreTrainedTokenizerFast",
}
MISTRAL_CONFIG = {
    "bos_token": {"content": "<s>", "__type": "AddedToken"},
    "eos_token": "</s>",
    "tokenizer_class": "PreTrainedTokenizerFast",
}
OTHER_CONFIG = {
    **MISTRAL_CONFIG,
    "sep_token": "<|sep|>",
    "pad_token": "</s>",
    "image_token": "<|image|>",
    "unk_token": None,
    "add_bos_token": True,
}
CASES = {
    "llama 3": (LLAMA_3, LLAMA_CONFIG),
    "mistral": (MISTRAL, MISTRAL_CONFIG),
    "others": (OTHERS, OTHER_CONFIG),
}


@pytest.fixture(scope="module")
def tokenizer() -> bytes:
    new = [name for name in NAMES if name != "<|endoftext|>"]
    added = [added_token(name, 50257 + at, special=True) for at, name in enumerate(new)]
    return json.dumps(tokenizer_json(added=added)).encode()


def make_tokenizer(folder: Path, content: bytes, config: object | None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(content)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def make_rows(path: Path, *, count: int) -> tuple[list[Chat], Path]:
    source = random.Random(7)
    chats = [
        [m for m in chat if m["role"] != "system"]
        for chat in make_chats(11, count=count, longest=200)
    ]
    for chat in chats:
        if source.random() < 0.3:
            chat.insert(0, {"role": "system", "content": "Be <s> brief."})
    return chats, write_rows(path, [{"messages": chat} for chat in chats])


def settings_of(tokenizer: Path, template: Path) -> TokenizeSettings:
    return TokenizeSettings(
        tokenizer=str(tokenizer),
        examples="chat",
        template=str(template),
        learn="all",
        val=0.0,
        context=1 << 20,
        special_in_text="token",  # as transformers has it
    )


@pytest.mark.slow
@pytest.mark.parametrize(("source", "config"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("named", ["folder", "file"])
def test_ids_are_those_of_apply_chat_template(
    tmp_path: Path, tokenizer: bytes, source: str, config: object, named: str
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = make_tokenizer(tmp_path / "tokenizer", tokenizer, config)
    template = tmp_path / "mine.jinja"
    template.write_text(source)
    chats, rows = make_rows(tmp_path / "rows.jsonl", count=200)
    given = folder if named == "folder" else folder / "tokenizer.json"
    lowtide.tokenize([rows], tmp_path / "out", settings_of(given, template))
    peer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    expected = [
        peer.apply_chat_template(chat, chat_template=source, return_dict=False) for chat in chats
    ]
    found = [ids for ids, _ in read_examples(tmp_path / "out")]
    assert found == [ids for ids in expected if len(ids) > 1]
    assert len(found) > 190
    proof = lowtide.verify(tmp_path / "out")
    assert proof.verification.sound
    assert proof.compared_documents == len(found)


@pytest.mark.parametrize("listed", [False, True])
def test_the_older_file_counts_where_transformers_reads_it(
    tmp_path: Path, tokenizer: bytes, listed: bool
) -> None:
    transformers = pytest.importorskip("transformers")
    config = {**MISTRAL_CONFIG, **({"added_tokens_decoder": {}} if listed else {})}
    folder = make_tokenizer(tmp_path / "tokenizer", tokenizer, config)
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": {"content": "<|begin_of_text|>", "lstrip": False}})
    )
    template = tmp_path / "mine.jinja"
    template.write_text(MISTRAL)
    chats, rows = make_rows(tmp_path / "rows.jsonl", count=5)
    lowtide.tokenize([rows], tmp_path / "out", settings_of(folder, template))
    peer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    expected = [
        peer.apply_chat_template(chat, chat_template=MISTRAL, return_dict=False) for chat in chats
    ]
    assert [ids for ids, _ in read_examples(tmp_path / "out")] == expected


def test_a_token_that_nothing_names_is_asked_for_and_the_advice_works(
    tmp_path: Path, tokenizer: bytes
) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer", tokenizer, None)
    template = tmp_path / "mine.jinja"
    template.write_text(MISTRAL)
    _, rows = make_rows(tmp_path / "rows.jsonl", count=5)
    with pytest.raises(UsageError, match="bos_token and eos_token") as caught:
        lowtide.tokenize([rows], tmp_path / "out", settings_of(folder, template))
    assert "tokenizer_config.json" in caught.value.remedy
    template.write_text(MISTRAL.replace("bos_token", "'<s>'").replace("eos_token", "'</s>'"))
    lowtide.tokenize([rows], tmp_path / "written", settings_of(folder, template))
    template.write_text(MISTRAL)
    make_tokenizer(folder, tokenizer, MISTRAL_CONFIG)
    lowtide.tokenize([rows], tmp_path / "out", settings_of(folder, template))
    assert read_examples(tmp_path / "out") == read_examples(tmp_path / "written")


def test_a_template_that_asks_for_no_token_needs_no_settings(
    tmp_path: Path, tokenizer: bytes
) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer", tokenizer, None)
    template = tmp_path / "mine.jinja"
    template.write_text("{# bos_token #}{% for m in messages %}{{ m.content }}</s>{% endfor %}")
    _, rows = make_rows(tmp_path / "rows.jsonl", count=5)
    made = lowtide.tokenize([rows], tmp_path / "out", settings_of(folder, template))
    assert "template_tokens" not in made.manifest.settings


def test_other_settings_beside_the_tokenizer_are_another_job(
    tmp_path: Path, tokenizer: bytes
) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer", tokenizer, MISTRAL_CONFIG)
    template = tmp_path / "mine.jinja"
    template.write_text(MISTRAL)
    _, rows = make_rows(tmp_path / "rows.jsonl", count=5)
    settings = settings_of(folder, template)
    made = lowtide.tokenize([rows], tmp_path / "out", settings)
    tokens = json.loads(str(made.manifest.settings["template_tokens"]))
    assert tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    make_tokenizer(folder, tokenizer, {**MISTRAL_CONFIG, "pad_token": "</s>"})  # not asked for
    assert lowtide.tokenize([rows], tmp_path / "out", settings).already_done
    make_tokenizer(folder, tokenizer, {**MISTRAL_CONFIG, "bos_token": "<|begin_of_text|>"})
    with pytest.raises(UsageError, match="template-tokens"):
        lowtide.tokenize([rows], tmp_path / "out", settings)


def test_a_run_that_was_stopped_does_not_go_on_with_other_tokens(
    tmp_path: Path, tokenizer: bytes
) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer", tokenizer, MISTRAL_CONFIG)
    template = tmp_path / "mine.jinja"
    template.write_text(MISTRAL)
    _, rows = make_rows(tmp_path / "rows.jsonl", count=5000)
    settings = settings_of(folder, template)
    reached: list[Event] = []

    def listen(event: Event) -> None:
        if isinstance(event, Advanced) and event.tokens:
            reached.append(event)

    with pytest.raises(StoppedError):
        lowtide.tokenize(
            [rows],
            tmp_path / "out",
            settings,
            listen=listen,
            should_stop=lambda: "terminated" if reached else None,
        )
    make_tokenizer(folder, tokenizer, {**MISTRAL_CONFIG, "eos_token": "<|eot_id|>"})
    with pytest.raises(UsageError, match="template-tokens"):
        lowtide.tokenize([rows], tmp_path / "out", settings)


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_settings_that_cannot_be_read_are_refused_by_name(
    tmp_path: Path, tokenizer: bytes, content: str
) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer", tokenizer, None)
    (folder / "tokenizer_config.json").write_text(content, encoding="latin-1")
    template = tmp_path / "mine.jinja"
    template.write_text(MISTRAL)
    _, rows = make_rows(tmp_path / "rows.jsonl", count=5)
    with pytest.raises(UsageError, match=r"tokenizer_config\.json"):
        lowtide.tokenize([rows], tmp_path / "out", settings_of(folder, template))
