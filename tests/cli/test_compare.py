"""`lowtide compare` shows, draws, and leaves no process, no cgroup and no file behind, however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

import lowtide as lowtide_package
from lowtide.memory.cgroups import memory_cgroups
from tests.commands import LOWTIDE, call, lowtide_process

Capsys = pytest.CaptureFixture[str]
BOX = ("--limit", "512MiB", "--separator", "line")


def boxes_of(pid: int) -> list[Path]:
    """Cgroups that a process has made and not removed."""
    parents = {group.folder for group in memory_cgroups()}
    return [box for parent in parents for box in parent.glob(f"lowtide-{pid}-*")]


@contextmanager
def comparing(corpus: Path, work: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A comparison whose first program has begun to read."""
    work.mkdir(exist_ok=True)
    command = [
        *LOWTIDE,
        "compare",
        str(corpus),
        "--programs",
        "list,lowtide",
        "--work",
        str(work),
        *BOX,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until = time.monotonic() + 300
        begun = f"lowtide-compare-*-{process.pid}-*/list-16/progress"
        while not list(work.glob(begun)) and time.monotonic() < until:
            assert process.poll() is None
            time.sleep(0.01)
        try:
            yield process
        finally:
            process.kill()


def is_gone(process: psutil.Process, *, seconds: float = 10) -> bool:
    try:
        process.wait(timeout=seconds)
    except psutil.TimeoutExpired:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_interrupted_it_leaves_nothing_behind(
    corpus: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    work = tmp_path / "work"
    with comparing(corpus, work) as process:
        members = psutil.Process(process.pid).children(recursive=True)
        assert members
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
        assert process.returncode == code
    assert out == b""
    assert b"\nhint: run the same command again" in err
    assert all(is_gone(member) for member in members)
    assert list(work.iterdir()) == []
    assert boxes_of(process.pid) == []
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_killed_it_takes_the_program_along_and_the_next_one_clears_up(
    corpus: Path, tmp_path: Path
) -> None:
    work, long = tmp_path / "work", tmp_path / "long.txt"
    long.write_text(corpus.read_text() * 7)  # the program alone would need some four seconds
    with comparing(long, work) as process:
        members = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        assert all(is_gone(member, seconds=2) for member in members)
    for box in boxes_of(process.pid):
        box.rmdir()
    assert len(list(work.iterdir())) == 1
    with comparing(corpus, work) as process:
        assert len(list(work.iterdir())) == 1
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert list(work.iterdir()) == []


@pytest.mark.slow
def test_it_shows_a_table_and_draws_a_page(corpus: Path, tmp_path: Path) -> None:
    page, work = tmp_path / "page.html", tmp_path / "work"
    told = lowtide_process(
        "compare", corpus, "--programs", "list,lowtide", "--sample", "1MB", "--out", page, "--work", work, *BOX
    )  # fmt: skip
    assert told.code == 0, told.err
    rows = {line.split("  ")[0]: line for line in told.out.splitlines()}
    assert "finished" in rows["Python list of ids"]
    assert "finished" in rows["lowtide tokenize"]
    assert "all that finished made the same" in told.out
    assert f"picture: {page}" in told.err
    assert "Python list of ids on" in told.err
    assert "<polyline" in page.read_text()
    assert list(work.iterdir()) == []


def test_json_holds_every_figure_and_keep_keeps(corpus: Path, tmp_path: Path) -> None:
    told = lowtide_process(
        "compare", corpus, "--programs", "list", "--sample", "1MB", "--json", "--keep", "--work", tmp_path, *BOX
    )  # fmt: skip
    found = json.loads(told.out)
    (program,) = found["programs"]
    assert [run["outcome"] for run in program["runs"]] == ["finished", "finished"]
    assert program["runs"][0]["peak_private_bytes"] > 0
    assert program["runs"][0]["private_bytes_over_time"]
    assert found["sample"]["text_bytes"] >= 1_000_000
    assert (Path(found["kept"]) / "list-16" / "out" / "train.bin").stat().st_size > 0
    assert len(list((Path(found["kept"]) / "sample").iterdir())) == 16


@pytest.mark.parametrize(
    ("flags", "code", "problem"),
    [
        (["--limit", "1 apple"], 2, "is not a size"),
        (["--limit", "20MiB"], 3, "not even the libraries fit"),
        (["--programs", "lisp"], 2, "there is no program 'lisp'"),
        (["--out", "picture.png"], 2, "neither a page nor a picture"),
        (["--out", "/proc/x.html"], 2, "/proc/x.html cannot be written"),
        (["--limit", "100000GiB"], 3, "is more than"),
        (["--tokenizer", "nothing"], 2, "no tokenizer is called"),
    ],
)
def test_wrong_questions_are_refused_at_once(
    capsys: Capsys, corpus: Path, flags: list[str], code: int, problem: str
) -> None:
    refused = call(capsys, "compare", corpus, *flags)
    assert refused.code == code
    assert problem in refused.problem


@pytest.mark.slow
def test_at_the_limit_that_is_advised_every_program_runs(capsys: Capsys, tmp_path: Path) -> None:
    text = tmp_path / "sources.txt"
    sources = sorted(Path(lowtide_package.__file__).parent.rglob("*.py"))
    text.write_text("".join(path.read_text() for path in sources))  # enough words for 32,000 tokens
    programs = "list,pool,lowtide,lowtide-train"
    flags = ("--sample", "500kB", "--separator", "line", "--programs", programs)
    refused = call(capsys, "compare", text, "--limit", "20MiB", *flags)
    told = lowtide_process("compare", text, *refused.advice, *flags, "--json")
    found = told.json["programs"]
    assert isinstance(found, list)
    endings = {
        program["program"]: (program["runs"][0]["outcome"], program["runs"][0]["complaint"])
        for program in found
    }
    assert {"list", "lowtide", "lowtide-train"} <= set(endings)
    assert set(endings.values()) == {("finished", None)}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["map", "list"])
def test_a_path_too_long_for_the_sockets_of_datasets_is_told(
    corpus: Path, tmp_path: Path, program: str
) -> None:
    flags = ("--programs", program, "--sample", "100kB", "--work", tmp_path / ("x" * 60))
    told = lowtide_process("compare", corpus, *flags, *BOX)
    is_there = program == "map" and find_spec("datasets") is not None
    assert ("too long a path for the sockets" in told.err) == is_there


EARLY = """
import os, signal, sys
class Early:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), int(sys.argv[2]))
sys.meta_path.insert(0, Early())
from lowtide.cli.main import main
main(sys.argv[3:])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
@pytest.mark.parametrize("module", ["lowtide.show.comparison", "lowtide.tools.compare.run"])
def test_asked_to_end_while_it_starts_it_ends_as_cleanly(
    corpus: Path, tmp_path: Path, number: signal.Signals, code: int, module: str
) -> None:
    arguments = ["compare", str(corpus), "--work", str(tmp_path), *BOX]
    done = subprocess.run(
        [sys.executable, "-c", EARLY, module, str(int(number)), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert "starts from the beginning" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_a_second_interrupt_promises_nothing_either(corpus: Path, tmp_path: Path) -> None:
    script = EARLY.replace("os.kill(", "[os.kill(").replace("[2]))", "[2])) for _ in 'ab']")
    arguments = ["compare", str(corpus), "--work", str(tmp_path), *BOX]
    done = subprocess.run(
        [sys.executable, "-c", script, "lowtide.tools.compare.run", "2", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130
    assert "resume" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_standard_input_is_refused(capsys: Capsys) -> None:
    assert "only once" in call(capsys, "compare", "-").problem
