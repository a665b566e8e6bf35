"""Budget, workers, order of files and any number of crashes: the trained tokenizer has the same bytes."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lowtide
from lowtide import TokenizerSettings
from lowtide.errors import StoppedError
from lowtide.events import Checkpointed, Event
from lowtide.stages.plan_tokenizer import plan_tokenizer
from lowtide.tokenizer.count_words import ENTRY_BYTES
from tests.commands import lowtide as run_lowtide
from tests.corpora import SEPARATOR, make_documents, write_inputs
from tests.trained import trained_bytes

SETTINGS = TokenizerSettings(vocab_size=(500, 1500), separator=SEPARATOR, val=0.05)


def invented_words(seed: int, count: int) -> str:
    """Nearly all of them distinct: more than the smallest table holds."""
    letters = bytes.maketrans(b"0123456789", b"ghijklmnop")  # a digit would end the word
    source = random.Random(seed)
    words = b" ".join(b"%011x" % source.getrandbits(44) for _ in range(count))
    return words.translate(letters).decode()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("inputs")
    many = write_inputs(folder, make_documents(3, count=400, longest=8000))
    words = folder / "words.txt"
    words.write_text(SEPARATOR.join(invented_words(seed, 100_000) for seed in range(6)))
    return [many["txt"], many["jsonl"], many["parquet"], words]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, inputs: list[Path]) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    lowtide.train_tokenizer(inputs, out, SETTINGS, memory="2GiB", workers=1)
    return trained_bytes(out)


@pytest.mark.parametrize(
    ("memory", "workers"), [("2GiB", 2), ("128MiB", 1), ("140MiB", 2), ("4GiB", 2)]
)
def test_budget_and_workers_change_memory_and_never_output(
    tmp_path: Path,
    inputs: list[Path],
    undisturbed: dict[str, bytes],
    memory: str,
    workers: int,
) -> None:
    lowtide.train_tokenizer(inputs, tmp_path / "out", SETTINGS, memory=memory, workers=workers)
    assert trained_bytes(tmp_path / "out") == undisturbed


def test_some_of_these_budgets_spill_and_some_do_not(tmp_path: Path, inputs: list[Path]) -> None:
    """Otherwise the law above would compare a run that spills with nothing."""
    distinct = lowtide.train_tokenizer(inputs, tmp_path / "out", SETTINGS).manifest.distinct_words
    held = {}
    for memory in ("128MiB", "4GiB"):
        prepared = plan_tokenizer(
            [str(path) for path in inputs], SETTINGS, out=tmp_path, memory=memory
        )
        held[memory] = prepared.allowances.table_bytes // ENTRY_BYTES
    assert held["128MiB"] < distinct / 2 < distinct < held["4GiB"], held


def test_the_order_of_the_files_changes_nothing(
    tmp_path: Path, inputs: list[Path], undisturbed: dict[str, bytes]
) -> None:
    lowtide.train_tokenizer(inputs[::-1], tmp_path / "out", SETTINGS)
    assert trained_bytes(tmp_path / "out") == undisturbed


def test_a_run_stopped_after_every_block_comes_to_the_same_bytes(
    tmp_path: Path, inputs: list[Path], undisturbed: dict[str, bytes]
) -> None:
    stops = 0
    while not (tmp_path / "out" / "lowtide-tokenizer.json").exists():
        try:
            lowtide.train_tokenizer(
                inputs, tmp_path / "out", SETTINGS, should_stop=lambda: "terminated"
            )
        except StoppedError:
            stops += 1
            assert stops < 100
            if stops > 12:  # the last stops fall into learning, which begins anew each time
                lowtide.train_tokenizer(inputs, tmp_path / "out", SETTINGS)
    assert stops > 4
    assert trained_bytes(tmp_path / "out") == undisturbed


def test_checkpoints_at_every_moment_come_to_the_same_bytes(
    tmp_path: Path, inputs: list[Path], undisturbed: dict[str, bytes]
) -> None:
    """More runs than are kept side by side: they are merged on the way."""
    checkpoints = []

    def listen(event: Event) -> None:
        if isinstance(event, Checkpointed):
            checkpoints.append(event)

    lowtide.train_tokenizer(
        inputs, tmp_path / "out", SETTINGS, listen=listen, checkpoint_seconds=0.0
    )
    assert len(checkpoints) > 5
    assert trained_bytes(tmp_path / "out") == undisturbed


@pytest.mark.slow
def test_a_run_killed_at_any_moment_goes_on_to_the_same_bytes(
    tmp_path: Path, inputs: list[Path], undisturbed: dict[str, bytes]
) -> None:
    program = (
        "import sys, lowtide\n"
        "from tests.laws.test_trained_same_bytes import SETTINGS\n"
        "lowtide.train_tokenizer(sys.argv[2:], sys.argv[1], SETTINGS, memory='128MiB',"
        " checkpoint_seconds=0.05)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "out"), *map(str, inputs)]
    source = random.Random(8)
    killed = 0
    while killed < 8:
        run = subprocess.Popen(command, stderr=subprocess.PIPE)
        time.sleep(source.uniform(0.2, 1.0))
        run.send_signal(signal.SIGKILL)
        _, said = run.communicate()
        assert run.returncode in (0, -signal.SIGKILL), said.decode()
        killed += run.returncode == -signal.SIGKILL
        if run.returncode == 0:  # faster than its end: the next one begins anew
            assert trained_bytes(tmp_path / "out") == undisturbed
            shutil.rmtree(tmp_path / "out")
    subprocess.run(command, check=True)
    assert trained_bytes(tmp_path / "out") == undisturbed


def test_a_stop_is_clean_and_says_so(tmp_path: Path, inputs: list[Path]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / ".stop").touch()
    arguments = ("train-tokenizer", *inputs, "--out", out, "--vocab-size", "1500")
    stopped = run_lowtide(*arguments, "--separator", SEPARATOR)
    assert stopped.code == 75
    assert stopped.problem.startswith("after ")
    assert "run the same command again" in stopped.hint
    done = run_lowtide(*arguments, "--separator", SEPARATOR)
    assert done.code == 0, done.err
    assert "resuming" in done.err
    again = run_lowtide(*arguments, "--separator", SEPARATOR)
    assert again.code == 0
    assert "already" in again.out


def test_a_kill_while_files_are_written_leaves_nothing_in_any_folder(
    tmp_path: Path, inputs: list[Path], undisturbed: dict[str, bytes]
) -> None:
    """What such a kill leaves behind, put there by hand: it falls into a few milliseconds otherwise."""
    out = tmp_path / "out"
    with pytest.raises(StoppedError):
        lowtide.train_tokenizer(inputs, out, SETTINGS, should_stop=lambda: "terminated")
    (out / "500").mkdir()
    for folder in (out, out / "500", out / ".lowtide"):
        (folder / ".merges.txt.4711.tmp").write_text("half")
    lowtide.train_tokenizer(inputs, out, SETTINGS)
    assert trained_bytes(out) == undisturbed
