"""Every command of every guide runs, as it is written, on small files under the names that the guide uses.

A guide's blocks run in order, in one folder. What surrounds them is made by `tests/guide_stand_ins.py`. A
comment before a block says what is special about it, for readers of the page's source and for this test:

    <!-- not run: a download -->     it does not run here; only the reasons of `REASONS` count
    <!-- ends with 143 -->           its exit code, where that is not 0; `0 or 1` is up to the machine
    <!-- file: NAME -->              it is the content of a file, which later blocks use
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lowtide.journal import LOG_NAME
from lowtide.model.needs import StepKind, peak_of_run
from lowtide.model.shape import SHAPES
from lowtide.units import format_bytes
from tests import guide_stand_ins as stand_ins

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="guides are for a POSIX shell")

DOCS = Path(__file__).parent.parent / "docs"
FOLDER = DOCS / "guides"
SLURM = {"SLURM_JOB_ID": "4711", "SLURM_MEM_PER_NODE": "4096"}
REASONS = ("an install", "a download", "an install and a download")
_BLOCK = re.compile(r"(?:<!-- ([^>]*?) -->\n)?```(\w+)\n(.*?)```\n", re.DOTALL)
_FIGURE = re.compile(
    r"(?<![\w.-])\d+(?:[,.]\d+)*(?:e-?\d+)?(?: ?(?:[KMGT]iB|bytes|%|ms|hours?)|[kMBTsmh])?(?!\w)"
)
"""A number with its unit, but not the 2 of gpt2 or GPT-2."""
_LIMIT = re.compile(r"the cgroup \S+ \([\w.]+\)(?=: )")
"""What limits a machine's memory, where it is not what is available."""
_LONGEST_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a guide."""

    language: str
    text: str
    remark: str
    """What the comment before it says."""

    @property
    def is_left_out(self) -> bool:
        return self.remark.startswith("not run: ")

    @property
    def exit_codes(self) -> set[int]:
        found = re.fullmatch(r"ends with ([\d or]+)", self.remark)
        return {int(code) for code in found[1].split(" or ")} if found else {0}

    @property
    def file_name(self) -> str | None:
        return self.remark.removeprefix("file: ") if self.remark.startswith("file: ") else None


class Terminal:
    """A folder with the guide's files, in which its blocks run one after the other."""

    def __init__(self, root: Path) -> None:
        self.folder, self.commands = root / "here", root / "bin"
        self.folder.mkdir()
        stand_ins.write_commands(self.commands)
        self.said = ""
        self.said_last = ""
        """What the latest block said."""
        self._groups: list[int] = []

    def environment(self) -> dict[str, str]:
        """A home of its own, one thread, no GPU, and a grant of Slurm's."""
        home = self.folder.parent
        return {
            **os.environ,
            "PATH": f"{self.commands}:{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TQDM_DISABLE": "1",
            "COLUMNS": "100",
        }

    def start(self, command: list[str], **more: str) -> subprocess.Popen[bytes]:
        """Its output goes to a file, so that nothing waits for what it leaves in the background."""
        with (self.folder.parent / "said").open("ab") as said:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**self.environment(), **more},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._groups.append(process.pid)
        return process

    def finish(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit code; what it said is in `said` then."""
        code = process.wait(_LONGEST_SECONDS)
        self.said = (self.folder.parent / "said").read_text(errors="replace")
        return code

    def run(self, block: Block, text: str, **more: str) -> None:
        """As a person would type it; fails with what it said."""
        if block.file_name:
            (self.folder / block.file_name).write_text(text)
            return
        shell = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else ["python", "-c"]
        before = len(self.said)
        code = self.finish(self.start([*shell, text], **more))
        self.said_last = self.said[before:]
        assert code in block.exit_codes, f"{text}\nended with {code}:\n{self.said_last}"

    def close(self) -> None:
        """End what blocks have left in the background."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """What a page needs around it, and what must come of it."""

    prepare: Callable[[Path], None]
    least_run: int
    """Blocks that run at least: nobody may quietly leave them out."""
    leaves: tuple[str, ...]
    """Files that must be there in the end."""
    instead: dict[str, str] = field(default_factory=dict)
    """What is too large for a test, and what runs in its place. Each must occur."""
    check: Callable[[Terminal], None] = lambda terminal: None
    """What else must be true in the end."""
    first: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    """What a person would wait for, before the block that has this text."""
    begin_alike: tuple[str, ...] = ()
    """How those shown lines begin whose words depend on how much data there is."""


def _wait_for(found: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _LONGEST_SECONDS
    while not found():
        assert time.monotonic() < until, f"waited too long for {what}"
        time.sleep(0.05)


def _events(path: Path, event: str) -> list[dict[str, object]]:
    """The whole lines of a journal that tell of such an event."""
    if not path.exists():
        return []
    lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [record for record in map(json.loads, lines) if record["event"] == event]


def _both_files_are_done(folder: Path) -> None:
    _wait_for(lambda: len(_events(folder / "weeks/inbox.jsonl", "done")) == 2, "the inbox")


def _the_run_has_stopped(folder: Path) -> None:
    _wait_for(lambda: "stopped: after" in (folder / "weeks.log").read_text(), "the stop")
    _wait_for(lambda: bool(_events(folder / "weeks" / LOG_NAME, "end")), "its end")


def _learnt_every_file_once(terminal: Terminal) -> None:
    """The first run was stopped by the file `.stop`, the second found nothing left."""
    done = [record["number"] for record in _events(terminal.folder / "weeks/inbox.jsonl", "done")]
    assert done == [1, 2]
    ends = _events(terminal.folder / "weeks" / LOG_NAME, "end")
    assert [record["exit_code"] for record in ends] == [75, 0]


def _was_warned_saved_and_went_on(terminal: Terminal) -> None:
    """The cluster's stand-in has sent SIGTERM to the script after a step, and run it again when it asked."""
    assert (terminal.commands / "scontrol.txt").read_text() == "requeue 4711\n"
    log = terminal.folder / "run" / LOG_NAME
    stop, end = (int(str(record["step"])) for record in _events(log, "checkpoint"))
    assert 0 < stop < end
    assert [record["step"] for record in _events(log, "start")] == [0, stop]
    assert [record["step"] for record in _events(log, "step")] == list(range(1, end + 1))
    assert [record["exit_code"] for record in _events(log, "end")] == [75, 0]


GUIDES = {
    "fineweb-on-a-desktop": Guide(
        prepare=stand_ins.for_fineweb,
        least_run=4,
        leaves=("tokens/lowtide.json", "tokens/train_000000.npy"),
    ),
    "tokenizer-on-11gb": Guide(
        prepare=stand_ins.for_tokenizer,
        least_run=6,
        leaves=("mine/tokenizer.json", "three/8000/tokenizer.json", "tokens/lowtide.json"),
    ),
    "gpt2-on-a-12gb-card": Guide(
        prepare=stand_ins.write_tokens,
        least_run=7,
        leaves=("plan.toml", "run/report.html", "for-transformers/model.safetensors"),
        instead={  # 124 million parameters are too many for two cores; the rest is as written
            "--model gpt2 --write": "--model gpt2-nano --context 32 --batch-tokens 128 --tokens 384 --write"
        },
        begin_alike=("a step ",),
    ),
    "finetune-for-weeks": Guide(
        prepare=stand_ins.for_finetuning,
        least_run=9,
        leaves=("tuned/lowtide-run.json", "weeks/inbox.jsonl", "weeks/held-out"),
        check=_learnt_every_file_once,
        first={
            "lowtide inspect weeks": _both_files_are_done,
            "--until-empty": _the_run_has_stopped,
        },
    ),
    "use-the-shards": Guide(
        prepare=stand_ins.write_tokens,
        least_run=9,
        leaves=("for-nanogpt/train.bin", "for-llmc/train_000000.bin", "for-megatron/train.idx"),
    ),
    "slurm": Guide(
        prepare=stand_ins.for_slurm,
        least_run=2,
        leaves=("tokens/lowtide.json", "run/lowtide-run.json"),
        check=_was_warned_saved_and_went_on,
    ),
    "it-was-killed": Guide(
        prepare=stand_ins.for_killed,
        least_run=7,
        leaves=("leak.py", "compare.html"),
    ),
}


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    for root in stand_ins.a_place_of_its_own(tmp_path / "guide"):
        opened = Terminal(root)
        yield opened
        opened.close()


def blocks_of(name: str) -> list[Block]:
    page = (FOLDER / f"{name}.md").read_text()
    return [
        Block(language=language, text=text, remark=remark or "")
        for remark, language, text in _BLOCK.findall(page)
    ]


def replaced(text: str, instead: dict[str, str]) -> str:
    for written, run in instead.items():
        text = text.replace(written, run)
    return text


def without_figures(text: str) -> str:
    """What it says whatever the data and the machine: `17s` is #, as is `3m 09s`, and `1 file` is `# files`."""
    text = _FIGURE.sub("#", _LIMIT.sub("available memory", text))
    text = re.sub(r"#(?:\s+#)+", "#", text)
    return " ".join(re.sub(r"# (file|document|step|worker)\b", r"# \1s", text).split())


def assert_shown(text: str, said: str, *, begin_alike: tuple[str, ...] = ()) -> None:
    """Every line is in what was said, but for its figures; of `begin_alike`, up to its first figure."""
    heard = without_figures(said)
    for line in text.splitlines():
        wanted = without_figures(line)
        if wanted.startswith(begin_alike):
            wanted = wanted.partition("#")[0]
        assert re.search(r"[a-z]{3}", wanted), f"nothing of {line!r} can be compared"
        assert wanted in heard, f"{line!r} is shown, and this was said:\n{said}"


def test_every_guide_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == set(GUIDES)


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDES)
def test_the_commands_of_a_guide_run_and_say_what_it_shows(name: str, terminal: Terminal) -> None:
    guide, blocks = GUIDES[name], blocks_of(name)
    page = "".join(block.text for block in blocks)
    assert all(written in page for written in (*guide.instead, *guide.begin_alike))
    guide.prepare(terminal.folder)
    slurm = SLURM if name == "slurm" else {}
    run = 0
    for block in blocks:
        if block.language == "text":
            assert_shown(block.text, terminal.said_last, begin_alike=guide.begin_alike)
        elif block.language in ("bash", "python"):
            terminal.said_last = ""
            if block.is_left_out:
                continue
            for text, wait in guide.first.items():
                if text in block.text:
                    wait(terminal.folder)
            terminal.run(block, replaced(block.text, guide.instead), **slurm)
            run += block.file_name is None
    assert run >= guide.least_run
    assert [path for path in guide.leaves if not (terminal.folder / path).exists()] == []
    guide.check(terminal)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("time         17s (measured)", "time         3m 09s (measured)"),
        ("val          32.5k tokens, 10 documents, 1 file", "val 5 tokens, 1 document, 2 files"),
        ("disk 165.5 MiB, 9.6 GiB free", "disk 1.0 KiB, 20 bytes free"),
        ("(available memory: 22.1 GiB)", "(the cgroup /job (memory.max): 512.0 MiB)"),
        ("time 29 hours at 23.9k tokens/s", "time 0.0s at 5.1M tokens/s"),
    ],
)
def test_figures_may_differ_and_words_may_not(shown: str, said: str) -> None:
    assert_shown(shown, f"before it\n{said}\nafter it")
    word = max(re.findall(r"[a-z]+", shown), key=len)
    with pytest.raises(AssertionError, match="is shown"):
        assert_shown(shown.replace(word, "other"), said)
    with pytest.raises(AssertionError, match="can be compared"):
        assert_shown("  17s, 4.0 %", "17s, 4.0 %")


def test_a_job_that_always_stops_leaves_the_queue_in_the_end(terminal: Terminal) -> None:
    """Memory that is short once may be short for ever."""
    script = next(block for block in blocks_of("slurm") if block.file_name)
    terminal.run(script, script.text)
    (terminal.commands / "lowtide").write_text("#!/bin/sh\necho began\nexit 75\n")
    job = terminal.start(["sbatch", str(script.file_name), "tokenize", "data"], **SLURM)
    assert terminal.finish(job) == 75
    assert terminal.said.count("began") == 21
    assert (terminal.commands / "scontrol.txt").read_text() == "requeue 4711\n" * 20
    told = re.search(r'"(restarted .*)"', script.text)
    assert told
    assert terminal.said.endswith(f"{told[1]}\n")
    assert told[1] in (FOLDER / "slurm.md").read_text().partition("## When it goes wrong")[2]


@pytest.mark.parametrize("name", GUIDES)
def test_what_a_guide_leaves_out_has_a_reason(name: str) -> None:
    page = (FOLDER / f"{name}.md").read_text()
    for block in blocks_of(name):
        if block.is_left_out:
            assert block.remark.removeprefix("not run: ") in REASONS
        if re.search(r"\b(pip install|hf download)\b", block.text):
            assert block.is_left_out, block.text
    assert page.count("<!--") == sum(1 for block in blocks_of(name) if block.remark)
    assert page.count("```") == 2 * len(blocks_of(name)), "a block that this test does not see"


def anchors_of(page: Path) -> set[str]:
    """What GitHub makes of the page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page",
    [*sorted(FOLDER.glob("*.md")), DOCS / "README.md", DOCS / "concepts.md", DOCS / "python.md"],
    ids=lambda page: page.name,
)
def test_every_link_leads_to_a_page_and_to_its_heading(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", page.read_text()):
        found = (page.parent / target) if target else page
        assert found.exists(), target
        assert not anchor or anchor in anchors_of(found), f"{target}#{anchor}"


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text()
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\((?!\.\./)([^)#:\s]+\.md)\)", index))


def test_the_worked_example_of_the_formula_is_what_the_program_computes() -> None:
    page = (DOCS / "concepts.md").read_text()
    row = re.compile(r"^\| (fast|lean|leanest) \| (.*) \|$", re.MULTILINE)
    assert [recipe for recipe, _ in row.findall(page)] == ["fast", "lean", "leanest"]
    for recipe, told in row.findall(page):
        needs = peak_of_run(SHAPES["gpt2"], 16, StepKind(recipe=recipe))
        parts = [format_bytes(size) for name, size in needs.parts() if name != "workspace"]
        assert told.split(" | ") == [format_bytes(needs.total), needs.moment, *parts]
