"""A template that loops for ever, grows for ever or reaches out ends with an error that names it, and soon."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.units import MIB
from tests.source.examples.rows import (
    example_settings,
    marked,
    read_blocks_of,
    template_at,
    write_chats,
)

CHAT = [{"role": "user", "content": "x " * 500}, {"role": "assistant", "content": "fine"}]
LOOP = "{% for a in range(99999) %}"
ROUNDS, DONE = LOOP, "{% endfor %}"
LONG = "{% set n = namespace(v='x' * 8000000) %}"
TWINS = (
    "{% set n = namespace(v=[1], w=[1]) %}{% for a in range(40) %}"
    "{% set n.v = [n.v, n.v] %}{% set n.w = [n.w, n.w] %}{% endfor %}"
)
"""Few lists, but each holds the one before twice: written out they would fill the world."""
PAIRS = TWINS.replace("[n.v, n.v]", "(n.v, n.v)").replace("v=[1]", "v=(1,)")

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
    "a search in a long text": LONG + ROUNDS + "{% if 'b' in n.v %}{% endif %}" + DONE,
    "a search that nearly finds": LONG
    + ROUNDS
    + "{% if 'x' * 50 ~ 'b' ~ 'x' * 48 in n.v %}{% endif %}"
    + DONE,
    "a search that is turned round": LONG + ROUNDS + "{% if 'b' not in n.v %}{% endif %}" + DONE,
    "a search by test": LONG + ROUNDS + "{% if 'b' is in n.v %}{% endif %}" + DONE,
    "a search by method": LONG + ROUNDS + "{% if n.v.find('b') > 0 %}{% endif %}" + DONE,
    "a search in bytes": LONG + "{% set b = n.v.encode() %}" + ROUNDS + "{{ b.find(1) }}" + DONE,
    "a comparison": LONG
    + "{% set w = n.v ~ '' %}"
    + ROUNDS
    + "{% if n.v == w %}{% endif %}"
    + DONE,
    "a comparison by test": LONG
    + "{% set w = n.v ~ '' %}"
    + ROUNDS
    + "{% if n.v is eq w %}{% endif %}"
    + DONE,
    "an order": LONG
    + "{% set w = n.v ~ '' %}"
    + ROUNDS
    + "{% if n.v < w < n.v %}{% endif %}"
    + DONE,
    "slices": LONG + ROUNDS + "{% set x = n.v[1:] %}" + DONE,
    "slices backwards": LONG + ROUNDS + "{% set x = n.v[::-1] %}" + DONE,
    "a search in a list of long texts": LONG
    + "{% set w = [n.v ~ 'a'] * 9999 %}{% set y = n.v ~ 'b' %}"
    + ROUNDS
    + "{% if y in w %}{% endif %}"
    + DONE,
    "letters that are stripped": LONG
    + "{% set x = n.v.strip('abcdefghijklmnopqrstuvw' * 9999 ~ 'x') %}",
    "a sum of lists": "{{ ([[1] * 9999] * 9999) | sum(start=[]) | length }}",
    "a sum of lists by name": "{{ ([{'a': [1] * 9999}] * 9999) | sum('a', []) | length }}",
    "lists that hold each other, compared": TWINS + "{% if n.v == n.w %}{% endif %}",
    "lists that hold each other, looked up": TWINS + "{% if n.v in [n.w] %}{% endif %}",
    "pairs that hold each other as a key": PAIRS + "{% set x = {n.v: 1} %}",
    "pairs that hold each other asked for": PAIRS + "{% set x = {} %}{{ x[n.v] }}",
    "pairs that hold each other got": PAIRS + "{% set x = {} %}{{ x.get(n.v) }}",
    "every item of a long list": "{% set w = [{'a': 1}] * 8000000 %}"
    + ROUNDS
    + "{% set x = w | map(attribute='a') | list %}"
    + DONE,
    "every letter of a long text, once": LONG + ROUNDS + "{% set x = n.v | unique | list %}" + DONE,
    "titles": "{% set w = 'x ' * 4000000 %}" + ROUNDS + "{% set x = w | title %}" + DONE,
    "long texts in order": LONG + "{% set x = ([n.v] * 99999) | sort %}",
    "the rest of a loop": "{% set w = [1] * 8000000 %}"
    + ROUNDS
    + "{% for a in w %}{% set x = loop | list %}{% endfor %}"
    + DONE,
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
    "a join": "{{ ('x' * 1000000) | join('y' * 1000) }}",
    "a width in a width": "{{ '{:{}}'.format('x', 900000000) }}",
    "a width in a width by name": "{{ '{a:{b}}'.format_map({'a': 'x', 'b': 900000000}) }}",
    "many wide fields": "{{ ('{0:99999}' * 6000).format(1) }}",
    "many wide fields by name": "{{ ('%(a)99999d' * 6000) % {'a': 1} }}",
    "many wide fields by filter": "{{ ('%99999d' * 6000) | format(*([1] * 6000)) }}",
    "many fields": "{{ ('{0}' * 100000).format('x' * 1000000) }}",
    "lists that hold each other": TWINS + "{{ n.v }}",
    "lists that hold each other as text": TWINS + "{% set x = n.v | string %}",
    "lists that hold each other, joined": TWINS + "{% set x = n.v ~ 'x' %}",
    "lists that hold each other, formatted": TWINS + "{{ '%s' % n.v }}",
    "lists that hold each other, in braces": TWINS + "{{ '{}'.format(n.v) }}",
    "lists that hold each other as json": TWINS + "{{ n.v | tojson }}",
    "lists that hold each other in a dict": TWINS + "{{ {'a': n.v}.items() }}",
    "lists in a namespace": TWINS + "{{ n }}",
    "json that is indented far": "{{ [[1]] | tojson(indent=5000000) }}",
    "json that is deep": "{% set n = namespace(v=[1]) %}{% for a in range(900) %}"
    "{% set n.v = [n.v] %}{% endfor %}{{ ([n.v] * 900) | tojson(indent=60) }}",
    "a number of many bytes": "{% set x = (1).to_bytes(10**10, 'big') %}",
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


@pytest.mark.parametrize("source", HUGE.values(), ids=HUGE)
def test_nothing_huge_is_made_before_the_error(tmp_path: Path, source: str) -> None:
    path = tmp_path / "evil.jinja"
    path.write_text(source)
    rows = write_chats(tmp_path / "a.jsonl", [CHAT])
    tracemalloc.start()
    try:
        with pytest.raises(LowtideError, match=r"evil\.jinja"):
            read_blocks_of(rows, example_settings(template_at(path)))
        assert tracemalloc.get_traced_memory()[1] < 200 * MIB
    finally:
        tracemalloc.stop()


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
