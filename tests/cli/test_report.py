"""`lowtide report` writes one page beside the run, reads its journal only, and says where the page is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.dataset.find_tokens import RUN_RECORD
from lowtide.shards.layout import MANIFEST_NAME
from lowtide.tokenizer.byte_pair_files import TRAINED_MANIFEST_NAME
from tests.commands import call
from tests.show.page_journals import BEGAN, end, tokenized, trained, watched, write_log

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
    told = call(capsys, "why", tmp_path).out.splitlines()[0]
    assert told in str(found["verdict"])


def test_2_when_there_is_no_log(capsys: Capsys, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for wrong, words in (("nowhere", "there is no"), ("pictures", "only runs of lowtide keep one")):
        refused = call(capsys, "report", tmp_path / wrong)
        assert refused.code == 2
        assert words in refused.problem
        assert "tokenize, train-tokenizer, export or train" in refused.hint


@pytest.mark.parametrize("name", [MANIFEST_NAME, RUN_RECORD, TRAINED_MANIFEST_NAME])
def test_a_run_of_a_version_without_logs_is_told_so(
    capsys: Capsys, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("{}")
    refused = call(capsys, "report", tmp_path)
    assert refused.code == 2
    assert "a version of lowtide that kept none" in refused.problem


def test_a_file_that_is_no_log_is_named_as_such_and_nothing_is_written(
    capsys: Capsys, tmp_path: Path
) -> None:
    texts = {
        "README.md": "# Three small pigs\n\nand a wolf\n",
        "corpus.jsonl": '{"text": "a"}\n{"text": "b"}\n',
        "other.jsonl": '{"event": "click", "at": 5}\n',
        "log.jsonl": "three small pigs\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        refused = call(capsys, "report", tmp_path / name)
        assert refused.code == 2, name
        assert f"{name} is not a log" in refused.problem
        assert "remove" not in refused.hint
    assert {one.name for one in tmp_path.iterdir()} == set(texts)


def test_only_a_page_of_lowtide_is_replaced(capsys: Capsys, run: Path, tmp_path: Path) -> None:
    taken = tmp_path / "index.html"
    taken.write_text("<!DOCTYPE html><title>mine</title>")
    refused = call(capsys, "report", run, "--out", taken)
    assert (refused.code, taken.read_text()) == (2, "<!DOCTYPE html><title>mine</title>")
    assert "is not a page of lowtide" in refused.problem
    assert "pass another `--out`" in refused.hint
    (run / "report.html").write_text("")
    assert call(capsys, "report", run).code == 2
    assert call(capsys, "report", run, "--out", tmp_path / "mine.HTML").code == 0
    assert call(capsys, "report", run, "--out", tmp_path / "mine.HTML").code == 0


@pytest.mark.parametrize("name", ["lowtide-run.json", "log.jsonl", "page", ".html/", "new.txt"])
def test_a_page_is_named_html(capsys: Capsys, run: Path, name: str) -> None:
    (run / "lowtide-run.json").write_text('{"run": 1}')
    (run / ".html").mkdir()
    before = {one.name: one.read_bytes() for one in run.iterdir() if one.is_file()}
    refused = call(capsys, "report", run, "--out", f"{run}/{name}")
    assert refused.code == 2
    assert ".html" in refused.hint
    assert {one.name: one.read_bytes() for one in run.iterdir() if one.is_file()} == before


def test_a_page_does_not_go_to_stdout(
    capsys: Capsys, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = call(capsys, "report", run, "--out", "-")
    assert (refused.code, refused.out) == (2, "")
    assert "--json" in refused.hint
    assert [one.name for one in tmp_path.iterdir()] == ["run"]


def test_the_remedy_for_a_place_that_cannot_be_written_works(
    capsys: Capsys, run: Path, tmp_path: Path
) -> None:
    page = tmp_path / "not\nthere\x1b[31m" / "page.html"
    refused = call(capsys, "report", run, "--out", page)
    assert refused.code == 1
    assert "resumes" not in refused.hint
    assert "\n" not in refused.problem + refused.hint
    assert "not\\nthere\\x1b[31m" in refused.problem
    assert "make the folder" in refused.hint
    page.parent.mkdir()
    assert call(capsys, "report", run, "--out", page).code == 0
    (run / "file").touch()
    for wrong, code in ((run / "file" / "page.html", 1), (tmp_path / ("x" * 300 + ".html"), 2)):
        refused = call(capsys, "report", run, "--out", wrong)
        assert refused.code == code
        assert "resumes" not in refused.hint
        assert "--out" in refused.problem + refused.hint


def test_names_with_newlines_are_told_on_one_line(capsys: Capsys, tmp_path: Path) -> None:
    (tmp_path / "a\nfolder").mkdir()
    (tmp_path / "a\nfile").write_text("pigs\n")
    write_log(tmp_path / "a\nlog", watched())
    taken = tmp_path / "a\npage.html"
    taken.touch()
    calls = [["a\nfolder"], ["a\nfile"], ["no\nwhere"], ["x\n" * 3000]]
    calls += [["a\nlog", "--out", str(taken)], ["a\nlog", "--out", "a\nb"]]
    for name, *more in calls:
        refused = call(capsys, "report", tmp_path / name, *more)
        assert refused.code in (1, 2)
        assert "\n" not in refused.problem + refused.hint


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
