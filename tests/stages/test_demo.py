"""The demo: every command once, on a small library; it resumes where it stopped and removes only its own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from lowtide.errors import (
    DoesNotFitError,
    InterruptedRun,
    LowtideError,
    StoppedError,
    UsageError,
)
from lowtide.tools.demo import run_stage
from lowtide.tools.demo.corpus import write_corpus
from lowtide.tools.demo.record import StageRecord
from lowtide.tools.demo.stages import TRAINING_BYTES, DemoSettings, Stage, list_stages
from lowtide.tools.demo.story import LEAST_BYTES, Demo, StageDone, clean_demo, run_demo
from lowtide.tools.demo.words import closing_rows, demo_record, stage_lines
from lowtide.units import MIB
from tests.commands import call

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources in a folder, as Python's own lie: a package, a test that is not text, what others installed."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "package").mkdir()
    (folder / "site-packages").mkdir()
    for number in range(60):
        body = "".join(f"def f{line}(x):\n    return x + {line * number}\n" for line in range(150))
        (folder / "package" / f"m{number:02}.py").write_text(body)
    (folder / "latin.py").write_bytes("# coding: latin-1\nname = 'Käthe'\n".encode("latin-1"))
    (folder / "bad.py").write_bytes(b"# no text: \xff\xfe\n")
    (folder / "site-packages" / "other.py").write_text("somebody = 'else'\n")
    (folder / "notes.txt").write_text("no source")
    return folder


def settings_of(library: Path, **changed: object) -> DemoSettings:
    usual = DemoSettings(
        memory_bytes=256 * MIB, library=library, with_torch=False, steps=3, compares=False
    )
    return replace(usual, **changed)  # type: ignore[arg-type]


def run(folder: Path, settings: DemoSettings, **more: object) -> Demo:
    return run_demo(folder, settings, environment=ENVIRONMENT, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def finished(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished demo without torch; copy it."""
    folder = tmp_path_factory.mktemp("finished") / "demo"
    run(folder, settings_of(library))
    return folder


def digest(folder: Path, pattern: str) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob(pattern))]


def test_the_corpus_is_the_library_alone(library: Path, tmp_path: Path) -> None:
    facts = write_corpus(tmp_path / "a.parquet", library)
    rows = pq.read_table(tmp_path / "a.parquet").to_pylist()
    names = [row["path"] for row in rows]
    assert names[0] == "latin.py"
    assert names[1:] == [f"package/m{number:02}.py" for number in range(60)]
    assert rows[0]["text"].endswith("Käthe'\n")
    assert (facts.files, facts.left_out) == (61, 1)
    assert facts.text_bytes == sum(len(row["text"].encode()) for row in rows)
    write_corpus(tmp_path / "b.parquet", library)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


@pytest.mark.slow
def test_all_stages_run_with_torch_and_are_remembered(library: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "demo"
    everything = settings_of(library, with_torch=True, compares=True)
    first = run(folder, everything)
    assert [one.stage.key for one in first.stages][-3:] == ["export", "compare", "report"]
    assert len(first.stages) == 10
    for one in first.stages:
        budget = one.stage.budget_bytes
        assert one.record.peak_private_bytes > 0
        assert budget is None or one.record.peak_private_bytes <= budget
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(folder / "for-transformers").num_parameters() > 1000
    assert "list" in (folder / "compare.html").read_text()
    assert (folder / "model" / "report.html").exists()
    told = dict(closing_rows(first))
    assert str(folder / "for-transformers") in told["model"]
    assert told["clean up"] == f"lowtide demo --out {folder} --clean"
    again = run(folder, everything)
    assert all(one.before for one in again.stages)
    assert all("(done before)" in stage_lines(one)[0] for one in again.stages)
    assert json.dumps(demo_record(again))


@pytest.mark.slow
def test_two_demos_make_the_same_bytes(library: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = []
    for name, memory in (("a", 256 * MIB), ("b", 320 * MIB)):
        run(tmp_path / name, settings_of(library, with_torch=True, memory_bytes=memory))
        files = ("tokenizer/tokenizer.json", "tokens/*.npy", "for-transformers/*.safetensors")
        found.append([digest(tmp_path / name, pattern) for pattern in files])
    assert found[0] == found[1]
    assert all(found[0])


@pytest.mark.slow
def test_without_torch_the_rest_is_named_and_comes_later(library: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    first = run(tmp_path / "demo", settings_of(library))
    keys = [one.stage.key for one in first.stages]
    assert keys == ["corpus", "tokenizer", "tokenize", "verify", "plan", "report"]
    told = dict(closing_rows(first))
    assert told["left out"].startswith("train a GPT, sample from it, export it")
    assert "pip install 'lowtide[train]'" in told["next"]
    assert (tmp_path / "demo" / "tokens" / "report.html").exists()
    later = run(tmp_path / "demo", settings_of(library, with_torch=True))
    before = {one.stage.key for one in later.stages if one.before}
    assert before == {"corpus", "tokenizer", "tokenize", "verify", "plan"}
    assert (tmp_path / "demo" / "model" / "report.html").exists()


@pytest.mark.slow
def test_another_budget_is_measured_anew(library: Path, tmp_path: Path) -> None:
    run(tmp_path / "demo", settings_of(library))
    again = run(tmp_path / "demo", settings_of(library, memory_bytes=300 * MIB))
    assert [one.stage.key for one in again.stages if one.before] == ["corpus"]
    assert "300MiB" in stage_lines(again.stages[1])[1]


@pytest.mark.slow
def test_a_stop_ends_it_cleanly_and_it_goes_on(library: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder, settings = tmp_path / "demo", settings_of(library, with_torch=True, steps=20)
    log = folder / "model" / "log.jsonl"

    def stop_in_training() -> str | None:
        return "terminated" if log.exists() and b'"step"' in log.read_bytes() else None

    with pytest.raises(StoppedError, match="train a GPT") as told:
        run(folder, settings, should_stop=stop_in_training)
    assert "again" in told.value.remedy
    assert not running_in(folder)
    done = {one.stage.key: one for one in run(folder, settings).stages}
    assert done["train"].record.went_on
    assert "resumed" in stage_lines(done["train"])[0]
    assert done["plan"].before
    assert done["train"].record.facts is not None
    assert done["train"].record.facts["step"] == 20


def running_in(folder: Path) -> list[int]:
    """Processes whose current folder it is."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(folder):
                found.append(process.pid)
    return found


@pytest.mark.slow
def test_a_killed_demo_goes_on_although_its_command_still_runs(
    library: Path, tmp_path: Path
) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from lowtide.tools.demo.stages import DemoSettings\n"
        "from lowtide.tools.demo.story import run_demo\n"
        "settings = DemoSettings(\n"
        "    memory_bytes=256 << 20, library=Path(sys.argv[2]), with_torch=False, steps=3, compares=False)\n"
        "run_demo(Path(sys.argv[1]), settings, environment=os.environ)\n"
    )
    folder = tmp_path / "demo"
    child = subprocess.Popen([sys.executable, "-c", code, str(folder), str(library)])
    deadline = time.monotonic() + 300
    while not (folder / "tokenizer").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert (folder / "tokenizer").exists()
    done = run(folder, settings_of(library))
    assert [one.stage.key for one in done.stages if one.before] == ["corpus"]
    assert done.stages[-1].record.facts is not None


def test_a_command_that_does_not_listen_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    stage = Stage(key="verify", arguments=())
    monkeypatch.setattr(Stage, "command", property(lambda _stage: [sys.executable, "-c", deaf]))
    monkeypatch.setattr(run_stage, "_STOP_SECONDS", 0.3)
    asked = iter([None] * 10 + ["interrupted"])
    with pytest.raises(InterruptedRun, match="stopped during 'verify'"):
        run_stage.run_stage(
            stage,
            tmp_path,
            tmp_path,
            environment=ENVIRONMENT,
            should_stop=lambda: next(asked),  # type: ignore[arg-type,return-value]
            look=lambda _seconds, _said: None,
        )
    assert not running_in(tmp_path)


def test_a_stage_that_fails_says_why_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(LowtideError, match=r"'collect text' failed.*no sources") as told:
        run(tmp_path / "demo", settings_of(tmp_path / "empty"))
    assert "lowtide tokenize TEXT" in told.value.remedy


@pytest.mark.slow
def test_only_what_the_demo_made_is_removed(library: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(finished, folder)
    (folder / "mine.txt").write_text("mine")
    (folder / ".corpus.parquet.4711.tmp").write_bytes(b"of a killed write")
    clean_demo(folder)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    with pytest.raises(UsageError, match="holds no demo"):
        clean_demo(folder)
    assert (folder / "mine.txt").exists()


def test_what_cannot_be_meant_is_refused(library: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("a thesis")
    with pytest.raises(UsageError, match="is not a folder"):
        run(tmp_path / "file", settings_of(library))
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        run(tmp_path / "full", settings_of(library))
    with pytest.raises(DoesNotFitError, match=r"does not fit in 10\.0 MiB"):
        run(tmp_path / "demo", settings_of(library, memory_bytes=10 * MIB))
    assert not (tmp_path / "demo").exists()


def test_what_a_user_put_into_its_folders_is_never_removed(
    library: Path, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(finished, folder)
    notes = folder / "tokens" / "my notes.txt"
    notes.write_text("weeks of work")
    with pytest.raises(UsageError, match="what the demo did not make"):
        run(folder, settings_of(library, memory_bytes=300 * MIB))
    assert notes.exists()
    again = folder / "tokenizer" / "tokenizer.json"
    clean_demo(folder)
    assert [path for path in folder.rglob("*") if path.is_file()] == [notes]
    assert not again.exists()


def test_a_file_that_was_changed_is_no_longer_the_demos(
    library: Path, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(finished, folder)
    (folder / "plan.toml").write_text("my own plan")
    with pytest.raises(UsageError, match=r"plan\.toml"):
        run(folder, settings_of(library))
    clean_demo(folder)
    assert (folder / "plan.toml").read_text() == "my own plan"


def test_a_link_in_the_place_of_an_output_is_not_followed(
    library: Path, finished: Path, tmp_path: Path
) -> None:
    folder, precious = tmp_path / "demo", tmp_path / "precious"
    shutil.copytree(finished, folder)
    precious.mkdir()
    (precious / "thesis.tex").touch()
    shutil.rmtree(folder / "tokens")
    (folder / "tokens").symlink_to(precious)
    with pytest.raises(UsageError, match="what the demo did not make"):
        run(folder, settings_of(library))
    clean_demo(folder)
    assert (precious / "thesis.tex").exists()


def test_a_record_names_no_file_outside_of_the_folder(
    library: Path, finished: Path, tmp_path: Path
) -> None:
    """Not by its name, and not through a link to a copy, in which every name and size is right."""
    folder, copy = tmp_path / "demo", tmp_path / "copy"
    shutil.copytree(finished, folder)
    (tmp_path / "thesis.tex").write_text("words")
    shutil.copytree(folder / "tokens", copy)
    shutil.rmtree(folder / "tokens")
    (folder / "tokens").symlink_to(copy)
    path = folder / "lowtide-demo.json"
    whole = path.read_text()
    for name in ("../thesis.tex", "a/../../thesis.tex", str(tmp_path / "thesis.tex")):
        record = json.loads(whole)
        record["stages"]["corpus"]["made"][name] = 5
        path.write_text(json.dumps(record))
        with pytest.raises(UsageError):
            clean_demo(folder)
    path.write_text(whole)
    kept = sorted(one.name for one in copy.iterdir())
    clean_demo(folder)
    assert (tmp_path / "thesis.tex").exists()
    assert sorted(one.name for one in copy.iterdir()) == kept


def test_notes_beside_a_stage_that_was_stopped_stay(library: Path, tmp_path: Path) -> None:
    folder, settings = tmp_path / "demo", settings_of(library)

    def stop_in_tokenizing() -> str | None:
        return "terminated" if (folder / "tokens").exists() else None

    with pytest.raises(StoppedError):
        run(folder, settings, should_stop=stop_in_tokenizing)
    notes = folder / "tokens" / "my notes.txt"
    notes.parent.mkdir(exist_ok=True)
    notes.write_text("mine")
    clean_demo(folder)
    assert [one for one in folder.rglob("*") if one.is_file()] == [notes]


@pytest.mark.slow
def test_a_demo_that_was_killed_as_it_began_begins_again(library: Path, tmp_path: Path) -> None:
    (tmp_path / ".lowtide").mkdir()
    for name in ("lock", "command"):
        (tmp_path / ".lowtide" / name).touch()
    assert run(tmp_path, settings_of(library)).stages


def test_settings_in_its_folder_do_not_change_it(
    library: Path, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(finished, folder)
    (folder / "lowtide.toml").write_text('[tokenize]\nformat = "llmc"\n')
    done = run(folder, settings_of(library, memory_bytes=300 * MIB))
    assert len(done.stages) == 6
    assert list((folder / "tokens").glob("*.npy"))


@pytest.mark.parametrize("content", ["{", "{}", '{"a": 1}', '{"stages": {}}', "[]"])
def test_a_record_that_is_none_of_ours_lets_nothing_be_removed(
    library: Path, tmp_path: Path, content: str
) -> None:
    (tmp_path / "lowtide-demo.json").write_text(content)
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "precious").touch()
    for attempt in (lambda: run(tmp_path, settings_of(library)), lambda: clean_demo(tmp_path)):
        with pytest.raises(UsageError, match="cannot be read as the record of a demo"):
            attempt()
    assert (tmp_path / "tokens" / "precious").exists()
    assert (tmp_path / "lowtide-demo.json").read_text() == content


def test_what_came_into_the_folder_meanwhile_is_not_removed(
    library: Path, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "demo")
    (tmp_path / "demo" / "model").mkdir()
    (tmp_path / "demo" / "model" / "precious").touch()
    with pytest.raises(UsageError, match="what the demo did not make"):
        run(tmp_path / "demo", settings_of(library, with_torch=True))
    clean_demo(tmp_path / "demo")
    assert (tmp_path / "demo" / "model" / "precious").exists()


def test_work_of_another_command_is_left_alone(library: Path, tmp_path: Path) -> None:
    (tmp_path / ".lowtide").mkdir()
    (tmp_path / ".lowtide" / "lock").touch()
    (tmp_path / ".lowtide" / "job.json").write_text("{}")
    with pytest.raises(UsageError, match=r"\.lowtide"):
        run(tmp_path, settings_of(library))


@pytest.mark.slow
def test_the_least_budget_is_enough(library: Path, tmp_path: Path) -> None:
    settings = settings_of(library, memory_bytes=LEAST_BYTES, compares=True)
    done = {one.stage.key: one for one in run(tmp_path / "demo", settings).stages}
    ours = stage_lines(done["compare"])[-1]
    assert "lowtide tokenize: finished" in ours


def test_peaks_of_text_and_of_training_are_told_apart(library: Path, tmp_path: Path) -> None:
    settings = settings_of(library, memory_bytes=TRAINING_BYTES, with_torch=True)
    stages = list_stages(settings)
    done = [
        StageDone(
            stage=stage,
            record=StageRecord(command=(), peak_private_bytes=(number + 1) * MIB, facts={}),
            before=True,
        )
        for number, stage in enumerate(stages)
    ]
    demo = Demo(folder=tmp_path, settings=settings, stages=tuple(done), seconds=1.0)
    told = dict(closing_rows(demo))["done"]
    assert "text 3.0 MiB of 640.0 MiB, training 6.0 MiB of 640.0 MiB" in told


def test_the_command_refuses_and_cleans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = call(capsys, "demo", "--clean", "--out", str(tmp_path))
    assert refused.code == 2
    assert "holds no demo" in refused.err
