"""The Python calls: settings by name, progress where somebody looks on, short reprs, what the commands do."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

import lowtide
from lowtide.errors import UsageError
from lowtide.events import Advanced, Event, Processed, Stepped
from tests.commands import bytes_of
from tests.commands import lowtide as command

ROWS = '{"code": "one tide"}\n{"code": "two tides"}\n' * 20


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(ROWS)
    return path


def test_settings_by_name_are_those_of_the_class(rows: Path, tmp_path: Path) -> None:
    settings = lowtide.TokenizeSettings(column="code", format="nanogpt", val=0.2)
    lowtide.tokenize(rows, tmp_path / "class", settings)
    lowtide.tokenize(rows, tmp_path / "named", column="code", format="nanogpt", val=0.2)
    begun = lowtide.TokenizeSettings(column="code", val=0.2)
    lowtide.tokenize(rows, tmp_path / "both", begun, format="nanogpt")
    assert bytes_of(tmp_path / "named") == bytes_of(tmp_path / "class")
    assert bytes_of(tmp_path / "both") == bytes_of(tmp_path / "class")


def test_a_vocabulary_by_keywords(rows: Path, tmp_path: Path) -> None:
    made = lowtide.train_tokenizer(
        rows, tmp_path / "own", column="code", vocab_size=260, special_token="<|end|>"
    )
    assert made.manifest.settings.vocab_size == (260,)
    assert made.manifest.settings.special_token == ("<|end|>",)


@pytest.mark.parametrize(
    ("wrong", "meant"), [({"colum": "code"}, "column"), ({"template_text": "x"}, "template")]
)
def test_a_keyword_that_is_not_a_setting_is_refused(
    rows: Path, tmp_path: Path, wrong: dict[str, str], meant: str
) -> None:
    with pytest.raises(UsageError) as refused:
        lowtide.tokenize(rows, tmp_path / "out", **wrong)
    assert next(iter(wrong)) in refused.value.problem
    assert meant in refused.value.remedy
    assert not (tmp_path / "out").exists()


def test_a_value_that_is_no_choice_names_its_setting(rows: Path, tmp_path: Path) -> None:
    for chosen in ({"format": "npz"}, {"bad_text": "ignore"}):
        with pytest.raises(UsageError):
            lowtide.tokenize(rows, tmp_path / "out", column="code", **chosen)


def test_progress_is_shown_only_where_somebody_looks_on(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lowtide.tokenize(rows, tmp_path / "silent", column="code")
    assert capsys.readouterr().err == ""
    lowtide.tokenize(rows, tmp_path / "shown", column="code", progress=True)
    assert "budget" in capsys.readouterr().err
    heard: list[Event] = []
    lowtide.tokenize(rows, tmp_path / "heard", column="code", progress=True, listen=heard.append)
    assert heard
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "texts",
    [["The tide comes in.", "It goes out."], ("x" * 5000,), ["nul \x00", "\ud800"]],
    ids=["short", "long", "strange"],
)
def test_a_list_of_texts_is_refused_with_the_way_to_pass_them(
    tmp_path: Path, texts: list[str]
) -> None:
    for call in (lowtide.tokenize, lowtide.train_tokenizer):
        with pytest.raises(UsageError) as refused:
            call(texts, tmp_path / "out")
        assert "`iter(texts)`" in refused.value.remedy
    made = lowtide.tokenize(iter(texts), tmp_path / "out", bad_text="replace")
    assert made.manifest.documents == len(texts)


class ZMQInteractiveShell:
    """What `get_ipython` of a notebook gives."""


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A Jupyter notebook, as far as rich asks for one; gets what is displayed."""
    shown: list[object] = []

    class Output:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...
        def clear_output(self, *, wait: bool) -> None: ...
        def close(self) -> None:
            shown.append("closed")

    names = {
        "IPython": {},
        "IPython.display": {"display": shown.append},
        "ipywidgets": {"Output": Output},
    }
    for name, attributes in names.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    return shown


def test_a_bar_moves_in_a_notebook(
    rows: Path, tmp_path: Path, notebook: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    lowtide.tokenize(rows, tmp_path / "silent", column="code", progress=False)
    assert notebook == []
    lowtide.tokenize(rows, tmp_path / "shown", column="code")
    assert any(type(one).__name__ == "Output" for one in notebook)
    assert any("budget" in getattr(one, "text", "") for one in notebook)
    assert "closed" in notebook
    assert capsys.readouterr() == ("", "")


def test_without_widgets_a_notebook_gets_lines(
    rows: Path,
    tmp_path: Path,
    notebook: list[object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    lowtide.tokenize(rows, tmp_path / "shown", column="code")
    assert notebook == []
    assert "budget" in capsys.readouterr().err


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    texts = (f"line {number} of the corpus" * 20 for number in range(300))
    return lowtide.tokenize(texts, tmp_path / "tokens", val=0.1).folder


def test_verify_and_export_tell_how_far_they_are(tokens: Path, tmp_path: Path) -> None:
    heard: list[Event] = []
    lowtide.verify(tokens, listen=heard.append)
    last = heard[-1]
    assert isinstance(last, Processed)
    assert (last.done, last.unit) == (last.total, "bytes")
    lowtide.export(tokens, tmp_path / "x", "llmc", listen=heard.append)
    last = heard[-1]
    assert isinstance(last, Advanced)
    assert last.done_bytes == last.total_bytes > 0


def make_everything(tokens: Path, tmp_path: Path) -> dict[str, object]:
    """A result or a dataset of every kind but those of training and `compare`."""
    timeline = tmp_path / "timeline.jsonl"
    watched = [sys.executable, "-c", ""]
    made = lowtide.train_tokenizer(iter(["a tide", "two tides"]), tmp_path / "own", vocab_size=260)
    train = lowtide.TokenDataset(tokens, context=16)
    return {
        "TokenizeResult": lowtide.tokenize(iter(["a"]), tmp_path / "out"),
        "DatasetManifest": lowtide.export(tokens, tmp_path / "npy", "npy"),
        "TokenizerResult": made,
        "TokenizerManifest": made.manifest,
        "Tokenizer": lowtide.Tokenizer.load(tmp_path / "own"),
        "TokenDataset": train,
        "Mixture": lowtide.Mixture({"a": (train, 0.7)}),
        "Dataset": lowtide.open_dataset(tokens),
        "TokenSplit": lowtide.open_dataset(tokens).splits["train"],
        "Inspection": lowtide.inspect(tokens),
        "Proof": lowtide.verify(tokens),
        "Plan": lowtide.make_plan(tokens, model="gpt2-pico", tokens=10_000, context=16),
        "WatchResult": lowtide.watch(watched, timeline=timeline, alerts=tmp_path / "alerts"),
        "Verdict": lowtide.why(timeline),
        "WrittenPage": lowtide.report(tokens),
    }


def test_what_the_calls_give_is_shown_in_one_line(tokens: Path, tmp_path: Path) -> None:
    for name, one in make_everything(tokens, tmp_path).items():
        shown = repr(one)
        assert shown.startswith((f"<{name} ", f"{name}(")), shown
        assert "\n" not in shown
        assert len(shown.replace(str(tmp_path), "")) < 140, shown


def test_training_shows_progress_and_its_result_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from tests.training.small_runs import make_settings, make_tokens

    settings = make_settings(make_tokens(tmp_path / "tokens"), steps=2)
    capsys.readouterr()
    trained = lowtide.train(tmp_path / "run", settings)
    assert capsys.readouterr().err == ""
    assert repr(trained).startswith(f"<TrainResult {tmp_path / 'run'}: step 2, loss ")
    assert "already done" in repr(lowtide.train(tmp_path / "run", settings))
    heard: list[Event] = []
    lowtide.train(tmp_path / "heard", settings, listen=heard.append)
    assert any(isinstance(event, Stepped) for event in heard)
    lowtide.train(tmp_path / "shown", settings, progress=True)
    assert "step 2 of 2" in capsys.readouterr().err


def test_report_and_why_give_what_the_commands_print(tokens: Path, tmp_path: Path) -> None:
    page, told = lowtide.report(tokens), command("report", tokens, "--json").json
    assert str(page.path) == told["path"]
    assert page.page_bytes == told["page_bytes"]
    assert f"{page.outcome.word}: {page.outcome.sentence}" == told["verdict"]
    other = lowtide.report(str(tokens), tmp_path / "page.html")
    assert other.path == (tmp_path / "page.html").resolve()
    verdict, told = lowtide.why(tokens), command("why", tokens, "--json").json
    assert (verdict.cause, verdict.sentence) == (told["cause"], told["sentence"])
    with pytest.raises(UsageError):
        lowtide.why(tmp_path / "nowhere")


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_watched_command_ends_with_its_own_exit_code(tmp_path: Path, *, in_thread: bool) -> None:
    files = {"timeline": tmp_path / "timeline.jsonl", "alerts": tmp_path / "alerts"}
    found: list[int | None] = []

    def watch() -> None:
        line = f"'{sys.executable}' -c 'raise SystemExit(7)'"
        found.append(lowtide.watch(line, limit="1GiB", until="note", **files).end.exit_code)

    if in_thread:
        thread = threading.Thread(target=watch)
        thread.start()
        thread.join()
    else:
        watch()
    assert found == [7]
    assert lowtide.why(files["timeline"]).cause != "unknown"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: lowtide.watch(),
        lambda: lowtide.watch("sleep 1", pid=1),
        lambda: lowtide.watch("sleep 1", limit="much"),
        lambda: lowtide.watch("sleep 1", until="later"),
        lambda: lowtide.watch("sleep 1", every=0),
        lambda: lowtide.watch("sleep '1"),
        lambda: lowtide.report("nowhere"),
        lambda: lowtide.compare("nowhere", sample="much"),
        lambda: lowtide.compare("nowhere", programs=["another"]),
        lambda: lowtide.compare([]),
    ],
)
def test_calls_refuse_what_the_commands_refuse(wrong: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        wrong()


@pytest.mark.slow
def test_compare_gives_what_its_command_prints(tmp_path: Path) -> None:
    text, picture = tmp_path / "a.txt", tmp_path / "a.svg"
    text.write_text("".join(f"line {number} of the corpus\n" for number in range(20_000)))
    found = lowtide.compare(
        text, programs=["list"], sample="200kB", limit="512MiB", separator="line", out=picture
    )
    assert [one.whole.ending for one in found.results] == ["finished"]
    assert picture.read_text().startswith("<svg ")
    assert repr(found).startswith("<Comparison ")
