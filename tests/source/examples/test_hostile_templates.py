"""A template that loops for ever, grows for ever or reaches out ends with an error that names it, and soon."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide.errors import DataError, LowtideError, UsageError
from tests.source.examples.rows import (
    example_settings,
    marked,
    read_blocks_of,
    template_at,
    write_chats,
)

CHAT = [{"role": "user", "content": "x " * 500}, {"role": "assistant", "content": "fine"}]
LOOP = "{% for a in range(99999) %}"

ENDLESS = {
    "nested loops": LOOP * 4 + "{% endfor %}" * 4,
    "loops that filter": "{% for a in range(99999) if a < 0 %}{% endfor %}" * 30,
    "every letter of every letter": "{% for a in messages[0].content %}" * 3 + "{% endfor %}" * 3,
    "a text that is filtered": "{% for a in 'x' * 33000000 if a == 'y' %}{% endfor %}",
    "loops in a macro": "{% macro f() %}" + LOOP + "{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
    "a macro in itself": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "two calls each": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "a recursive loop": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "a block in itself": "{% block a %}{{ self.a() }}{% endblock %}",
    "lists of ranges": LOOP + "{% set x = range(99999) | list %}{% endfor %}",
    "words of a long text": LOOP
    + LOOP
    + "{% set x = messages[0].content.split() %}"
    + "{% endfor %}" * 2,
}
HUGE = {
    "a power": "{{ 10**(10**10) }}",
    "a power of a power": "{% set n = namespace(v=2) %}"
    + LOOP
    + "{% set n.v = n.v ** 2 %}{% endfor %}",
    "a square": "{% set n = namespace(v=3) %}" + LOOP + "{% set n.v = n.v * n.v %}{% endfor %}",
    "a repeated text": "{{ 'x' * 10**12 }}",
    "a repeated list": "{{ 10**12 * [1] }}",
    "a range": "{% for a in range(10**9) %}{% endfor %}",
    "a doubled sum": "{% set n = namespace(v='x') %}"
    + LOOP
    + "{% set n.v = n.v + n.v %}{% endfor %}",
    "a doubled join": "{% set n = namespace(v='x') %}"
    + LOOP
    + "{% set n.v = n.v ~ n.v %}{% endfor %}",
    "a doubled block": "{% set n = namespace(v='x') %}"
    + LOOP
    + "{% set w %}{{ n.v }}{{ n.v }}{% endset %}{% set n.v = w %}{% endfor %}",
    "a doubled list": "{% set n = namespace(v=[1]) %}"
    + LOOP
    + "{% set n.v = n.v + n.v %}{% endfor %}",
    "a long output": LOOP + "{{ 'x' * 1000000 }}{% endfor %}",
    "an output of contents": "{% for a in range(50000) %}{{ messages[0].content }}{% endfor %}",
    "a block of contents": "{% set x %}{% for a in range(50000) %}{{ messages[0].content }}{% endfor %}"
    "{% endset %}",
    "a wide column": "{{ 'x' | center(10**10) }}",
    "a wide method": "{{ 'x'.ljust(10**10) }}",
    "a wide format": "{{ '%10000000000d' % 1 }}",
    "a wide format by name": "{{ '{:10000000000}'.format(1) }}",
    "a wide number": "{{ '%*d' | format(10**10, 1) }}",
    "a deep indent": "{{ 'a\\nb' | indent(10**10) }}",
    "a batch": "{{ [1] | batch(10**10, 'x') | list }}",
    "a replacement": "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}",
    "a join": "{{ (('x' * 1000000) | list).__len__ and 1 }}",
    "a join of much": "{{ ('y' * 1000000).join('x' * 1000000) }}",
    "digits": "{{ 1.5 | round(10**10, 'ceil') }}",
}
FORBIDDEN = {
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import '/etc/passwd' as p %}",
    "from": "{% from '/etc/passwd' import p %}",
    "extends": "{% extends '/etc/passwd' %}",
    "classes": "{{ ''.__class__.__mro__ }}",
    "a class alone": "{{ ''.__class__ }}",
    "classes by name": "{{ ''['__class__']['__mro__'] }}",
    "a class by filter": "{{ '' | attr('__class__') }}",
    "classes of a format": "{{ '{0.__class__}'.format(1) }}",
    "the inside of a function": "{{ raise_exception.__globals__ }}",
    "changing the row": "{{ messages.append(1) }}",
    "chance": "{{ [1, 2] | random }}",
    "today": "{{ strftime_now('%Y') }}",
    "not a template": "{% for %}",
    "an open block": "{% generation %}",
    "a loop's end inside a block": "{% for a in [1] %}{% generation %}{% break %}{% endgeneration %}"
    "{% endfor %}",
    "too deep": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "nothing": " \n",
}


@pytest.mark.parametrize(
    "source",
    [*ENDLESS.values(), *HUGE.values(), *FORBIDDEN.values()],
    ids=[*ENDLESS, *HUGE, *FORBIDDEN],
)
def test_it_ends_soon_with_an_error_that_names_the_template(tmp_path: Path, source: str) -> None:
    """Also where bad rows are skipped: no row is at fault."""
    path = tmp_path / "evil.jinja"
    path.write_text(source)
    rows = write_chats(tmp_path / "a.jsonl", [CHAT])
    started = time.process_time()
    with pytest.raises(LowtideError, match=r"evil\.jinja") as caught:
        read_blocks_of(rows, example_settings(template_at(path), bad_text="skip"))
    assert time.process_time() - started < 3
    assert caught.value.remedy
    assert "Traceback" not in caught.value.problem
    assert len(caught.value.problem) < 700


def test_runaway_memory_inside_a_fence_is_an_error_too(tmp_path: Path) -> None:
    """A list of many texts, each of which is allowed: only the fence knows what they take together."""
    path = tmp_path / "evil.jinja"
    path.write_text(
        "{% set n = namespace(v=[]) %}{% for a in range(9999) %}"
        "{% set n.v = n.v + ['x' * 1000000 ~ a] %}{% endfor %}"
    )
    rows = write_chats(tmp_path / "a.jsonl", [CHAT])
    code = """
import sys
from pathlib import Path
from lowtide.errors import DataError
from lowtide.memory.fence import fence
from tests.source.examples.rows import *
settings = example_settings(template_at(sys.argv[1]))
with fence(100 << 20) as stands:
    try:
        read_blocks_of(Path(sys.argv[2]), settings)
    except DataError as error:
        assert "evil.jinja" in error.problem, error.problem
        assert not stands or "memory" in error.problem, error.problem
    else:
        raise SystemExit("no error")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(rows)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_no_template_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.jinja").write_bytes("{{ 'é' }}".encode("latin-1"))
    (tmp_path / "empty.jinja").touch()
    (tmp_path / "large.jinja").write_bytes(b"{{ 1 }}" * 1_500_000)
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text('{"a": 1}')
    for name in (
        "latin.jinja",
        "empty.jinja",
        "large.jinja",
        "folder",
        "broken.json",
        "other.json",
        "no",
    ):
        with pytest.raises(UsageError, match=name) as caught:
            template_at(tmp_path / name)
        assert caught.value.remedy


def test_the_largest_template_still_compiles_soon(tmp_path: Path) -> None:
    path = tmp_path / "large.jinja"
    path.write_text("{{a}}" * (64 * 1024 // 5))
    started = time.process_time()
    template_at(path)
    assert time.process_time() - started < 5


def test_a_tokenizers_folder_gives_its_template_and_its_tokens(tmp_path: Path) -> None:
    source = "{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"
    config = {"bos_token": {"content": "[INST]"}, "eos_token": "[/INST]"}
    rows = write_chats(tmp_path / "a.jsonl", [[{"role": "assistant", "content": "x"}]])
    listed = [{"name": "tool", "template": "no"}, {"name": "default", "template": source}]
    texts = set()
    for number, template in enumerate((source, listed, None)):
        folder = tmp_path / str(number)
        folder.mkdir()
        filled = config if template is None else {**config, "chat_template": template}
        (folder / "tokenizer_config.json").write_text(json.dumps(filled))
        if template is None:
            (folder / "chat_template.jinja").write_text(source)
        loaded = template_at(folder)
        assert loaded.source == source
        texts.add(marked(read_blocks_of(rows, example_settings(loaded)))[0])
    assert texts == {"\ufdd12\ufdd2\ufdd8x\ufdd13\ufdd2\ufdd9"}


def test_a_template_that_acts_on_answers_has_to_say_what_is_learnt(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(
        "{% for m in messages %}{{ m.content | upper | replace(m.content[0], '') }}{% endfor %}"
    )
    rows = write_chats(tmp_path / "a.jsonl", [[{"role": "assistant", "content": "Word"}]])
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: template .*t\.jinja") as caught:
        read_blocks_of(rows, example_settings(template_at(path)))
    assert "generation" in caught.value.remedy
    path.write_text(
        "{% for m in messages %}{% generation %}{{ m.content | upper | replace(m.content[0], '') }}"
        "{% endgeneration %}{% endfor %}"
    )
    assert marked(read_blocks_of(rows, example_settings(template_at(path)))) == ["\ufdd8ORD\ufdd9"]


def test_a_block_whose_text_is_worked_on_afterwards_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    macro = "{% macro f(m) %}{% generation %} {{ m.content }} {% endgeneration %}{% endmacro %}"
    rows = write_chats(tmp_path / "a.jsonl", [[{"role": "assistant", "content": "x"}]])
    path.write_text(macro + "{{ f(messages[0]) }}")
    (text,) = marked(read_blocks_of(rows, example_settings(template_at(path))))
    assert text == "\ufdd8 x \ufdd9"
    path.write_text(macro + "{{ f(messages[0]) | trim }}")
    with pytest.raises(DataError, match="after the block") as caught:
        read_blocks_of(rows, example_settings(template_at(path)))
    assert "macro" in caught.value.remedy
