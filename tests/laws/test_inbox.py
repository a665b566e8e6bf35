"""Every file of an inbox is trained on exactly once, in its order, whatever happens on the way.

A small version of the campaign in `bench/inbox_killed.py`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from lowtide.errors import StoppedError, UsageError
from lowtide.events import Evaluated, Event, Listener, Note, Stepped
from lowtide.shards.manifest import read_manifest
from lowtide.stages.tokenize import tokenize
from lowtide.training.checkpoint import find_checkpoints
from tests.commands import call
from tests.stages.inboxes import Scene, entries, make_scene, stages, work_left, write_chats
from tests.training.small_runs import Command, hidden_in, tensors_of, told_of

KILLS = 5


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return make_scene(tmp_path)


def fill(scene: Scene, count: int = 6) -> list[str]:
    names = [f"batch-{number:02}.jsonl" for number in range(count)]
    for number, name in enumerate(names):
        scene.put(name, 16 + 4 * number, seed=number)
    return names


def wait_until(reached: Callable[[], bool], command: Command) -> bool:
    """Whether it came so far before it ended."""
    while not reached():
        if not command.process.is_alive():
            return False
        time.sleep(0.002)
    return True


def last_event(run: Path) -> tuple[str, int]:
    """The last line of the ledger, and how many there are."""
    path = run / "inbox.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return (json.loads(lines[-1])["event"] if lines else "", len(lines))


@pytest.mark.slow
def test_kills_at_any_moment_and_every_file_once(scene: Scene, tmp_path: Path) -> None:
    names = fill(scene)
    scene.train(tmp_path / "undisturbed")
    wanted = tensors_of(tmp_path / "undisturbed"), told_of(tmp_path / "undisturbed")
    source, run = random.Random(3), scene.run
    for kind in ("tokenizing", "training", "checkpoint", "done", "tokenizing")[:KILLS]:
        command = Command(tmp_path / "said", *scene.arguments())
        before = last_event(run)[1]
        newest = find_checkpoints(run)[-1:]

        def reached(kind: str = kind, before: int = before, newest: list[Path] = newest) -> bool:
            event, lines = last_event(run)
            if kind == "tokenizing":
                return lines > before and event == "taken"
            if kind == "checkpoint":
                return find_checkpoints(run)[-1:] != newest
            return lines > before and event == {"training": "ready", "done": "done"}[kind]

        assert wait_until(reached, command), command.end().err
        time.sleep(source.uniform(0, 0.3) if kind in ("tokenizing", "training") else 0)
        children = psutil.Process(command.process.pid).children()
        command.send(signal.SIGKILL)
        assert command.end().code == -signal.SIGKILL
        assert psutil.wait_procs(children, timeout=300)[1] == [], "who tokenizes goes with its run"
    ended = Command(tmp_path / "said", *scene.arguments(None, "--json")).end()
    assert ended.code == 0, ended.err
    assert ended.json["done"] == len(names)
    assert stages(run) == [(name, "done") for name in names]
    assert (tensors_of(run), told_of(run)) == wanted
    assert hidden_in(run) == work_left(run) == []


def test_steps_follow_one_another_and_the_last_batch_of_a_file_is_short(scene: Scene) -> None:
    fill(scene, 3)
    result, heard = scene.train()
    taken = entries(scene.run)
    assert [one.first_step for one in taken] == [0, taken[0].steps, taken[0].steps + taken[1].steps]
    assert [one.steps for one in taken] == [-(-one.windows // 4) for one in taken]
    assert result.state.step == result.steps == taken[2].last_step == len(heard.losses)
    assert {
        one.learning_rate for one in heard.events if isinstance(one, Stepped) and one.step > 4
    } == {3e-3}
    assert (result.done, result.failed, result.waiting) == (3, (), 0)
    again, heard = scene.train()
    assert (again.steps, heard.losses) == (0, [])
    assert again.done == 3


def test_tokens_are_counted_over_files_as_they_were_trained_on(
    scene: Scene, tmp_path: Path
) -> None:
    """Resumed inside the second file as well as not."""
    for number, count in enumerate((19, 22)):
        scene.put(f"{number}.jsonl", count, seed=number)
    _, heard = scene.train(tmp_path / "whole")
    first, second = entries(tmp_path / "whole")
    assert first.windows % 4, "else no last step is short"
    told = {one.step: one.tokens for one in heard.events if isinstance(one, Stepped)}
    assert told[first.last_step] == first.windows * 96
    assert told[first.last_step + 1] == (first.windows + min(4, second.windows)) * 96
    assert told[second.last_step] == (first.windows + second.windows) * 96
    assert second.steps > 1, "else nothing is left for a second call"

    def listen(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == first.last_step + 1:
            (scene.run / ".stop").touch()

    with pytest.raises(StoppedError):
        scene.train(listen=listen)
    scene.train()
    assert told_of(scene.run) == told_of(tmp_path / "whole")


def test_what_cannot_be_read_is_told_and_blocks_nothing(scene: Scene) -> None:
    good = (
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    )
    scene.put("a.jsonl")
    scene.put_text("b-empty.jsonl", "")
    scene.put_text("c-broken.jsonl", good * 3 + '{"messages": [{"role"\n' + good * 3)
    scene.put_text("d-silent.jsonl", good + '{"messages": [{"role": "user", "content": "a"}]}\n')
    scene.put_text("e-stranger.jsonl", good.replace('"user"', '"oracle"'))
    scene.put_text("f-bytes.parquet", b"PAR1 and nothing else")
    scene.put("g.jsonl", seed=1)
    result, heard = scene.train()
    assert [name for name, stage in stages(scene.run) if stage == "done"] == ["a.jsonl", "g.jsonl"]
    assert [one.name[0] for one in result.failed] == list("bcdef")
    told = {one.name[0]: one.reason for one in result.failed}
    assert "no text at all" in told["b"] or "no example" in told["b"]
    assert "line 4" in told["c"]
    assert "line 2" in told["d"]
    assert "oracle" in told["e"]
    assert work_left(scene.run) == []
    warned = [one.text for one in heard.events if isinstance(one, Note) and one.level == "warning"]
    assert sum("has failed and is left out" in text for text in warned) == 5
    assert scene.train()[0].steps == 0, "they are not tried again"


def test_another_content_under_an_old_name_is_a_new_file(scene: Scene) -> None:
    scene.put("a.jsonl", seed=1)
    scene.train()
    scene.put("a.jsonl", seed=2)
    result, heard = scene.train()
    assert result.done == 2
    assert any("another content than before" in text for text in heard.notes)
    scene.put("a.jsonl", seed=1)  # what it was at first: known by its content
    os.utime(scene.inbox / "a.jsonl")
    assert scene.train()[0].steps == 0


def test_a_file_that_changes_while_it_is_read_is_taken_later_and_whole(scene: Scene) -> None:
    scene.put("a.jsonl", 20, seed=1)

    def listen(event: Event) -> None:
        if isinstance(event, Note) and "tokenizing a.jsonl" in event.text and not changed:
            changed.append(True)
            write_chats(scene.inbox / "a.jsonl", 50, seed=1)

    changed: list[bool] = []
    result, _ = scene.train(listen=listen)
    assert stages(scene.run) == [("a.jsonl", "released"), ("a.jsonl", "done")]
    assert entries(scene.run)[1].examples == 50
    assert result.done == 1


def held_out(run: Path) -> int:
    return read_manifest(run / "held-out").splits["val"].documents


def test_a_file_that_is_gone_before_it_is_read_is_let_go(scene: Scene) -> None:
    scene.put("a.jsonl", seed=1)
    scene.put("b.jsonl", seed=2)

    def listen(event: Event) -> None:
        if isinstance(event, Note) and "tokenizing a.jsonl" in event.text:
            (scene.inbox / "a.jsonl").unlink()

    scene.train(listen=listen)
    assert stages(scene.run) == [("a.jsonl", "released"), ("b.jsonl", "done")]


def test_a_file_that_rests_is_taken_without_a_marker(scene: Scene) -> None:
    scene.configure(marker=".whole")
    scene.put("a.jsonl")  # has another marker
    result, _ = scene.train()
    assert (result.done, result.waiting) == (0, 1)
    text = (scene.inbox / "lowtide.toml").read_text().replace('marker = ".whole"\n', "")
    (scene.inbox / "lowtide.toml").write_text(text)
    began = time.monotonic()
    assert scene.train()[0].done == 1
    assert time.monotonic() - began > 2


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, None], ids=["a step", "waiting"])
def test_a_stop_file_ends_it_and_the_same_call_goes_on(
    scene: Scene, tmp_path: Path, step: int | None
) -> None:
    fill(scene, 2)
    scene.train(tmp_path / "undisturbed")

    def listen(event: Event) -> None:
        reached = isinstance(event, Stepped) and event.step == step
        if reached or (isinstance(event, Note) and "waiting for files" in event.text):
            (scene.run / ".stop").touch()

    with pytest.raises(StoppedError, match=r"\.stop file"):
        scene.train(listen=listen, until_empty=False)
    assert not (scene.run / ".stop").exists()
    if step is not None:
        assert find_checkpoints(scene.run)[-1].name == "step-00000003"
    scene.train()
    assert tensors_of(scene.run) == tensors_of(tmp_path / "undisturbed")


def test_a_stop_at_the_last_step_of_a_file_is_heard(scene: Scene) -> None:
    fill(scene, 2)

    def listen(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == event.steps:
            (scene.run / ".stop").touch()

    with pytest.raises(StoppedError):
        scene.train(listen=listen)
    assert stages(scene.run) == [("batch-00.jsonl", "ready")]  # its evaluation was dropped
    with pytest.raises(StoppedError, match="1 files"):
        scene.train(listen=stop_when_evaluated(scene))
    assert stages(scene.run) == [("batch-00.jsonl", "done")]


def stop_when_evaluated(scene: Scene) -> Listener:
    def listen(event: Event) -> None:
        if isinstance(event, Evaluated):
            (scene.run / ".stop").touch()

    return listen


def learnt_outside_val(scene: Scene, name: str) -> int:
    """Of a file that `tokenize` alone was asked to read."""
    done = tokenize([scene.inbox / name], scene.folder / name, scene.prepare().tokenize)
    learnt = done.manifest.splits["train"].learnt
    assert learnt is not None
    assert done.manifest.splits["val"].tokens
    return learnt.tokens


def test_one_yardstick_for_the_whole_run(scene: Scene) -> None:
    scene.configure(val=0.2)
    for number in range(3):
        scene.put(f"{number}.jsonl", 60, seed=number)
    _, heard = scene.train()
    kept = {path.name: path.read_bytes() for path in (scene.run / "held-out").iterdir()}
    held = held_out(scene.run)
    assert 3 <= held <= 25
    assert [one.learnt_tokens for one in entries(scene.run)] == [
        learnt_outside_val(scene, one.name) for one in entries(scene.run)
    ], "held out, and never trained on"
    ends = {one.last_step for one in entries(scene.run)}
    assert ends <= {event.step for event in heard.events if isinstance(event, Evaluated)}
    assert any("windows are held out" in text for text in heard.notes)
    scene.put("3.jsonl", 60, seed=3)
    scene.train()
    assert {path.name: path.read_bytes() for path in (scene.run / "held-out").iterdir()} == kept


def test_other_settings_are_refused_and_listed(scene: Scene) -> None:
    scene.put("a.jsonl")
    scene.train()
    scene.configure(val=0.2, learn="all")
    with pytest.raises(
        UsageError, match=r"learn was 'assistant' and is 'all'; val was 0\.1 and is 0\.2"
    ):
        scene.train()
    result, _ = scene.train(restart=True)
    assert result.done == 1
    assert stages(scene.run) == [("a.jsonl", "done")], "the new run knows of no other"


def test_settings_may_change_before_the_first_checkpoint(scene: Scene) -> None:
    scene.put_text("a.jsonl", "")
    scene.train()
    assert stages(scene.run) == [("a.jsonl", "failed")]
    scene.configure(val=0.2)
    scene.put("b.jsonl")
    scene.train()
    assert stages(scene.run) == [("a.jsonl", "failed"), ("b.jsonl", "done")]
    assert entries(scene.run)[0].number == 1


@pytest.mark.slow
def test_files_come_again_when_their_checkpoint_is_removed(scene: Scene, tmp_path: Path) -> None:
    fill(scene, 4)
    scene.train()
    wanted = tensors_of(scene.run)
    shutil.rmtree(find_checkpoints(scene.run)[-1])
    _, heard = scene.train()
    assert any("they come again" in text for text in heard.notes)
    assert tensors_of(scene.run) == wanted
    assert [stage for _, stage in stages(scene.run)] == ["done"] * 4


def test_a_run_can_start_from_another_and_see_files_twice(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.put("a.jsonl")
    first, _ = scene.train()
    out = scene.folder / "second"
    place = ["--inbox", str(scene.inbox), "--out", str(out), "--device", "cpu"]
    more = ["--init", str(scene.run), "--epochs", "2", "--batch-tokens", str(4 * 96)]
    ended = call(capsys, "train", *place, *more, "--until-empty", "--json")
    assert ended.code == 0, ended.err
    assert entries(out)[0].windows == entries(scene.run)[0].windows
    assert ended.json["step"] == -(-2 * entries(scene.run)[0].windows // 4)
    losses = [float(str(one["loss"])) for one in told_of(out)]
    assert first.train_loss is not None
    assert losses[0] < 1.02 * first.train_loss, "it begins where the other has ended"
    again = call(capsys, "train", *place, "--until-empty", "--json")
    assert again.json["steps"] == 0, again.err


def test_documents_can_be_trained_on_too(tmp_path: Path) -> None:
    scene = make_scene(tmp_path, windows="contiguous", attention="window")
    scene.configure(examples="none", separator="line")
    scene.put_text("a.txt", "the tide is low\n" * 400)
    scene.put_text("b.jsonl", '{"text": "the sea was far out"}\n' * 300)
    result, _ = scene.train()
    assert (result.done, result.failed) == (2, ())


def test_the_command_tells_what_it_came_to_and_inspect_lists_files(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.put("a.jsonl")
    scene.put_text("b.jsonl", "")
    ended = call(capsys, *scene.arguments())
    assert ended.code == 0, ended.err
    assert "1 done, 1 failed, 0 not whole yet" in ended.out
    assert "b.jsonl: " in ended.out
    found = call(capsys, "inspect", scene.run, "--json").json
    assert found["counts"] == {"done": 1, "failed": 1}
    assert "1 done, 1 failed" in call(capsys, "inspect", scene.run).out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{inbox}", "--inbox", "{inbox}"], "both"),
        ([], "nothing to train on"),
        (["--inbox", "{inbox}", "--steps", "3"], "no last step"),
        (["--inbox", "{inbox}", "--smoke"], "--smoke needs DATA"),
        (["--inbox", "{inbox}", "--tokenizer", "gpt2"], "for files of tokens"),
        (["--inbox", "{inbox}/gone"], "is not a folder"),
        (["{inbox}", "--until-empty"], "an end of its own"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    scene: Scene, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    named = [one.format(inbox=scene.inbox) for one in arguments]
    ended = call(capsys, "train", *named, "--out", scene.run, "--plan", scene.plan)
    assert ended.code == 2
    assert problem in ended.problem
    assert not scene.run.exists()


def test_a_tokenizer_that_the_model_does_not_know_is_refused(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.configure(tokenizer="gpt2")
    ended = call(capsys, *scene.arguments())
    assert ended.code == 2
    assert "gpt2 has 50257 tokens, and the model knows 562" in ended.problem


def test_several_ranks_are_refused(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    ended = call(capsys, *scene.arguments())
    assert ended.code == 2
    assert "one process alone" in ended.problem
