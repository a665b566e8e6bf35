"""A template that loops for ever, grows for ever or reaches out ends with an error that names it, and soon."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lowtide.errors import DataError, LowtideError, SharedFaultError, UsageError
from lowtide.source.examples.render_protocol import RenderLimits
from lowtide.units import KIB, MIB
from tests.machine_speed import slowness
from tests.source.examples.rows import (
    example_settings,
    marked,
    read_blocks_of,
    template_at,
    write_chats,
)

CHAT = [{"role": "user", "content": "x " * 500}, {"role": "assistant", "content": "fine"}]
LIMITS = RenderLimits(memory_bytes=32 * MIB, cpu_seconds=0.3)
LOOP, DONE = "{% for a in range(99999) %}", "{% endfor %}"
LONG = "{% set n = namespace(v='x' * 8000000) %}"
TWINS = (
    "{% set n = namespace(v=[1], w=[1]) %}{% for a in range(40) %}"
    "{% set n.v = [n.v, n.v] %}{% set n.w = [n.w, n.w] %}{% endfor %}"
)
"""Few lists, but each holds the one before twice: written out they would fill the world."""

ENDLESS = {
    "nested loops": LOOP * 4 + DONE * 4,
    "loops in a macro": "{% macro f() %}" + LOOP + "{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
    "a macro in itself": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "two calls each": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "a recursive loop": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "a block in itself": "{% block a %}{{ self.a() }}{% endblock %}",
    "a search that nearly finds": LONG + LOOP + "{% if 'x' * 50 ~ 'b' in n.v %}{% endif %}" + DONE,
    "letters that are stripped": LONG
    + "{% set x = n.v.strip('abcdefghijklmnopqrstuvw' * 9999 ~ 'x') %}",
    "a sum of lists": "{{ ([[1] * 999] * 9999) | sum(start=[]) | length }}",
    "lists that hold each other, compared": TWINS + "{% if n.v == n.w %}{% endif %}",
    "a power in one call": "{{ 10**(10**10) }}",
    "squares": "{% set n = namespace(v=3) %}" + LOOP + "{% set n.v = n.v * n.v %}{% endfor %}",
    "digits": "{{ 1.5 | round(10**10, 'ceil') }}",
    "a pattern": "{{ ('<' * 200000) | striptags | urlize }}" * 99,
}
HUGE = {
    "a table for every letter": "{{ ('x' * 1000000).translate({120: 'y' * 1000000}) }}",
    "long texts in a list": "{% set n = namespace(v=[]) %}{% for a in range(9999) %}"
    "{% set n.v = n.v + ['x' * 1000000 ~ a] %}{% endfor %}",
    "two long splits": "{% set w = 'x ' * 4000000 %}{% set a = w.split() %}{% set b = w.split() %}",
    "a repeated text": "{{ 'x' * 10**12 }}",
    "a doubled join": "{% set n = namespace(v='x') %}"
    + LOOP
    + "{% set n.v = n.v ~ n.v %}{% endfor %}",
    "a long output": LOOP + "{{ 'x' * 1000000 }}{% endfor %}",
    "a wide column": "{{ 'x' | center(10**10) }}",
    "a wide format": "{{ '%1000000000d' % 1 }}",
    "a width in a width": "{{ '{:{}}'.format('x', 900000000) }}",
    "a batch": "{{ [1] | batch(10**10, 'x') | list }}",
    "a replacement": "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}",
    "lists that hold each other as text": TWINS + "{{ n.v }}",
    "lists that hold each other as json": TWINS + "{{ n.v | tojson }}",
    "json that is indented far": "{{ [[1]] | tojson(indent=500000000) }}",
    "a number of many bytes": "{% set x = (1).to_bytes(10**10, 'big') %}",
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [*ENDLESS.values(), *HUGE.values(), *FORBIDDEN.values()],
    ids=[*ENDLESS, *HUGE, *FORBIDDEN],
)
def test_it_ends_soon_with_an_error_that_names_the_template(tmp_path: Path, source: str) -> None:
    """Also where bad rows are skipped: no row is at fault. What it takes is taken outside this process;
    how much that is, boxes prove (`tests/laws/test_examples_budget.py`)."""
    path = tmp_path / "evil.jinja"
    path.write_text(source)
    rows = write_chats(tmp_path / "a.jsonl", [CHAT])
    started = time.process_time()
    with pytest.raises(LowtideError, match=r"evil\.jinja") as caught:
        read_blocks_of(rows, example_settings(template_at(path, limits=LIMITS), bad_text="skip"))
    assert time.process_time() - started < slowness()
    assert isinstance(caught.value, UsageError | SharedFaultError)
    assert caught.value.remedy
    assert len(caught.value.problem) < 700


def test_the_rows_before_the_fatal_one_are_given_out(tmp_path: Path) -> None:
    path = tmp_path / "evil.jinja"
    path.write_text(
        "{% if messages[0].content == 'boom' %}"
        + "{% for a in range(99999) %}" * 3
        + DONE * 3
        + "{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    fine = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    boom = [{"role": "user", "content": "boom"}, {"role": "assistant", "content": "a"}]
    rows = write_chats(tmp_path / "a.jsonl", [fine, fine, boom, fine])
    with pytest.raises(SharedFaultError, match=r"a\.jsonl, line 3: template .*CPU time"):
        read_blocks_of(rows, example_settings(template_at(path, limits=LIMITS)))


def test_a_template_can_be_used_again_after_it_was_ended(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(
        "{% if messages[0].content == 'boom' %}{{ 'x' * 10**12 }}{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    template = template_at(path, limits=LIMITS)
    for content, fails in (("q", False), ("boom", True), ("q", False)):
        chat = [{"role": "user", "content": content}, {"role": "assistant", "content": "a"}]
        rows = write_chats(tmp_path / "a.jsonl", [chat])
        if fails:
            with pytest.raises(SharedFaultError):
                read_blocks_of(rows, example_settings(template))
        else:
            assert marked(read_blocks_of(rows, example_settings(template))) == ["q\ufdd8a\ufdd9"]


def test_whether_memory_suffices_depends_on_the_row_alone(tmp_path: Path) -> None:
    """A row that just fits into a new process is not refused for what came before it."""
    path = tmp_path / "t.jinja"
    path.write_text(
        "{% set n = namespace(v=[]) %}{% for a in range(messages[0].content | length) %}"
        "{% set n.v = n.v + ['x' * 99000 ~ a] %}{% endfor %}{{ messages[1].content }}"
    )

    def chat(count: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": "x" * count}, {"role": "assistant", "content": "a"}]

    def fits(rows: list[list[dict[str, str]]]) -> bool:
        file = write_chats(tmp_path / "a.jsonl", rows)
        try:
            read_blocks_of(file, example_settings(template_at(path, limits=limits)))
        except SharedFaultError:
            return False
        return True

    limits = RenderLimits(memory_bytes=16 * MIB)
    low, high = 1, 200
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits([chat(middle)]) else (low, middle)
    assert low > 50
    assert fits([chat(1), chat(2), chat(low - 1), chat(low // 2), chat(low - 1)] * 3)


def test_a_signal_to_all_processes_leaves_the_rendering_one_to_its_parent(tmp_path: Path) -> None:
    """So a scheduler's SIGTERM ends in a clean stop."""
    path = tmp_path / "t.jinja"
    path.write_text("{{ messages[0].content }}")
    before = set(psutil.Process().children())
    template = template_at(path)
    (child,) = set(psutil.Process().children()) - before
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        child.send_signal(number)
    rows = write_chats(tmp_path / "a.jsonl", [CHAT])
    assert marked(read_blocks_of(rows, example_settings(template, "all")))
    assert set(psutil.Process().children()) - before == {child}


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{{ messages[0].content }}")
    before = set(psutil.Process().children())
    template = template_at(path)
    (child,) = set(psutil.Process().children()) - before
    del template
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_killed_parent_leaves_no_process_behind(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{{ messages[0].content }}")
    code = (
        "import os, sys, signal, psutil\n"
        "from tests.source.examples.rows import template_at\n"
        "template = template_at(sys.argv[1])\n"
        "print(psutil.Process().children()[0].pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    number = int(done.stdout)
    if psutil.pid_exists(number):
        psutil.Process(number).wait(timeout=300)


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
    path.write_text("{{a}}" * (64 * KIB // 5))
    started = time.process_time()
    template_at(path)
    assert time.process_time() - started < 5 * slowness()


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
