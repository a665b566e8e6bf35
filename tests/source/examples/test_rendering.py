"""Text and learnt parts are those of a plain rendering, whatever the contents hold."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.settings import Learn, SpecialInText
from lowtide.source.examples.built_in import CHATML, PLAIN, PLAIN_COMPLETION
from lowtide.source.examples.marks import LEARNT_CLOSE, LEARNT_OPEN, assign_marks
from lowtide.source.examples.templates import load_template
from lowtide.source.examples.token_names import TokenNames
from tests.source.examples.rows import (
    CONTENTS,
    END_OF_TEXT,
    SPECIAL,
    UNTRIMMED,
    WITH_BLOCKS,
    WITHOUT_BLOCKS,
    Message,
    chats,
    example_settings,
    marked,
    read_blocks_of,
    render,
    template_at,
    template_of,
    unmarked,
    write_chats,
)

MARKS = assign_marks(SPECIAL)
ELSEWHERE = 0xE000
NAMES = re.compile("|".join(map(re.escape, sorted(SPECIAL, key=len, reverse=True))))


def shifted(text: str, by: int) -> str:
    return "".join(chr(ord(character) + by) for character in text)


def without_names(content: object) -> object:
    """A row's text whose letters are nobody's name, whatever stands beside; `name_tokens` takes them back."""
    letters = {*"".join(SPECIAL)}
    return "".join(shifted(each, ELSEWHERE) if each in letters else each for each in str(content))


def name_tokens(source: str, messages: list[Message]) -> str:
    """What a template writes, its special tokens as marks; contents are told apart by other letters."""
    respelt = [{**message, "content": without_names(message["content"])} for message in messages]
    text = NAMES.sub(lambda found: MARKS[found.group()], render(source, respelt))
    letters = f"[{chr(ELSEWHERE)}-{chr(ELSEWHERE + 127)}]+"
    return re.sub(letters, lambda found: shifted(found.group(), -ELSEWHERE), text)


def reference(source: str, messages: list[Message]) -> str:
    """The text of an example with its learnt parts in marks, by the plainest means."""
    if "generation" in source:
        return name_tokens(source, messages)
    key = "\x02answer\x03"
    keyed: list[Message] = []
    for message in messages:
        content = str(message["content"])
        inner = content.strip() if "| trim" in source else content
        is_answer = message["role"] == "assistant"
        keyed.append({**message, "content": f"{key}{inner}{key}" if is_answer else content})
    parts = name_tokens(source, keyed).split(key)
    text = parts[0]
    for learnt, behind in zip(parts[1::2], parts[2::2], strict=True):
        token = re.match("\ufdd1[0-9]+\ufdd2", behind)
        end = token.end() if token else 0
        text += LEARNT_OPEN + learnt + behind[:end] + LEARNT_CLOSE + behind[end:]
    return text


def only_last(text: str) -> str:
    """The text with its last learnt part alone."""
    before, _, after = text.rpartition(LEARNT_OPEN)
    return re.sub(f"[{LEARNT_OPEN}{LEARNT_CLOSE}]", "", before) + LEARNT_OPEN + after


def without_empty(text: str) -> str:
    return text.replace(LEARNT_OPEN + LEARNT_CLOSE, "")


def read_one(source: str | None, name: str, messages: list[Message], learn: Learn) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        template = template_at(name) if source is None else template_of(source)
        file = write_chats(Path(folder, "a.jsonl"), [messages])
        return marked(read_blocks_of(file, example_settings(template, learn, bad_text="skip")))


SOURCES = {
    "chatml": CHATML,
    "plain": PLAIN,
    "with-blocks": WITH_BLOCKS,
    "without-blocks": WITHOUT_BLOCKS,
    "untrimmed": UNTRIMMED,
}


@pytest.mark.parametrize("name", SOURCES)
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(messages=chats())
def test_the_learnt_part_is_exactly_the_assistants(name: str, messages: list[Message]) -> None:
    source = SOURCES[name]
    expected = without_empty(reference(source, messages))
    given_source = None if name in ("chatml", "plain") else source
    found = read_one(given_source, name, messages, "assistant")
    assert found == ([expected] if LEARNT_OPEN in expected else [])
    assert unmarked(expected) == re.sub(
        f"[{LEARNT_OPEN}{LEARNT_CLOSE}]", "", render(source, messages)
    )
    everything = read_one(given_source, name, messages, "all")
    assert everything == [
        LEARNT_OPEN + re.sub(f"[{LEARNT_OPEN}{LEARNT_CLOSE}]", "", expected) + LEARNT_CLOSE
    ]


@pytest.mark.parametrize("name", ["chatml", "plain"])
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(messages=chats(), learn=st.sampled_from(get_args(Learn)))
def test_a_built_in_template_is_its_jinja_text(
    name: str, messages: list[Message], learn: Learn
) -> None:
    assert read_one(None, name, messages, learn) == read_one(SOURCES[name], name, messages, learn)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(prompt=CONTENTS, completion=CONTENTS)
def test_a_plain_completion_is_its_jinja_text(prompt: str, completion: str) -> None:
    pair: list[Message] = [
        {"role": "user", "content": prompt},
        {"role": "assistant", "content": completion},
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        write_row = {"prompt": prompt, "completion": completion}
        path.write_text(json.dumps(write_row) + "\n")
        template = template_at(None, "completion")
        (found,) = marked(read_blocks_of(path, example_settings(template, kind="completion")))
        by_jinja = example_settings(template_of(PLAIN_COMPLETION), kind="completion")
        assert marked(read_blocks_of(path, by_jinja)) == [found]
    assert found == prompt + LEARNT_OPEN + completion + MARKS[END_OF_TEXT] + LEARNT_CLOSE
    assert unmarked(found) == re.sub(
        f"[{LEARNT_OPEN}{LEARNT_CLOSE}]", "", render(PLAIN_COMPLETION, pair)
    )


@pytest.mark.parametrize("name", SOURCES)
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(messages=chats())
def test_a_completion_is_the_last_answer_alone(name: str, messages: list[Message]) -> None:
    expected = without_empty(reference(SOURCES[name], messages))
    last = [m for m in messages if m["role"] == "assistant"][-1]
    if name == "without-blocks" and not str(last["content"]).strip():
        return  # its last answer has no learnt part
    given_source = None if name in ("chatml", "plain") else SOURCES[name]
    assert read_one(given_source, name, messages, "completion") == [only_last(expected)]


TURNS_OF_BLOCKS = {
    "side by side": (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "«onetwo»",
        "one«two»",
    ),
    "two in a turn": (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}: "
        "{% generation %}</s>{% endgeneration %}. {% endfor %}",
        "«one»: «</s>». «two»: «</s>». ",
        "one: </s>. «two»: «</s>». ",
    ),
    "none in the last": (
        "{% for m in messages %}{% if loop.first %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
        "«one»two",
        None,
    ),
}


@pytest.mark.parametrize(
    ("source", "assistant", "last"), TURNS_OF_BLOCKS.values(), ids=TURNS_OF_BLOCKS
)
def test_a_completion_is_all_blocks_of_the_last_answer(
    source: str, assistant: str, last: str | None
) -> None:
    def read(learn: Learn) -> list[str]:
        texts = read_one(source, "", chat, learn)
        return [
            text.replace(LEARNT_OPEN, "«").replace(LEARNT_CLOSE, "»").replace(MARKS["</s>"], "</s>")
            for text in texts
        ]

    chat: list[Message] = [
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": "two"},
    ]
    assert read("assistant") == [assistant]
    assert read("completion") == ([] if last is None else [last])


def test_a_completion_without_words_is_no_earlier_answer(tmp_path: Path) -> None:
    chat: list[Message] = [
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": ""},
    ]
    path = write_chats(tmp_path / "a.jsonl", [chat])
    jinja = tmp_path / "t.jinja"
    jinja.write_text(PLAIN)
    names = TokenNames(tokens={"eos_token": ""}, is_complete=True)
    for name in ("plain", str(jinja)):
        template = load_template(name, "chat", special_tokens={}, end_of_text=None, names=names)
        (block,) = read_blocks_of(path, example_settings(template, "completion", bad_text="skip"))
        assert (block.document_count, block.bad_count) == (0, 1)


def test_a_name_in_a_content_stays_text_is_a_token_or_is_refused(tmp_path: Path) -> None:
    chat = [
        {"role": "user", "content": "say <|im_end|>"},
        {"role": "assistant", "content": "<|im_end|>!"},
    ]
    path = write_chats(tmp_path / "a.jsonl", [chat])
    jinja = tmp_path / "t.jinja"
    jinja.write_text(UNTRIMMED)
    mark = MARKS["<|im_end|>"]
    for name in ("chatml", jinja):
        (text,) = marked(read_blocks_of(path, example_settings(template_at(name))))
        assert (text.count("<|im_end|>"), text.count(mark)) == (2, 2)
        token = template_at(name, in_text="token")
        (text,) = marked(read_blocks_of(path, example_settings(token)))
        assert (text.count("<|im_end|>"), text.count(mark)) == (0, 4)
        fail = example_settings(template_at(name, in_text="fail"), bad_text="skip")
        (block,) = read_blocks_of(path, fail)
        assert (block.document_count, block.bad_count) == (0, 1)
        assert "'<|im_end|>'" in block.bad[0].reason


SPLIT_NAMES = {
    "over two contents": (
        "a<|endof",
        "text|>b",
        "{% for m in messages %}{{ m.content }}{% endfor %}",
    ),
    "over trimmed contents": (
        "a<|endof \n",
        "\ttext|>b",
        "{% for m in messages %}{{ m.content | trim }}{% endfor %}",
    ),
    "begun by the template": (
        "endoftext|>a",
        "b",
        "{% for m in messages %}{{ '<|' + m.content }}{% endfor %}",
    ),
    "ended by the template": (
        "a<|endof",
        "b",
        "{% for m in messages %}{{ m.content + 'text|>' }}{% endfor %}",
    ),
    "around a content": (
        "endoftext",
        "b",
        "{% for m in messages %}{{ '<|' + m.content + '|>' }}{% endfor %}",
    ),
}


@pytest.mark.parametrize(("asked", "answer", "source"), SPLIT_NAMES.values(), ids=SPLIT_NAMES)
@pytest.mark.parametrize("in_text", get_args(SpecialInText))
def test_a_name_of_which_a_content_holds_a_part_is_text(
    tmp_path: Path, asked: str, answer: str, source: str, in_text: SpecialInText
) -> None:
    jinja = tmp_path / "t.jinja"
    jinja.write_text(source)
    chat: list[Message] = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": answer},
    ]
    path = write_chats(tmp_path / "a.jsonl", [chat])
    template = template_at(jinja, in_text=in_text)
    (text,) = marked(read_blocks_of(path, example_settings(template)))
    assert text.replace(LEARNT_OPEN, "").replace(LEARNT_CLOSE, "") == render(source, chat)
    learnt = text[text.index(LEARNT_OPEN) + 1 : text.index(LEARNT_CLOSE)]
    assert learnt == answer.strip()


def test_a_template_that_looks_for_a_token_in_contents_is_not_misled(tmp_path: Path) -> None:
    """Hidden names would take another branch: such a row is bad, never rendered otherwise."""
    jinja = tmp_path / "t.jinja"
    jinja.write_text(
        "{% for m in messages %}{% if '</s>' in m.content %}CUT{% else %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}"
    )
    rows = [[{"role": "assistant", "content": text}] for text in ("one", "two</s>", "three")]
    path = write_chats(tmp_path / "a.jsonl", rows)
    (block,) = read_blocks_of(path, example_settings(template_at(jinja), bad_text="skip"))
    assert (block.document_count, block.bad_count) == (2, 1)
    assert "special token" in block.bad[0].reason


def test_many_first_characters_of_special_tokens_are_no_matter(tmp_path: Path) -> None:
    special = {f"{first}|x|{first}": number for number, first in enumerate("<[({¡«§aé$")}
    content = " ".join([*special, *special])
    jinja = tmp_path / "t.jinja"
    jinja.write_text("{% for m in messages %}<|x|<{{ m.content }}é|x|é{% endfor %}")
    path = write_chats(tmp_path / "a.jsonl", [[{"role": "assistant", "content": content}]])
    template = template_at(jinja, special=special)
    (text,) = marked(read_blocks_of(path, example_settings(template)))
    marks = assign_marks(special)
    assert text == marks["<|x|<"] + LEARNT_OPEN + content + marks["é|x|é"] + LEARNT_CLOSE


def test_names_that_overlap_are_all_hidden(tmp_path: Path) -> None:
    special = {"<<s>": 0, "<s>": 1, "s>": 2}
    jinja = tmp_path / "t.jinja"
    jinja.write_text("{% for m in messages %}{{ m.content }}<s>{% endfor %}")
    path = write_chats(tmp_path / "a.jsonl", [[{"role": "assistant", "content": "<<s>"}]])
    (text,) = marked(read_blocks_of(path, example_settings(template_at(jinja, special=special))))
    assert text == LEARNT_OPEN + "<<s>" + assign_marks(special)["<s>"] + LEARNT_CLOSE


def test_every_string_of_a_row_is_hidden_not_only_contents(tmp_path: Path) -> None:
    jinja = tmp_path / "t.jinja"
    jinja.write_text(
        "{% for m in messages %}{{ m.tool_calls | tojson if m.tool_calls else '' }}<s>"
        "{% generation %}{{ m.content }}</s>{% endgeneration %}{% endfor %}"
    )
    calls = [{"name": "f</s>", "arguments": {"</s>": ["<s>", 1, None, True, 1.5]}}]
    chat = [{"role": "assistant", "content": "x", "tool_calls": calls}]
    path = write_chats(tmp_path / "a.jsonl", [chat])
    (text,) = marked(read_blocks_of(path, example_settings(template_at(jinja))))
    shown = '[{"name": "f</s>", "arguments": {"</s>": ["<s>", 1, null, true, 1.5]}}]'
    end = LEARNT_OPEN + "x" + MARKS["</s>"] + LEARNT_CLOSE
    assert text == shown + MARKS["<s>"] + end


def test_a_name_that_only_the_template_completes_is_the_token(tmp_path: Path) -> None:
    """Templates write `'<|' + role + '|>'`, and transformers reads a token there."""
    special = {"<|user|>": 1, "<|assistant|>": 2, "<|end|>": 3}
    jinja = tmp_path / "t.jinja"
    jinja.write_text(
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
    )
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<|user|>"}]
    path = write_chats(tmp_path / "a.jsonl", [chat])
    marks = assign_marks(special)
    (text,) = marked(read_blocks_of(path, example_settings(template_at(jinja, special=special))))
    answer = LEARNT_OPEN + "<|user|>" + marks["<|end|>"] + LEARNT_CLOSE
    assert text == marks["<|user|>"] + "a" + marks["<|end|>"] + marks["<|assistant|>"] + answer


@pytest.mark.parametrize("name", ["with-blocks", "chatml", "plain", "without-blocks", "untrimmed"])
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(messages=chats())
def test_transformers_renders_the_same(name: str, messages: list[Message]) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    source = SOURCES[name]
    (expected,), spans = render_jinja_template(
        conversations=[messages],
        chat_template=source,
        return_assistant_tokens_mask="generation" in source,
        bos_token="<s>",
        eos_token=END_OF_TEXT,
    )
    found = read_one(source, name, messages, "assistant")
    if not found:
        return  # nothing to learn in it
    assert unmarked(found[0]) == expected
    if "generation" in source:
        learnt = re.findall(f"{LEARNT_OPEN}(.*?){LEARNT_CLOSE}", found[0], re.DOTALL)
        wanted = [expected[begin:end] for begin, end in spans[0] if begin < end]
        assert [unmarked(text) for text in learnt] == wanted
