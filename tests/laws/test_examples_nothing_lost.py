"""Examples: killed at any moment, the same command ends in the same bytes; a changed template is refused."""

from __future__ import annotations

import json
import math
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

import lowtide
from bench.jobs import Job, check_whole
from bench.nothing_lost import Campaign
from lowtide import TokenizeSettings
from lowtide.errors import InterruptedRun, StoppedError
from tests.commands import call
from tests.laws.chats import make_chats, write_chats
from tests.machine_speed import slowness
from tests.source.examples.rows import example_settings, read_blocks_of, template_of

SHARD_TOKENS = 200_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_chats(tmp_path_factory.mktemp("chats"), make_chats(2, count=1000) * 2)


@pytest.mark.slow
def test_a_run_over_examples_killed_at_any_moment_goes_on_to_the_same_bytes(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    job = Job(
        name="examples",
        arguments=(
            str(files["jsonl"]),
            str(files["parquet"]),
            *("--examples", "chat", "--val", "0.1", "--context", "100"),
        ),
        shard_tokens=SHARD_TOKENS,
    )
    campaign = Campaign(job=job, folder=tmp_path, random=random.Random("examples"))
    campaign.run_undisturbed()
    wanted = 3
    for _ in range(3 * wanted):  # a run may be faster than its end
        wanted -= campaign.disturb(signal.SIGKILL, wanted)
        if not wanted:
            break
    assert campaign.outcomes["SIGKILL exit -9"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_run_stopped_after_every_block_comes_to_the_same_bytes(
    tmp_path: Path, files: dict[str, Path], kind: str
) -> None:
    settings = TokenizeSettings(examples="chat", context=100, val=0.2)
    lowtide.tokenize([files[kind]], tmp_path / "whole", settings)
    stops = 0
    while not (tmp_path / "out" / "lowtide.json").exists():
        try:
            lowtide.tokenize(
                [files[kind]], tmp_path / "out", settings, should_stop=lambda: "terminated"
            )
        except StoppedError:
            stops += 1
    assert stops > 1
    check_whole(tmp_path / "out", tmp_path / "whole", f"after {stops} stops")


TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
SLOWLY = "{% for number in range(60000) %}{% set x = number %}{% endfor %}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_a_slow_template_leaves_a_stop_unheard_for_no_more_than_two_seconds(
    tmp_path: Path, files: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # this stop need not wait for a block
    (tmp_path / "slow.jinja").write_text(4 * SLOWLY + TURNS)  # a minute for all rows
    settings = TokenizeSettings(examples="chat", template=str(tmp_path / "slow.jinja"), learn="all")
    started, seconds_at_stop = time.monotonic(), math.inf

    def should_stop() -> str | None:
        nonlocal seconds_at_stop
        if time.monotonic() - started <= 2:
            return None
        seconds_at_stop = min(seconds_at_stop, cpu_seconds())
        return "interrupted"

    with pytest.raises(InterruptedRun):
        lowtide.tokenize(
            [files[kind]],
            tmp_path / "out",
            settings,
            should_stop=should_stop,
        )
    assert cpu_seconds() - seconds_at_stop < 4 * slowness()  # two on an idle machine


def cpu_seconds() -> float:
    """What this process and its children have used, those that have ended included."""
    times = [psutil.Process().cpu_times()]
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            times.append(child.cpu_times())
    return sum(sum(one[:4]) for one in times)  # without the wait for disks


@pytest.mark.slow
def test_blocks_that_a_slow_template_cuts_short_hold_the_same_examples(tmp_path: Path) -> None:
    rows = [[{"role": "user", "content": f"question {number}"}] for number in range(100)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    slow, fast = (
        read_blocks_of(path, example_settings(template_of(text), "all"))
        for text in (4 * SLOWLY + TURNS, TURNS)
    )
    assert len(fast) == 1
    assert len(slow) > 1
    assert b"".join(block.text for block in slow) == fast[0].text
    assert sum(block.document_count for block in slow) == len(rows)
    before = np.cumsum([0, *(len(block.text) for block in slow)])
    spans = [block.learnt + start for block, start in zip(slow, before, strict=False)]
    assert np.concatenate(spans).tolist() == fast[0].learnt.tolist()


@pytest.mark.parametrize("finished", [True, False])
def test_a_template_that_changed_is_named_and_refused(
    tmp_path: Path, files: dict[str, Path], capsys: pytest.CaptureFixture[str], finished: bool
) -> None:
    template = tmp_path / "mine.jinja"
    text = "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    template.write_text(text)
    settings = TokenizeSettings(examples="chat", template=str(template))
    out = tmp_path / "out"
    try:
        lowtide.tokenize(
            [files["jsonl"]], out, settings, should_stop=lambda: None if finished else "terminated"
        )
    except StoppedError:
        assert not finished
    template.write_text(text + "!")
    command = ("tokenize", files["jsonl"], "--out", out, "--examples", "chat")
    refused = call(capsys, *command, "--template", template)
    assert refused.code == 2
    assert f"the template {template} has changed" in refused.problem
    assert "endgeneration" not in refused.err
    template.write_text(text)
    assert call(capsys, *command, "--template", template).code == 0
