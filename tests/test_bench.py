"""The benches can be believed: equal is equal, other is other, and all that a way takes is counted.

No peer is needed: `peer_files.py` writes as the peers do.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from bench import corpus as corpora
from bench.environments import (
    ALONE,
    PEERS,
    REQUIREMENTS,
    SCRIPTS,
    TOLD,
    find_python,
    python_in,
    split_requirements,
)
from bench.loader import present
from bench.loader_ways import BASELINE as LOADER_BASELINE
from bench.loader_ways import Way as LoaderWay
from bench.loader_ways import gather
from bench.make_peers import make_environment
from bench.measuring import Measured, Runs, Way, compare, growth_row, is_wanted, row
from bench.same_tokens import READERS, Content, say_sameness, summarize
from bench.tokenize_ways import (
    PEER_WAYS,
    encode_plainly,
    is_wrong,
    make_parts,
    make_quarter,
    own_ways,
    say_tokens,
)
from bench.train_tokenizer import (
    OWN,
    Text,
    Training,
    compare_merges,
    print_comparison,
    read_merges,
    write_front,
)
from tests.peer_files import WRITERS, Documents, ids_of, write_llmc

DOCUMENTS: Documents = [[1, 2, 3], [40000], [7, 7]]


def content_of(documents: Documents) -> Content:
    return summarize(np.array(ids, dtype=np.uint16) for ids in documents)


def read_back(form: str, folder: Path, documents: Documents) -> Content:
    WRITERS[form](folder, documents)
    return summarize(READERS[form](folder))


def test_every_form_is_tested() -> None:
    assert set(WRITERS) == set(READERS)
    assert {way.reader for way in PEER_WAYS} <= set(READERS)


@pytest.mark.parametrize("form", sorted(WRITERS))
def test_the_same_documents_are_equal_in_every_form(form: str, tmp_path: Path) -> None:
    found = read_back(form, tmp_path, DOCUMENTS)
    assert (found.tokens, found.documents) == (6, 3)
    assert say_sameness(found, content_of(DOCUMENTS)) == "equal"


@pytest.mark.parametrize("form", sorted(WRITERS))
@pytest.mark.parametrize(
    "other",
    [
        [[1, 2, 3], [40000], [7, 8]],
        [[1, 2, 3], [40000, 7], [7]],
        [[1, 2, 3], [40000], [7, 7], [1]],
        [[1, 2, 3], [7, 7]],
        [[3, 2, 1], [40000], [7, 7]],
    ],
    ids=["an id", "a border", "one more", "one less", "order of ids"],
)
def test_other_documents_are_not_equal_in_any_form(
    form: str, other: Documents, tmp_path: Path
) -> None:
    assert say_sameness(read_back(form, tmp_path, other), content_of(DOCUMENTS)) != "equal"


def test_the_order_of_documents_does_not_matter_but_how_often_they_come_does() -> None:
    shuffled, doubled = [DOCUMENTS[2], *DOCUMENTS[:2]], [*DOCUMENTS, DOCUMENTS[0], DOCUMENTS[0]]
    assert say_sameness(content_of(shuffled), content_of(DOCUMENTS)) == "equal"
    assert say_sameness(content_of(doubled), content_of(DOCUMENTS)) == "differs (+6 tokens)"
    assert say_sameness(content_of([[1], [1], [2]]), content_of([[3], [3], [2]])) != "equal"


def test_a_row_of_ids_without_borders_is_equal_and_says_so() -> None:
    row_of_ids = [[number for document in DOCUMENTS for number in document]]
    assert say_sameness(content_of(row_of_ids), content_of(DOCUMENTS)) == "equal, borders lost"
    cut = content_of([row_of_ids[0][:-1]])
    assert say_sameness(cut, content_of(DOCUMENTS)) == "differs (-1 tokens)"
    other = content_of([[*row_of_ids[0][:-1], 8]])
    assert say_sameness(other, content_of(DOCUMENTS)) == "differs (+0 tokens)"


@pytest.mark.parametrize("form", ["datatrove", "megatron"])
def test_ids_behind_the_last_document_are_an_error(form: str, tmp_path: Path) -> None:
    WRITERS[form](tmp_path, DOCUMENTS)
    path = next(path for path in sorted(tmp_path.rglob("*")) if path.suffix in (".ds", ".bin"))
    path.write_bytes(path.read_bytes() + ids_of([5]))
    with pytest.raises(ValueError, match="behind the last document"):
        list(READERS[form](tmp_path))


def test_a_shard_of_llmc_with_another_count_is_an_error(tmp_path: Path) -> None:
    write_llmc(tmp_path, DOCUMENTS)
    path = tmp_path / "train_000001.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match="holds"):
        list(READERS["llmc"](tmp_path))


TEXTS = [f"document {number}\n" * (number + 5) for number in range(40)]


def test_a_corpus_is_the_same_documents_in_halves_and_its_front_in_a_quarter(
    tmp_path: Path,
) -> None:
    corpora.write(tmp_path / "whole", TEXTS, 1 << 30)
    assert list(corpora.read(tmp_path / "whole")) == TEXTS
    make_parts(tmp_path / "whole", tmp_path / "parts")
    names = [f"part{number}.{kind}" for number in (0, 1) for kind in ("jsonl", "parquet")]
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == sorted(names)
    lines = [(tmp_path / f"parts/part{n}.jsonl").read_text().splitlines() for n in (0, 1)]
    assert [[json.loads(line)["text"] for line in part] for part in lines] == [
        TEXTS[::2],
        TEXTS[1::2],
    ]
    quarter = list(corpora.read(make_quarter(tmp_path / "whole", tmp_path / "quarter")))
    assert quarter == TEXTS[: len(quarter)]
    assert 0.2 < sum(map(len, quarter)) / sum(map(len, TEXTS)) < 0.3


@pytest.mark.parametrize("kind", ["text", "JSONL", "parquet"])
def test_what_lowtide_makes_of_a_corpus_is_what_tiktoken_makes_of_it(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    corpora.write(tmp_path / "corpus", TEXTS, 1 << 30)
    wanted = encode_plainly(tmp_path / "corpus")
    assert wanted.documents == len(TEXTS)
    ways = [way for way in own_ways(tmp_path / "corpus", "256MiB") if way.name.endswith(kind)]
    (runs,) = compare(ways, 1, lambda way, folder: say_tokens(way, folder, wanted))
    assert (runs.failure, runs.said) == ("", "equal")


LONG: Documents = [[*range(1000)], [40000] * 1000, [7] * 1000]
"""Of 3,000 tokens, three are as many as a known reason may explain."""


def said_of(name: str, folder: Path, documents: Documents) -> str:
    form = next(way.reader for way in PEER_WAYS if way.name == name)
    folder.mkdir()
    WRITERS[form](folder, documents)
    return say_tokens(way_of("", name), folder, content_of(LONG))


def is_wrong_of(said: str) -> bool:
    return is_wrong(Runs(way=way_of("", "dolma tokens"), said=said))


def test_a_difference_is_wrong_unless_its_reason_is_known(tmp_path: Path) -> None:
    off = [LONG[0][:-3], *LONG[1:]]
    said = said_of("dolma tokens", tmp_path / "dolma", off)
    assert said == "differs (-3 tokens): strips blanks around every text"
    assert not is_wrong_of(said)
    said = said_of("nanoGPT's prepare.py way", tmp_path / "nanogpt", off)
    assert said == "differs (-3 tokens)"
    assert is_wrong_of(said)
    assert not is_wrong_of(said_of("nanoGPT's prepare.py way", tmp_path / "same", LONG))


@pytest.mark.parametrize(
    "other",
    [
        [LONG[0][:-4], *LONG[1:]],
        [[*LONG[0], 1, 2, 3, 4], *LONG[1:]],
        [[*LONG[0], *LONG[1]], LONG[2]],
        [LONG[0], LONG[1][:1], LONG[1][1:], LONG[2][:-1]],
    ],
    ids=["too few tokens", "too many", "a document less", "a document more"],
)
def test_a_known_reason_excuses_few_tokens_and_no_document(
    other: Documents, tmp_path: Path
) -> None:
    other[-1] = [8, *other[-1][1:]]  # the ids in a row are others, too
    said = said_of("dolma tokens", tmp_path / "dolma", other)
    assert said.endswith("tokens), more than is known of it")
    assert is_wrong_of(said)


def test_where_borders_are_lost_documents_are_not_counted(tmp_path: Path) -> None:
    row_of_ids = [number for document in LONG for number in document]
    said = said_of("gigatoken, 8 MiB blocks", tmp_path / "few", [[*row_of_ids, 1, 2]])
    assert said == "differs (+2 tokens): cuts documents at block borders"
    assert not is_wrong_of(said)
    assert is_wrong_of(said_of("gigatoken, 8 MiB blocks", tmp_path / "many", [row_of_ids[:-4]]))


def test_a_failure_of_our_own_is_wrong_and_a_failure_of_a_peer_is_told(tmp_path: Path) -> None:
    assert is_wrong(Runs(way=way_of("", "lowtide, text"), failure="failed", said="equal"))
    assert not is_wrong(Runs(way=way_of("", "lowtide, text"), said="equal"))
    assert not is_wrong(Runs(way=way_of("", "dolma tokens"), failure="failed"))


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "code"), [("256MiB", 0), ("1MiB", 1)])
def test_the_script_fails_when_lowtide_does(memory: str, code: int, tmp_path: Path) -> None:
    corpora.write(tmp_path / "corpus", TEXTS, 1 << 30)
    script = [sys.executable, SCRIPTS.parent / "tokenize.py", tmp_path / "corpus"]
    options = ["--memory", memory, "--rounds", "1", "--only", "text", "--no-growth"]
    done = subprocess.run([*script, *options], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("| equal |" in done.stdout) == (code == 0)


# Measuring


def way_of(code: str, name: str = "a way") -> Way:
    return Way(
        name=name,
        text_bytes=3_000_000,
        command=lambda out: [sys.executable, "-c", code, str(out)],
    )


def adopts_orphans() -> bool:
    found = ctypes.c_int(-1)
    get_child_subreaper = 37
    ctypes.CDLL(None).prctl(get_child_subreaper, ctypes.byref(found), 0, 0, 0)
    return found.value == 1


@pytest.mark.skipif(sys.platform != "linux", reason="orphans can be adopted on Linux alone")
def test_a_run_counts_children_that_nobody_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    busy = "import time\nwhile time.process_time() < 0.4: pass"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {busy!r}])"
    (runs,) = compare([way_of(code)], 1)
    assert runs.failure == ""
    assert runs.cpu_seconds > 0.4
    assert adopts_orphans() is False  # other tests in this process have orphans of their own


def test_a_run_counts_the_memory_of_children(capfd: pytest.CaptureFixture[str]) -> None:
    hold = "import time; held = b'x' * (64 << 20); time.sleep(2)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    (runs,) = compare([way_of(code)], 1)
    assert runs.peak_private_bytes > 64 << 20


def test_what_was_written_is_looked_at_once_and_a_failure_ends_the_runs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    looked = []

    def look(way: Way, folder: Path) -> str:
        looked.append((way.name, (folder / "out").read_text()))
        return "seen"

    good = way_of("import sys, pathlib; pathlib.Path(sys.argv[1], 'out').write_text('x')", "good")
    bad = way_of("raise SystemExit('no such thing')", "bad")
    fine, failed = compare([good, bad], 2, look)
    assert (looked, fine.said, len(fine.measured)) == ([("good", "x")], "seen", 2)
    assert (failed.failure, failed.measured) == ("failed with exit code 1", [])
    assert "no such thing" in capfd.readouterr().err


def test_a_way_that_takes_more_than_the_machine_has_is_ended(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.measuring.most_bytes", lambda: 40 << 20)
    hold = "import time; held = b'x' * (64 << 20); time.sleep(30)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    started = time.monotonic()
    (runs,) = compare([way_of(code)], 2)
    assert runs.failure.startswith("ended at ")
    assert runs.measured == []
    assert time.monotonic() - started < 28  # the job would take 30


INTERRUPTED = """
import pathlib, signal, sys
from bench.measuring import Way, compare
signal.signal(signal.SIGINT, signal.default_int_handler)
command = lambda out: [sys.executable, "-c", sys.argv[1], str(out)]
compare([Way(name="a way", text_bytes=1, command=command)], 1)
"""
WRITING = """
import pathlib, sys, time
while True:
    pathlib.Path(sys.argv[1], str(time.monotonic_ns())).touch()
"""


@pytest.mark.skipif(os.name != "posix", reason="process groups are of POSIX")
def test_an_interrupted_run_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    places, told = tmp_path / "temporary", tmp_path / "told"
    places.mkdir()
    code = (
        "import os, pathlib, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {WRITING!r}, sys.argv[1]])\n"
        f"pathlib.Path({str(told)!r}).write_text(f'{{os.getpid()}} {{child.pid}} .')\n"
        "child.wait()\n"
    )
    bench = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, code],
        cwd=SCRIPTS.parent.parent,
        env={**os.environ, "TMPDIR": str(places)},
        stderr=subprocess.PIPE,
    )
    while not (told.exists() and told.read_text().endswith(".")):
        assert bench.poll() is None
        time.sleep(0.02)
    pids = [int(pid) for pid in told.read_text().split()[:2]]
    bench.send_signal(signal.SIGINT)
    _, said = bench.communicate(timeout=300)
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    for process in left:
        process.kill()
    assert left == []
    assert said.decode().rstrip().endswith("KeyboardInterrupt")
    assert list(places.iterdir()) == []


def runs_of(*figures: tuple[float, float, int]) -> Runs:
    found = [
        Measured(cpu_seconds=cpu, wall_seconds=wall, peak_private_bytes=peak)
        for cpu, wall, peak in figures
    ]
    return Runs(way=way_of("", "a way"), measured=found)


def test_a_row_has_medians_ranges_and_ratios_above_one_for_the_better() -> None:
    runs = runs_of((1.0, 2.0, 5 << 20), (3.0, 4.0, 7 << 20), (2.0, 2.5, 6 << 20))
    baseline = runs_of((4.0, 10.0, 1))
    cells = "2.00 (1.00–3.00) | 2.50 (2.00–4.00) | 2 | 2.00 | 4.00 | 7.0 MiB"
    assert row(runs, baseline) == f"| a way | {cells} |"
    assert row(runs, None).count("|") == row(runs, baseline).count("|")


def test_a_row_of_a_failure_says_so_and_has_as_many_cells() -> None:
    failed = Runs(way=way_of(""), failure="ended at 18.0 GiB")
    whole = runs_of((1.0, 1.0, 1))
    assert "ended at 18.0 GiB" in row(failed, whole)
    assert row(failed, whole).count("|") == row(whole, whole).count("|")
    assert "ended at 18.0 GiB" in growth_row(failed, whole)
    assert growth_row(failed, whole).count("|") == growth_row(whole, whole).count("|")


def test_growth_is_the_whole_over_the_quarter() -> None:
    quarter, whole = runs_of((1.0, 1.0, 10 << 20)), runs_of((3.5, 1.0, 15 << 20))
    assert growth_row(quarter, whole) == (
        "| a way | 1.00 | 3.50 | 3.50 | 10.0 MiB | 15.0 MiB | 1.50 |"
    )


def test_ways_are_chosen_by_parts_of_their_names() -> None:
    assert is_wanted("mosaicml-streaming MDSWriter", "", "")
    assert is_wanted("lowtide, text", "dolma,text", "")
    assert not is_wanted("lowtide, text", "dolma", "")
    assert not is_wanted("lowtide, text", "", "dolma,text")


# Trained tokenizers


def test_merges_are_read_from_every_trainers_files(tmp_path: Path) -> None:
    files = {
        "merges.hex": b"20 61\n2061 c3\n",
        "merges.txt": "#version: 0.2\nĠ a\nĠa Ã\n".encode(),
        "tokenizer/merges.txt": "#version: 0.2\nĠ a\nĠa Ã\n".encode(),
    }
    for number, (name, data) in enumerate(files.items()):
        path = tmp_path / str(number) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        assert read_merges(tmp_path / str(number)) == ["Ġ a", "Ġa Ã"]


def test_merges_must_be_equal_but_where_a_trainer_cannot() -> None:
    own = ["a b", "ab c"]
    assert compare_merges(own, own, "gigatoken") == (True, "2 of 2")
    assert compare_merges(own, ["a b", "b c"], "tokenizers") == (False, "1 of 2")
    assert compare_merges(own, own[:1], "tokenizers") == (False, "1 of 2")
    assert compare_merges(own, ["a", "ab", "bc"], "rustbpe")[1].startswith("1 of 2 tokens")
    assert compare_merges(own, [], "sentencepiece")[0]


def test_the_front_of_a_text_ends_with_a_document(tmp_path: Path) -> None:
    text, front = tmp_path / "text", tmp_path / "front"
    text.write_text("one<|endoftext|>two<|endoftext|>three<|endoftext|>")
    write_front(text, front, 40)
    assert front.read_text() == "one<|endoftext|>two<|endoftext|>"


def training_of(trainer: str, merges: list[str], failure: str = "") -> Training:
    text = Text(name="a text", path=Path("text.txt"), trainers=(OWN, "gigatoken"))
    runs = runs_of(*[] if failure else [(1.0, 1.0, 1)])
    runs.failure = failure
    return Training(text=text, trainer=trainer, runs=runs, merges=merges)


def test_merges_are_compared_with_lowtides_own(capsys: pytest.CaptureFixture[str]) -> None:
    peer, other = training_of("gigatoken", ["a b"]), training_of("tokenizers", ["a c"])
    assert print_comparison([peer, training_of(OWN, ["a b"])])
    assert "| a text | gigatoken | 1 of 1 |" in capsys.readouterr().out
    assert not print_comparison([other, peer, training_of(OWN, ["a b"])])
    assert "| a text | tokenizers | 0 of 1 |" in capsys.readouterr().out
    assert print_comparison([peer, other])
    assert capsys.readouterr().out == ""


def test_nothing_is_equal_to_a_failure_of_our_own(capsys: pytest.CaptureFixture[str]) -> None:
    peer = training_of("gigatoken", ["a b"])
    assert not print_comparison([training_of(OWN, [], "failed with exit code 1"), peer])
    assert "gigatoken" not in capsys.readouterr().out
    assert print_comparison([training_of(OWN, ["a b"]), training_of("tokenizers", [], "failed")])


# Loaders


def test_loaders_are_chosen_by_parts_of_their_names_and_the_baseline_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {LOADER_BASELINE: "", "numpy, uint16": "", "numpy, int64": "", "MDS": "streaming"}
    ways = [LoaderWay(name=name, open=gather, gives="", peer=peer) for name, peer in names.items()]

    def chosen(only: str, skip: str) -> list[str]:
        asked = argparse.Namespace(only=only, skip=skip, peers=None)
        return [way.name for way in present(ways, asked)]

    assert chosen("uint16,int64", "") == [LOADER_BASELINE, "numpy, uint16", "numpy, int64"]
    assert chosen("", "uint16,MDS") == [LOADER_BASELINE, "numpy, int64"]
    assert capsys.readouterr().out == ""
    assert chosen("MDS", "nanoGPT") == [LOADER_BASELINE]
    assert "left out: MDS (no environment:" in capsys.readouterr().out


# Environments


def test_a_peer_runs_in_its_environment_or_where_lowtide_brings_it(tmp_path: Path) -> None:
    python = python_in(tmp_path / "litdata")
    assert find_python(tmp_path, "litdata") is None
    python.parent.mkdir(parents=True)
    python.touch()
    assert find_python(tmp_path, "litdata") == python
    assert find_python(None, "litdata") is None
    assert find_python(tmp_path, "gigatoken") == Path(sys.executable)
    assert find_python(tmp_path, "") == Path(sys.executable)


def test_what_is_no_environment_is_not_removed(tmp_path: Path) -> None:
    kept = tmp_path / "dolma" / "thesis.txt"
    kept.parent.mkdir()
    kept.write_text("years of work")
    with pytest.raises(SystemExit, match="dolma exists and is not a virtual environment"):
        make_environment(tmp_path, "dolma")
    assert kept.read_text() == "years of work"


def test_every_peer_has_a_requirements_file_and_every_script_a_peer() -> None:
    assert {way.peer for way in PEER_WAYS} <= set(PEERS)
    for way in PEER_WAYS:
        assert (SCRIPTS / way.script).exists()
    for trainer in ("gigatoken", "tokenizers", "rustbpe", "sentencepiece"):
        assert trainer in PEERS
        assert (SCRIPTS / f"train_{trainer}.py").exists()


@pytest.mark.parametrize("peer", PEERS)
def test_every_requirement_is_pinned_and_what_is_told_is_required(peer: str) -> None:
    text = (REQUIREMENTS / f"{peer}.txt").read_text()
    front, alone = split_requirements(text)
    assert front
    for line in front + alone:
        assert re.fullmatch(r"[\w.-]+==\d[\w.]*", line), line
    told = text.partition(TOLD)[2].partition("\n")[0].split()
    assert told
    assert set(told) <= {line.partition("==")[0] for line in front + alone}


def test_lines_behind_the_mark_are_installed_alone() -> None:
    text = f"# why\na==1\n{ALONE}: it asks for much\nb==2\n"
    assert split_requirements(text) == (["a==1"], ["b==2"])
    assert split_requirements("a==1\n") == (["a==1"], [])
