"""Examples: killed at any moment, the same command ends in the same bytes; a changed template is refused."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

import lowtide
from bench.jobs import Job, check_whole
from bench.nothing_lost import Campaign
from lowtide import TokenizeSettings
from lowtide.errors import StoppedError
from tests.commands import call
from tests.laws.chats import make_chats, write_chats

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
