"""The demo on a small library: every command runs once, resumes, and `--clean` removes its files alone."""

from __future__ import annotations

import errno
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
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowtide.errors import (
    DoesNotFitError,
    InterruptedRun,
    LowtideError,
    StoppedError,
    StorageError,
    UsageError,
)
from lowtide.storage.publish import remove_path
from lowtide.tools.demo import run as demo_run
from lowtide.tools.demo.corpus import read_facts, write_corpus
from lowtide.tools.demo.run import LEAST_BYTES, MARK, Demo, StageDone, clean_demo, run_demo
from lowtide.tools.demo.stages import TRAINING_BYTES, DemoSettings, Stage, list_stages
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
    assert (facts["files"], facts["left_out"]) == (61, 1)
    assert facts["text_bytes"] == sum(len(row["text"].encode()) for row in rows)
    assert read_facts(tmp_path / "a.parquet") == facts
    write_corpus(tmp_path / "b.parquet", library)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_a_file_that_is_not_the_demos_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    path.write_text("no parquet")
    with pytest.raises(UsageError):
        read_facts(path)
    pq.write_table(pa.table({"text": ["mine"]}), path)
    with pytest.raises(UsageError):
        read_facts(path)


@pytest.mark.slow
def test_all_stages_run_with_torch_and_their_outputs_are_kept(
    library: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "demo"
    everything = settings_of(library, with_torch=True, compares=True)
    first = run(folder, everything)
    assert [one.stage.key for one in first.stages][-3:] == ["export", "compare", "report"]
    assert len(first.stages) == 10
    for one in first.stages:
        budget = one.stage.budget_bytes
        assert one.peak_private_bytes > 0
        assert budget is None or one.peak_private_bytes <= budget
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(folder / "for-transformers").num_parameters() > 1000
    assert "list" in (folder / "compare.html").read_text()
    assert (folder / "model" / "report.html").exists()
    told = dict(closing_rows(first))
    assert str(folder / "for-transformers") in told["model"]
    assert told["clean up"] == f"lowtide demo --out {folder} --clean"
    before = {path: path.stat().st_mtime_ns for path in folder.glob("[!.]*/*.*")}
    again = run(folder, everything)
    kept = [one for one in again.stages if one.already_done]
    assert [one.stage.key for one in kept] == ["corpus", "tokenizer", "tokenize", "train", "export"]
    assert all("(done before)" in stage_lines(one)[0] for one in kept)
    report = folder / "model" / "report.html"
    assert {path for path, then in before.items() if path.stat().st_mtime_ns != then} == {report}
    assert "peaks" not in dict(closing_rows(again))["done"]
    assert json.dumps(demo_record(again))
    clean_demo(folder)
    assert not folder.exists()


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
    before = {one.stage.key for one in later.stages if one.already_done}
    assert before == {"corpus", "tokenizer", "tokenize"}
    assert (tmp_path / "demo" / "model" / "report.html").exists()


def test_another_budget_keeps_what_is_done(library: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(finished, folder)
    before = digest(folder, "tok*/*.*")
    again = run(folder, settings_of(library, memory_bytes=300 * MIB))
    assert [one.stage.key for one in again.stages if one.already_done] == [
        "corpus",
        "tokenizer",
        "tokenize",
    ]
    assert digest(folder, "tok*/*.json") == digest(finished, "tok*/*.json")
    assert len(digest(folder, "tok*/*.*")) == len(before)


@pytest.mark.slow
def test_a_stop_ends_it_cleanly_and_it_goes_on(library: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder, settings = tmp_path / "demo", settings_of(library, with_torch=True, steps=20)
    log = folder / "model" / "log.jsonl"

    def stop_in_training() -> str | None:
        return "terminated" if log.exists() and b'"step"' in log.read_bytes() else None

    with pytest.raises(StoppedError, match="train a GPT"):
        run(folder, settings, should_stop=stop_in_training)
    assert not running_in(folder)
    done = {one.stage.key: one for one in run(folder, settings).stages}
    assert done["train"].resumed
    assert "resumed" in stage_lines(done["train"])[0]
    assert [one.stage.key for one in done.values() if one.already_done] == [
        "corpus",
        "tokenizer",
        "tokenize",
    ]
    assert done["train"].facts["step"] == 20


def running_in(folder: Path) -> list[int]:
    """Processes whose current folder it is."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(folder):
                found.append(process.pid)
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_killed_demo_takes_its_command_along_and_is_resumed(
    library: Path, tmp_path: Path
) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from lowtide.tools.demo.stages import DemoSettings\n"
        "from lowtide.tools.demo.run import run_demo\n"
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
    deadline = time.monotonic() + 60
    while running_in(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not running_in(folder)
    done = run(folder, settings_of(library))
    assert "corpus" in [one.stage.key for one in done.stages if one.already_done]
    assert done.stages[-1].facts["verdict"]


def test_a_command_that_does_not_listen_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    monkeypatch.setattr(Stage, "command", property(lambda _stage: [sys.executable, "-c", deaf]))
    monkeypatch.setattr(demo_run, "_STOP_SECONDS", 0.3)
    asked = iter([None] * 10 + ["interrupted"])
    with pytest.raises(InterruptedRun):
        run(tmp_path / "demo", settings_of(tmp_path), should_stop=lambda: next(asked))
    assert not running_in(tmp_path / "demo")


def test_a_stage_that_fails_says_why_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(LowtideError, match="no sources") as told:
        run(tmp_path / "demo", settings_of(tmp_path / "empty"))
    assert "lowtide tokenize TEXT" in told.value.remedy


def test_all_that_the_demo_made_is_removed(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(finished, folder)
    (folder / ".corpus.parquet.4711.tmp").write_bytes(b"of a killed write")
    (folder / "model" / "checkpoints").mkdir(parents=True)  # of training that was stopped early
    (folder / ".for-transformers.3f09a2c1-4711-93561.tmp").mkdir()
    (folder / ".for-transformers.3f09a2c1-4711-93561.tmp" / "model.safetensors").touch()
    assert folder / "tokens" in clean_demo(folder)
    assert not folder.exists()


def test_a_file_of_the_user_is_never_removed(library: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(finished, folder)
    names = ("mine.txt", "tokens/my notes.txt", "mine/train_000000.npy", "tokens/mine/lowtide.json")
    deep = ("model/checkpoints/mine.txt", "for-transformers/mine/tokens/lowtide.json")
    for name in (*names, *deep, "tokens/train_mine.npy", ".lowtide/mine"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("weeks of work")
    mine = sorted(path for path in folder.rglob("*") if path.is_file() and "mine" in str(path))
    notes = folder / "tokens" / "my notes.txt"
    clean_demo(folder)
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted([*mine, notes])
    with pytest.raises(UsageError):  # it is no demo any more
        clean_demo(folder)
    with pytest.raises(UsageError):
        run(folder, settings_of(library))


def test_what_cannot_be_meant_is_refused(library: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("a thesis")
    for name in ("file", "full"):
        with pytest.raises(UsageError):
            run(tmp_path / name, settings_of(library))
    with pytest.raises(DoesNotFitError):
        run(tmp_path / "demo", settings_of(library, memory_bytes=10 * MIB))
    assert not (tmp_path / "demo").exists()


def test_names_alone_do_not_make_a_demo(finished: Path, tmp_path: Path) -> None:
    """Whoever typed the commands by hand has the same files."""
    folder = tmp_path / "demo"
    shutil.copytree(finished, folder)
    (folder / MARK).unlink()
    before = sorted(folder.rglob("*"))
    with pytest.raises(UsageError):
        clean_demo(folder)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", ["tokens", "model", "plan.toml", ".lowtide", MARK])
def test_a_link_in_the_place_of_an_output_is_not_followed(
    library: Path, finished: Path, tmp_path: Path, name: str
) -> None:
    folder, precious = tmp_path / "demo", tmp_path / "precious"
    shutil.copytree(finished, folder)
    shutil.copytree(finished / "tokens", precious)
    (precious / "lock").touch()
    target = precious / "lowtide.json" if name in ("plan.toml", MARK) else precious
    remove_path(folder / name)
    (folder / name).symlink_to(target)
    before = {path: path.read_bytes() for path in precious.iterdir()}
    for attempt in (lambda: run(folder, settings_of(library)), lambda: clean_demo(folder)):
        with pytest.raises(UsageError):
            attempt()
    (folder / name).unlink()  # as the hint says
    (folder / MARK).touch()
    clean_demo(folder)
    assert {path: path.read_bytes() for path in precious.iterdir()} == before


def test_a_link_deeper_in_the_folder_is_not_followed(finished: Path, tmp_path: Path) -> None:
    folder, precious = tmp_path / "demo", tmp_path / "precious"
    shutil.copytree(finished, folder)
    precious.mkdir()
    (precious / "lowtide.json").write_text("of other tokens")
    (precious / "state.json").write_text("of another model")
    (folder / "tokens" / "lowtide.json").unlink()
    (folder / "tokens" / "lowtide.json").symlink_to(precious / "lowtide.json")
    (folder / "model" / "checkpoints").mkdir(parents=True)
    (folder / "model" / "checkpoints" / "step-00000001").symlink_to(precious)
    (folder / "model" / ".lowtide").symlink_to(precious)
    clean_demo(folder)
    assert sorted(path.name for path in precious.iterdir()) == ["lowtide.json", "state.json"]
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink()}
    assert left == {"tokens/lowtide.json", "model/checkpoints/step-00000001", "model/.lowtide"}


@pytest.mark.parametrize("name", ["corpus.log", "corpus.json"])
def test_a_link_in_the_place_of_a_log_is_not_written_through(
    library: Path, finished: Path, tmp_path: Path, name: str
) -> None:
    folder, precious = tmp_path / "demo", tmp_path / "precious"
    shutil.copytree(finished, folder)
    precious.write_text("weeks of work")
    (folder / ".lowtide" / name).unlink(missing_ok=True)
    (folder / ".lowtide" / name).symlink_to(precious)
    run(folder, settings_of(library))
    assert precious.read_text() == "weeks of work"


@pytest.mark.skipif(os.name != "posix", reason="no modes on Windows")
def test_a_cleaning_that_failed_can_be_repeated(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(finished, folder)
    real, count = Path.unlink, iter(range(100))

    def unlink(path: Path, **more: bool) -> None:
        if next(count) == 5:
            raise OSError(errno.EIO, "a failing disk")
        real(path, **more)

    with monkeypatch.context() as changed:
        changed.setattr(Path, "unlink", unlink)
        with pytest.raises(StorageError):
            clean_demo(folder)
    clean_demo(folder)
    assert not folder.exists()


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


def test_a_demo_that_was_killed_as_it_began_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_run, "list_stages", lambda _settings: [])
    (tmp_path / MARK).touch()
    assert run(tmp_path, settings_of(tmp_path)).stages == ()
    (tmp_path / ".lowtide" / "lock").unlink()
    assert run(tmp_path, settings_of(tmp_path)).stages == ()


def test_settings_in_its_folder_do_not_change_it(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / MARK).touch()
    (folder / "lowtide.toml").write_text('[tokenize]\nformat = "llmc"\n')
    done = run(folder, settings_of(library))
    assert len(done.stages) == 6
    assert list((folder / "tokens").glob("*.npy"))


def test_the_work_of_another_command_is_left_alone(library: Path, tmp_path: Path) -> None:
    (tmp_path / ".lowtide").mkdir()
    (tmp_path / ".lowtide" / "lock").touch()
    (tmp_path / ".lowtide" / "job.json").write_text("{}")
    with pytest.raises(UsageError):
        run(tmp_path, settings_of(library))
    assert sorted(path.name for path in (tmp_path / ".lowtide").iterdir()) == ["job.json", "lock"]


def test_after_a_change_of_its_text_the_advice_works(
    library: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(finished, folder)
    (folder / "package").mkdir()
    (folder / "package" / "other.py").write_text("other = 'text'\n")
    write_corpus(folder / "corpus.parquet", folder / "package")
    with pytest.raises(UsageError) as told:
        run(folder, settings_of(library))
    assert "`lowtide demo --clean`" in told.value.remedy
    assert call(capsys, "demo", "--clean", "--out", str(folder)).code == 0
    shutil.rmtree(folder)  # a package of the user's was in it
    assert run(folder, settings_of(library)).stages


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
            seconds=1.0,
            peak_private_bytes=(number + 1) * MIB,
            resumed=False,
            facts={},
        )
        for number, stage in enumerate(stages)
    ]
    demo = Demo(folder=tmp_path, settings=settings, stages=tuple(done), left_out=(), seconds=1.0)
    told = dict(closing_rows(demo))["done"]
    assert "text 3.0 MiB of 640.0 MiB, training 6.0 MiB of 640.0 MiB" in told


def test_the_command_refuses_and_cleans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = call(capsys, "demo", "--clean", "--out", str(tmp_path))
    assert refused.code == 2
    assert "holds no demo" in refused.err
