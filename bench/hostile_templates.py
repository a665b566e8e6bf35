"""Templates that try to take all memory or time, each by `lowtide tokenize` in a cgroup as large as the budget.

    python bench/hostile_templates.py                       all of them, about ten minutes
    python bench/hostile_templates.py --only split

A run passes if it succeeds, or ends with an exit code and `error:` within a minute. An OOM kill, an abort or a
longer run fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import json
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass

from lowtide.units import MIB, parse_bytes
from tests.boxes import BoxResult, run_in_box

LONGEST_SECONDS = 60
ROWS = 20
_LOOP, _DONE = "{% for a in range(99999) %}", "{% endfor %}"
_MILLION = "{% set x = 'x' * 1000000 %}"
_WORDS = "{% set w = 'ab ' * 2600000 %}"
_NUMBERS = "{% set l = range(99999) | list * 40 %}"
_SAYS = "{% for m in messages %}{{ m.content }}{% endfor %}"
_TWINS = (
    "{% set n = namespace(v=[1], w=[1]) %}{% for a in range(40) %}"
    "{% set n.v = [n.v, n.v] %}{% set n.w = [n.w, n.w] %}{% endfor %}"
)


def _growing(start: str, step: str) -> str:
    return f"{{% set n = namespace(v={start}) %}}{_LOOP}{{% set n.v = {step} %}}{_DONE}"


TEMPLATES = {
    "translate with a large table": _MILLION + "{{ x.translate({120: 'y' * 1000000}) }}",
    "long texts kept in a list": _growing("[]", "n.v + ['x' * 1000000 ~ a]"),
    "long texts kept in a dict": _growing("{}", "dict(n.v, **{'k' ~ a: 'x' * 1000000 ~ a})"),
    "two long splits": _WORDS + "{% set a = w.split() %}{% set b = w.split() %}",
    "splits kept in a list": _WORDS + _growing("[]", "n.v + [w.split()]"),
    "nested loops": _LOOP * 4 + _DONE * 4,
    "loops that filter": _LOOP + "{% for b in range(99999) if b < 0 %}{% endfor %}" + _DONE,
    "a macro that calls itself": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "a recursive loop": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "a block that calls itself": "{% block a %}{{ self.a() }}{% endblock %}",
    "a huge range": "{% for a in range(10**9) %}{% endfor %}",
    "a range as a list, many times": _growing("[]", "n.v + [range(99999) | list]"),
    "a text multiplied": "{{ 'x' * 10**12 }}",
    "a text just below the budget": "{% set x = 'x' * 200000000 %}{{ x | length }}",
    "a list multiplied": "{{ ([1] * 10**9) | length }}",
    "a doubled text": _growing("'x'", "n.v ~ n.v"),
    "a doubled list": _growing("[1]", "n.v + n.v"),
    "a long output": _LOOP + "{{ 'x' * 100000 }}" + _DONE,
    "output just beyond the limit": "{{ 'x' * 9000000 }}" + _SAYS,
    "a wide column": "{{ 'x' | center(10**10) }}",
    "a format width": "{{ '{:10000000000}'.format(1) }}",
    "a width inside a width": "{{ '{:{}}'.format('x', 900000000) }}",
    "a percent width": "{{ '%1000000000d' % 1 }}",
    "a percent width from an argument": "{{ '%*d' | format(10**9, 1) }}",
    "many fields": "{{ ('{0}' * 100000).format('x' * 1000000) }}",
    "tojson of a huge list": _NUMBERS + "{{ (l * 20) | tojson }}",
    "tojson with a wide indent": "{{ [[1]] | tojson(indent=900000000) }}",
    "tojson of lists that hold each other": _TWINS + "{{ n.v | tojson }}",
    "text of lists that hold each other": _TWINS + "{{ n.v }}",
    "comparing lists that hold each other": _TWINS + "{% if n.v == n.w %}{% endif %}",
    "sort of a huge list": _NUMBERS + "{{ l | sort | length }}{{ (l * 9) | sort | length }}",
    "unique of long texts": _growing("[]", "(n.v + ['x' * 1000000 ~ a]) | unique | list"),
    "groupby of many rows": "{% set l = ([{'a': 1}] * 3000000) %}{{ l | groupby('a') | length }}",
    "batch with a huge width": "{{ [1] | batch(10**10, 'x') | list }}",
    "slice into many parts": _NUMBERS + "{{ l | slice(10**9) | list | length }}",
    "a sum of lists": "{{ ([[1] * 9999] * 9999) | sum(start=[]) | length }}",
    "replace that grows": _MILLION + "{{ x | replace('x', 'y' * 1000000) }}",
    "join that grows": _MILLION + "{{ x | join('y' * 100000) }}",
    "indent that grows": "{{ ('x\\n' * 1000000) | indent(100000, true) }}",
    "a cycler of long texts": "{% set c = cycler('x' * 9000000, 'y' * 9000000, 'z' * 9000000) %}"
    + _LOOP
    + "{{ c.next() }}"
    + _DONE,
    "a joiner in a loop": "{% set j = joiner('x' * 1000000) %}" + _LOOP + "{{ j() }}" + _DONE,
    "a block that is kept": "{% set s %}"
    + _LOOP
    + "{{ 'x' * 10000 }}"
    + _DONE
    + "{% endset %}{{ s }}",
    "a power in one call": "{{ 10**(10**10) }}",
    "squares": _growing("3", "n.v * n.v"),
    "a number of many bytes": "{% set x = (1).to_bytes(10**10, 'big') %}",
    "a search that nearly finds": _growing(
        "'x' * 8000000", "n.v if 'x' * 50 ~ 'b' not in n.v else ''"
    ),
    "strip with a large set": "{% set x = ('x' * 8000000).strip('abc' * 99999 ~ 'x') %}",
    "titles": _WORDS + _LOOP + "{% set x = w | title %}" + _DONE,
    "striptags": "{{ ('<' * 500000) | striptags }}" * 50,
    "wordwrap": _WORDS + "{{ w | wordwrap(1) | length }}",
    "urlize": "{{ ('http://a.b/' * 500000) | urlize | length }}",
    "constants that are folded": "{{ ('x' * 100000000) ~ ('y' * 100000000) }}" * 20,
    "a large template": "{{a}}" * 13_000,
    "deep brackets": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "memory in every row": "{% set n = namespace(v=[]) %}{% for a in range(14) %}"
    "{% set n.v = n.v + ['x' * 1000000 ~ a] %}{% endfor %}" + _SAYS,
    "time in every row": "{% for a in range(99999) %}{% endfor %}" + _SAYS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one run ended."""

    passed: bool
    words: str


FOLDED = ("a power in one call", "constants that are folded", "a text multiplied")
"""Templates whose constants Jinja may work out when it compiles them."""


def at_run_time(source: str) -> str:
    """The template with large numbers that are known only when a row is."""
    return "{% set one = messages | length %}" + re.sub(r"\* (\d{4,})", r"* (\1 + one)", source)


def run(source: str, folder: Path, memory: str) -> tuple[BoxResult | None, float]:
    """Tokenize a few chats by this template, in a box as large as the budget; None: it took too long."""
    template, rows = folder / "hostile.jinja", folder / "chats.jsonl"
    template.write_text(source)
    chat = [{"role": "user", "content": "x " * 500}, {"role": "assistant", "content": "fine"}]
    rows.write_text((json.dumps({"messages": chat}) + "\n") * ROWS)
    command = [sys.executable, "-m", "lowtide", "tokenize", str(rows), "--memory", memory]
    command += ["--examples", "chat", "--learn", "all", "--template", str(template)]
    command += ["--out", str(folder / "tokens")]
    started = time.monotonic()
    try:
        result = run_in_box(command, limit_bytes=parse_bytes(memory), timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        result = None
    return result, time.monotonic() - started


def judge(result: BoxResult | None) -> Outcome:
    """Whether the run ended as it may, and how."""
    if result is None:
        return Outcome(passed=False, words="HANGS")
    if result.oom_kills:
        return Outcome(passed=False, words="OOM KILL")
    if result.returncode == 0:
        return Outcome(passed=True, words="finished")
    error = next((line for line in result.stderr.splitlines() if line.startswith("error:")), "")
    if result.returncode < 0 or result.returncode >= 128 or not error:
        return Outcome(passed=False, words=f"FAILED ({result.returncode})")
    _, _, reason = error.partition("hostile.jinja ")
    return Outcome(passed=True, words=f"error {result.returncode}: {reason[:60] or error[:60]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--only", default="", help="only templates whose name contains this")
    chosen = parser.parse_args()
    print(f"| template, in {chosen.memory} | outcome | seconds | peak private | proven by |")
    print("|---|---|--:|--:|---|")
    passed = []
    for name, source in TEMPLATES.items():
        if chosen.only not in name:
            continue
        source = source if name in FOLDED else at_run_time(source)
        with tempfile.TemporaryDirectory(prefix="lowtide-hostile-") as folder:
            result, seconds = run(source, Path(folder), chosen.memory)
        outcome = judge(result)
        passed.append(outcome.passed)
        peak = f"{result.peak_private_bytes / MIB:.0f} MiB" if result else "–"
        how = result.how if result else "–"
        print(f"| {name} | {outcome.words} | {seconds:.1f} | {peak} | {how} |", flush=True)
        if result and not outcome.passed:
            print(result.stderr[-1000:], file=sys.stderr)
    print(f"\n{sum(passed)} of {len(passed)} passed")
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
