"""Examples become the ids and the learnt bits that jinja2 and tiktoken give, row by row, whatever they hold."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowtide
from lowtide import TokenizeSettings
from lowtide.settings import Format
from lowtide.shards.layout import FORMATS
from lowtide.source.examples.built_in import CHATML, PLAIN, PLAIN_COMPLETION
from lowtide.stages.spend import smallest_budget
from lowtide.tokenizer.vocabulary import load_vocabulary
from tests.commands import bytes_of
from tests.laws.chats import (
    END_OF_TEXT,
    HOSTILE,
    Chat,
    PlainReference,
    Tokens,
    cut,
    make_chats,
    read_examples,
    write_chats,
    write_rows,
)

CONTEXT = 128
HUGGING_FACE = """\
{% for message in messages %}
{% if message['role'] == 'assistant' %}
[A] {% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}

{% else %}
[{{ message['role'] }}] {{ message['content'] | trim }}
{% endif %}
{% endfor %}
"""


@pytest.fixture(scope="module")
def chats() -> list[Chat]:
    return make_chats(1, count=3000)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, chats: list[Chat]) -> dict[str, Path]:
    return write_chats(tmp_path_factory.mktemp("chats"), chats)


@pytest.mark.parametrize("name", ["chatml", "plain", "file"])
def test_ids_and_bits_are_those_of_jinja_and_tiktoken(
    tmp_path: Path, chats: list[Chat], files: dict[str, Path], name: str
) -> None:
    source = {"chatml": CHATML, "plain": PLAIN, "file": HUGGING_FACE}[name]
    path = files["jsonl"]
    if name != "chatml":
        chats = chats[:700]
        path = write_chats(tmp_path / "in", chats)["jsonl"]
    template = tmp_path / "mine.jinja"
    template.write_text(source)
    settings = TokenizeSettings(
        examples="chat",
        template=name if name != "file" else str(template),
        context=CONTEXT,
        val=0.0,
    )
    made = lowtide.tokenize([path], tmp_path / "out", settings, workers=2)
    reference = PlainReference(source)
    expected = [reference.encode(chat) for chat in chats]
    assert read_examples(tmp_path / "out") == [p for one in expected for p in cut(one, CONTEXT)]
    _check_record(made, expected)


def _check_record(made: lowtide.TokenizeResult, expected: list[Tokens]) -> None:
    record = made.manifest.examples
    assert record is not None
    kept = [cut(one, CONTEXT) for one in expected]
    assert record.examples == sum(map(bool, kept)) == len(expected)
    assert record.too_long_count == sum(len(ids) > CONTEXT for ids, _ in expected) > 10
    pieces = sum(-(-(len(ids) - 1) // (CONTEXT - 1)) for ids, _ in expected)
    assert record.dropped_count == pieces - sum(map(len, kept)) > 0
    assert record.learnt_tokens == sum(sum(flags[1:]) for _, flags in expected)


def test_budget_workers_and_the_rows_format_change_no_byte(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    settings = TokenizeSettings(examples="chat", val=0.1, shard_tokens=100_000)
    smallest = f"{smallest_budget(load_vocabulary('gpt2'), reads_rows=True, examples=True)}B"
    made = {}
    for name, memory, workers in (
        ("jsonl", "1GiB", 1),
        ("jsonl", "1GiB", 2),
        ("parquet", smallest, 2),
        ("arrow", "2GiB", 2),
    ):
        out = tmp_path / f"{name}-{workers}"
        lowtide.tokenize([files[name]], out, settings, memory=memory, workers=workers)
        made[out.name] = bytes_of(out)
    assert made["jsonl-1"] == made["jsonl-2"]
    for files_of in made.values():
        del files_of["lowtide.json"]  # it names the input
    assert made["jsonl-1"] == made["parquet-2"] == made["arrow-2"]
    assert {"learnt_TRAIN.npy", "learnt_VAL.npy"} < set(made["jsonl-1"])


def test_equal_examples_never_land_on_both_sides(tmp_path: Path, chats: list[Chat]) -> None:
    path = write_chats(tmp_path / "in", chats[:300] * 2)["jsonl"]
    settings = TokenizeSettings(examples="chat", val=0.3, context=CONTEXT)
    lowtide.tokenize([path], tmp_path / "out", settings)
    sides = [
        {tuple(ids) for ids, _ in read_examples(tmp_path / "out", split)}
        for split in ("train", "val")
    ]
    assert sides[0]
    assert sides[1]
    reference = PlainReference(CHATML)
    first = [tuple(reference.encode(chat)[0][:CONTEXT]) for chat in chats[:300]]
    assert not [ids for ids in first if ids in sides[0] and ids in sides[1]]


def test_the_tail_holds_the_last_examples(tmp_path: Path, chats: list[Chat]) -> None:
    path = write_chats(tmp_path / "in", chats[:400])["jsonl"]
    settings = TokenizeSettings(examples="chat", val=0.2, split="tail")
    lowtide.tokenize([path], tmp_path / "out", settings)
    train, val = (read_examples(tmp_path / "out", split) for split in ("train", "val"))
    reference = PlainReference(CHATML)
    assert train + val == [p for chat in chats[:400] for p in cut(reference.encode(chat), 1024)]
    assert 0.1 < len(val) / 400 < 0.3


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_carries_the_bits(tmp_path: Path, chats: list[Chat], format: Format) -> None:
    path = write_chats(tmp_path / "in", chats[:300])["parquet"]
    settings = TokenizeSettings(examples="chat", format=format, val=0.0, shard_tokens=10_000)
    lowtide.tokenize([path], tmp_path / "out", settings)
    reference = PlainReference(CHATML)
    expected = [p for chat in chats[:300] for p in cut(reference.encode(chat), 1024)]
    assert read_examples(tmp_path / "out") == expected


@pytest.mark.parametrize("kind", ["instruction", "completion"])
def test_instructions_and_completions_are_chats_of_two_turns(tmp_path: Path, kind: str) -> None:
    contents = [text for text in HOSTILE if text] + ["plain", "text"]
    pairs = list(zip(contents, reversed(contents), strict=True))
    if kind == "instruction":
        rows = [{"instruction": a, "input": "", "output": b} for a, b in pairs]
        rows += [{"instruction": a, "input": "more", "output": b} for a, b in pairs]
        asked = [a for a, _ in pairs] + [f"{a}\n\nmore" for a, _ in pairs]
        pairs = list(zip(asked, [b for _, b in pairs] * 2, strict=True))
    else:
        pairs += [("", "without a question")]  # its first token is not a target
        rows = [{"prompt": a, "completion": b} for a, b in pairs]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    settings = TokenizeSettings(examples=kind, val=0.0)  # type: ignore[arg-type]
    lowtide.tokenize([path], tmp_path / "out", settings)
    reference = PlainReference(CHATML if kind == "instruction" else PLAIN_COMPLETION)
    expected = [
        reference.encode([{"role": "user", "content": a}, {"role": "assistant", "content": b}])
        for a, b in pairs
    ]
    assert read_examples(tmp_path / "out") == [p for one in expected for p in cut(one, 1024)]


@pytest.mark.parametrize("learn", ["all", "completion"])
def test_learn_says_which_part(tmp_path: Path, learn: str) -> None:
    chat = [
        {"role": role, "content": f"{role} says {number}"}
        for number, role in enumerate(["user", "assistant"] * 2)
    ]
    path = write_chats(tmp_path / "in", [chat])["jsonl"]
    settings = TokenizeSettings(examples="chat", template="plain", learn=learn, val=0.0)  # type: ignore[arg-type]
    lowtide.tokenize([path], tmp_path / "out", settings)
    ((ids, flags),) = read_examples(tmp_path / "out")
    both_ids, both = PlainReference(PLAIN).encode(chat)
    assert ids == both_ids
    if learn == "all":
        assert flags == [False, *[True] * (len(ids) - 1)]  # nothing precedes the first
    else:
        first_end = both_ids.index(END_OF_TEXT)
        assert flags == [flag and at > first_end for at, flag in enumerate(both)]


@pytest.mark.parametrize("eot", ["end", "start"])
def test_end_of_text_is_put_where_it_is_asked_for(tmp_path: Path, eot: str) -> None:
    chats = make_chats(4, count=60)
    path = write_chats(tmp_path / "in", chats)["jsonl"]
    settings = TokenizeSettings(examples="chat", template="plain", eot=eot, val=0.0)  # type: ignore[arg-type]
    lowtide.tokenize([path], tmp_path / "out", settings)
    reference = PlainReference(PLAIN)
    expected = []
    for chat in chats:
        ids, flags = reference.encode(chat)
        if eot == "end":
            expected.append(([*ids, END_OF_TEXT], [*flags, flags[-1]]))
        else:
            expected.append(([END_OF_TEXT, *ids], [False, *flags]))
    assert read_examples(tmp_path / "out") == expected
