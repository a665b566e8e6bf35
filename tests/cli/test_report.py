"""`lowtide report` writes one page beside the run, reads its journal only, and says where the page is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import call
from tests.report.page_journals import BEGAN, end, tokenized, trained, watched, write_log

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_log(tmp_path / "run" / "log.jsonl", [*trained(steps=200), end(BEGAN + 300)])
    return tmp_path / "run"


def test_the_page_lies_in_the_run_and_its_path_on_stdout(capsys: Capsys, run: Path) -> None:
    told = call(capsys, "report", run)
    assert (told.code, told.err) == (0, "")
    assert told.out == f"{run.resolve() / 'report.html'}\n"
    assert sorted(one.name for one in run.iterdir()) == ["log.jsonl", "report.html"]
    assert "Finished" in (run / "report.html").read_text()


def test_a_page_is_made_again_and_elsewhere(capsys: Capsys, run: Path, tmp_path: Path) -> None:
    assert call(capsys, "report", run).code == 0
    assert call(capsys, "report", run / "log.jsonl", "--out", tmp_path / "page.html").code == 0
    assert call(capsys, "report", run).code == 0
    assert (tmp_path / "page.html").read_bytes() == (run / "report.html").read_bytes()


def test_the_page_of_a_timeline_lies_beside_it(capsys: Capsys, tmp_path: Path) -> None:
    path = write_log(tmp_path / "20260921-141320-4711.jsonl", watched())
    assert call(capsys, "report", path).out == f"{path.resolve().with_suffix('.html')}\n"


def test_json_says_what_the_page_says(capsys: Capsys, run: Path) -> None:
    found = call(capsys, "report", run, "--json").json
    assert (found["kind"], found["outcome"], found["step"]) == ("train", "done", 200)
    assert found["page_bytes"] == (run / "report.html").stat().st_size
    assert Path(str(found["path"])) == run.resolve() / "report.html"
    assert str(found["verdict"]).startswith("Finished: 200 of 200 steps")


def test_a_dead_run_has_a_page_too(capsys: Capsys, tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", list(tokenized())[:300])
    found = call(capsys, "report", tmp_path, "--json").json
    assert found["outcome"] is None
    assert "it still runs, or it was killed" in str(found["verdict"])


def test_2_when_there_is_no_log_or_no_place_for_the_page(
    capsys: Capsys, run: Path, tmp_path: Path
) -> None:
    for wrong in (tmp_path, tmp_path / "nowhere"):
        refused = call(capsys, "report", wrong)
        assert refused.code == 2
        assert "there is no log" in refused.problem
        assert "tokenize, train-tokenizer or train" in refused.hint
    assert call(capsys, "report", run, "--out", tmp_path).code == 2
    assert call(capsys, "report", run, "--out", run / "log.jsonl").code == 2
    assert "records" not in (run / "log.jsonl").read_text()[:200]
    log = (run / "log.jsonl").read_bytes()
    assert call(capsys, "report", run, "--out", run / "x" / "y.html").code == 1
    assert (run / "log.jsonl").read_bytes() == log
    assert [one.name for one in run.iterdir()] == ["log.jsonl"]


def test_1_when_the_log_is_not_a_log(capsys: Capsys, run: Path) -> None:
    (run / "log.jsonl").write_text("three small pigs\n")
    refused = call(capsys, "report", run)
    assert refused.code == 1
    assert "line 1" in refused.problem
    assert not (run / "report.html").exists()


def test_a_page_costs_neither_torch_nor_numpy(run: Path) -> None:
    script = (
        "import sys, json\nfrom lowtide.cli.main import main\n"
        "try:\n main(sys.argv[1:])\nexcept SystemExit: print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "report", str(run)],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    assert not loaded & {"torch", "numpy", "pyarrow", "rich", "gigatoken", "tiktoken"}
