# ruff: noqa: E501 - messages of libraries and kernels stand here as they were printed
"""`judge` is a pure function: what it says follows from the evidence, and no more than follows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.guard.why.allocations import read_dimensions
from lowtide.guard.why.death_texts import find_death_texts
from lowtide.guard.why.evidence import Evidence, Exit, MachineFacts, TextLog, exit_of
from lowtide.guard.why.kernel_log import KernelLog, KernelRecord
from lowtide.guard.why.verdict import Verdict, judge
from lowtide.journal import RecordedEnd, Session
from lowtide.memory.reading import Reading
from lowtide.units import GIB, MIB

NOW = 1_000_000.0
MACHINE = MachineFacts(now=NOW, boot_at=1.0, total_ram_bytes=16 * GIB, swap_bytes=0)
NOTHING = Evidence(about="a test", machine=MACHINE)
SESSION = Session(
    path="timeline.jsonl",
    kind="watch",
    pid=77,
    pids=frozenset({77, 78}),
    names=frozenset({"python3"}),
    started_at=NOW - 100,
    last_at=NOW,
    last=Reading(at=NOW, private_bytes=GIB, available_bytes=8 * GIB),
)
KILLED = RecordedEnd(at=NOW, outcome="ended", exit_code=137, signal=9)
WATCHED = replace(NOTHING, pid=77, session=replace(SESSION, end=KILLED))
SILENT = KernelLog(sources=("dmesg",), first_at=1.0)


def kill_of(pid: int, *, at: float | None = NOW, name: str = "python3") -> KernelLog:
    record = KernelRecord(
        kind="out of memory",
        line=f"Out of memory: Killed process {pid} ({name})",
        source="dmesg",
        at=at,
        pid=pid,
        name=name,
        scope="machine",
    )
    return replace(SILENT, records=(record,))


def told(*lines: str, **fields: object) -> Evidence:
    log = TextLog(path="train.log", changed_at=NOW, texts=tuple(find_death_texts("\n".join(lines))))
    return replace(NOTHING, logs=(log,), **fields)  # type: ignore[arg-type]


def in_short(verdict: Verdict) -> tuple[str, str]:
    return verdict.cause, verdict.sureness


@pytest.mark.parametrize(
    ("kernel", "cause", "sureness"),
    [
        (kill_of(77), "out of memory: the machine", "certain"),
        (kill_of(78), "out of memory: the machine", "certain"),
        (kill_of(77, at=None), "out of memory: the machine", "likely"),
        (kill_of(77, at=NOW - 5000), "killed from outside", "likely"),
        (kill_of(79), "killed from outside", "likely"),
        (SILENT, "killed from outside", "likely"),
        (replace(SILENT, first_at=NOW + 1), "killed from outside", "possible"),
        (KernelLog(), "killed from outside", "possible"),
    ],
    ids=[
        "its number and time",
        "a child of it",
        "its number, no time",
        "its number, another time",
        "another number",
        "silence",
        "a log that begins too late",
        "no log",
    ],
)
def test_sigkill_is_what_the_kernels_log_makes_of_it(
    kernel: KernelLog, cause: str, sureness: str
) -> None:
    assert in_short(judge(replace(WATCHED, kernel=kernel))) == (cause, sureness)


def test_a_child_that_was_killed_is_likely_the_reason_of_an_error() -> None:
    failed = RecordedEnd(at=NOW, outcome="ended", exit_code=1)
    evidence = replace(WATCHED, session=replace(SESSION, end=failed), kernel=kill_of(78))
    assert in_short(judge(evidence)) == ("out of memory: the machine", "likely")


def test_in_a_container_name_and_moment_count_and_numbers_do_not() -> None:
    inside = replace(WATCHED, machine=replace(MACHINE, own_process_ids=True))
    assert in_short(judge(replace(inside, kernel=kill_of(999_999)))) == ("out of memory: the machine", "likely")  # fmt: skip
    other = judge(replace(inside, kernel=kill_of(77, name="firefox")))
    assert other.cause == "killed from outside"
    early = judge(replace(inside, kernel=kill_of(77, at=NOW - 90)))
    assert early.cause == "killed from outside"


def test_a_run_of_ours_in_a_container_is_known_by_its_name() -> None:
    session = replace(SESSION, kind="train", names=frozenset({"python3", "lowtide"}))
    inside = replace(MACHINE, own_process_ids=True)
    evidence = replace(NOTHING, pid=77, session=session, machine=inside, kernel=kill_of(31337))
    assert in_short(judge(evidence)) == ("out of memory: the machine", "likely")


@given(code=st.integers(-64, 255).filter(lambda code: code not in (0, 75)))
def test_an_exit_code_alone_never_proves_that_memory_was_the_reason(code: int) -> None:
    verdict = judge(replace(NOTHING, exit=exit_of(code, None, source="given"), kernel=SILENT))
    assert "memory" not in verdict.cause.lower()
    if code in (137, -9):
        assert verdict.cause == "unknown"


def test_137_with_somebody_elses_kill_stays_unknown_and_names_it() -> None:
    verdict = judge(replace(NOTHING, exit=exit_of(137, None, source="given"), kernel=kill_of(4)))
    assert verdict.cause == "unknown"
    assert any("process 4" in line.text for line in verdict.evidence)
    assert any("`--pid N`" in remedy for remedy in verdict.remedies)


def test_nothing_known_is_unknown_and_says_what_would_help() -> None:
    verdict = judge(NOTHING)
    assert in_short(verdict) == ("unknown", "unknown")
    assert any("`--exit-code N`" in remedy for remedy in verdict.remedies)
    assert any("`--log FILE`" in remedy for remedy in verdict.remedies)
    assert any("lowtide watch" in remedy for remedy in verdict.remedies)


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB. GPU 0 has a total capacity of 11.76 GiB of "
    "which 320.12 MiB is free. Including non-PyTorch memory, this process has 11.43 GiB memory in use. Of the allocated "
    "memory 8.90 GiB is allocated by PyTorch, and 2.24 GiB is reserved by PyTorch but unallocated."
)
EVALUATING = (
    "Traceback (most recent call last):",
    '  File "t.py", line 2, in estimate_loss',
    "    x",
)
TRAINING = ("Traceback (most recent call last):", '  File "t.py", line 2, in train_step', "    x")
GPT2 = read_dimensions("batch_size=8 block_size=1024 vocab_size=50304")


def test_the_sentence_of_the_issue() -> None:
    verdict = judge(told(*EVALUATING, OOM, dimensions=GPT2, exit=Exit(source="given", code=1)))
    assert verdict.sentence == (
        "Out of GPU memory (certain): it asked the GPU for 1.54 GiB when 320.1 MiB of 11.8 GiB were free: exactly "
        "batch 8 × 1024 positions × 50304 vocabulary × 4 bytes, the logits in eval."
    )
    assert verdict.remedies[0].startswith("evaluate with a batch of 6 instead of 8 (estimated")
    assert any("expandable_segments:True" in remedy for remedy in verdict.remedies)


def test_training_is_not_called_evaluation_and_a_guess_is_called_one() -> None:
    assert "the logits." in judge(told(*TRAINING, OOM, dimensions=GPT2)).sentence
    assert "(a guess: " in judge(told(*TRAINING, OOM)).sentence


def test_memory_in_pieces_is_blamed_only_when_there_is_much_of_it() -> None:
    whole = OOM.replace("2.24 GiB is reserved", "12.00 MiB is reserved")
    assert not any("expandable" in remedy for remedy in judge(told(*TRAINING, whole)).remedies)


def test_a_neighbour_on_the_card_is_named_first() -> None:
    shared = OOM.replace("Including", "Process 4711 has 6.00 GiB memory in use. Including")
    assert judge(told(*TRAINING, shared)).remedies[0].startswith("process 4711 holds 6.0 GiB")


def test_a_text_that_the_program_outlived_is_at_most_possible() -> None:
    steps = [f"iter {n}: loss 3.1" for n in range(30)]
    assert judge(told(OOM, *steps)).cause == "unknown"
    verdict = judge(told(OOM, *steps, exit=Exit(source="given", code=1)))
    assert in_short(verdict) == ("failed", "certain")


def test_a_launcher_that_kills_the_other_ranks_does_not_hide_the_reason() -> None:
    elastic = "E torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 12)"
    verdict = judge(told(*TRAINING, "[rank0]: " + OOM, elastic, exit=Exit(source="given", signal=15)))  # fmt: skip
    assert in_short(verdict) == ("out of GPU memory", "likely")


def test_a_rank_that_the_kernel_killed_is_found_by_the_launchers_words() -> None:
    elastic = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3 (pid: 812917) of"
    verdict = judge(replace(told(elastic), kernel=kill_of(812917)))
    assert in_short(verdict) == ("out of memory: the machine", "likely")
    assert judge(replace(told(elastic), kernel=SILENT)).cause == "killed from outside"


def test_a_daemon_that_saves_memory_is_named() -> None:
    record = KernelRecord(kind="memory daemon", line="sending SIGTERM to process 77", source="syslog", at=NOW, pid=77,
                          name="python3", scope="machine", detail="earlyoom")  # fmt: skip
    ended = replace(KILLED, signal=15, exit_code=143)
    evidence = replace(WATCHED, session=replace(SESSION, end=ended), kernel=replace(SILENT, records=(record,)))  # fmt: skip
    verdict = judge(evidence)
    assert in_short(verdict) == ("out of memory: the machine", "certain")
    assert "earlyoom" in verdict.sentence


def test_a_machine_that_was_started_again_took_it_along() -> None:
    evidence = replace(
        NOTHING, pid=77, session=SESSION, machine=replace(MACHINE, boot_at=NOW + 60, now=NOW + 99)
    )
    verdict = judge(evidence)
    assert in_short(verdict) == ("killed from outside", "possible")
    assert "restarted" in verdict.sentence


def test_a_watch_that_was_no_parent_knows_no_code_and_says_so() -> None:
    unseen = RecordedEnd(at=NOW, outcome="ended")
    verdict = judge(replace(WATCHED, session=replace(SESSION, end=unseen)))
    assert in_short(verdict) == ("unknown", "unknown")
    assert "had not started it" in verdict.sentence


def test_what_speaks_against_the_verdict_is_shown() -> None:
    tight = replace(
        SESSION, end=KILLED, last=Reading(at=NOW, private_bytes=GIB, available_bytes=MIB)
    )
    verdict = judge(replace(WATCHED, session=tight, kernel=SILENT))
    assert in_short(verdict) == ("killed from outside", "possible")
    assert [line.speaks for line in verdict.evidence if line.source.startswith("last memory")] == ["against"]  # fmt: skip


def test_what_could_not_be_read_is_named() -> None:
    from lowtide.guard.why.kernel_log import UnreadLog

    kernel = KernelLog(unread=(UnreadLog(source="dmesg", reason="Operation not permitted"),))
    verdict = judge(replace(WATCHED, kernel=kernel))
    assert any(line.source == "dmesg" and "Operation not permitted" in line.text for line in verdict.evidence)  # fmt: skip
    assert any("root" in remedy for remedy in verdict.remedies)


def test_a_run_that_breaks_off_when_a_daemon_killed_somebody_is_not_called_killed_from_outside() -> (
    None
):
    record = KernelRecord(
        kind="memory daemon",
        line="Killed /a.scope",
        source="journalctl",
        at=NOW,
        detail="systemd-oomd",
    )
    evidence = replace(NOTHING, pid=77, session=replace(SESSION, kind="train"), kernel=SILENT)
    assert judge(evidence).cause == "killed from outside"
    assert judge(replace(evidence, kernel=replace(SILENT, records=(record,)))).cause == "unknown"


@pytest.mark.parametrize(
    ("xid", "code", "cause"),
    [(31, 1, "crashed"), (45, 1, "failed"), (31, 0, "finished"), (31, 143, "terminated")],
)
def test_a_fault_of_the_card_counts_where_the_end_was_nobodys_wish(
    xid: int, code: int, cause: str
) -> None:
    record = KernelRecord(
        kind="gpu fault", line="NVRM: Xid", source="dmesg", at=NOW, pid=77, detail=f"Xid {xid}"
    )
    end = RecordedEnd(at=NOW, outcome="ended", exit_code=code)
    kernel = replace(SILENT, records=(record,))
    assert judge(replace(WATCHED, session=replace(SESSION, end=end), kernel=kernel)).cause == cause


@pytest.mark.parametrize("kind", ["tokenize", "train-tokenizer"])
def test_an_abort_of_a_stage_of_ours_is_memory_that_was_refused(kind: str) -> None:
    session = replace(SESSION, kind=kind)
    ended = exit_of(134, None, source="given")
    assert judge(replace(NOTHING, session=session, exit=ended)).cause == "MemoryError"
    of_others = replace(NOTHING, session=SESSION, exit=ended)
    assert judge(of_others).cause == "crashed"


def test_the_limit_of_the_cgroup_is_told_from_that_of_watch() -> None:
    session = replace(SESSION, end=KILLED, limit_bytes=2 * GIB)
    last = replace(session.last or Reading(at=NOW), cgroup_limit_bytes=3 * GIB)
    texts = [
        line.text
        for one in (session, replace(session, last=last))
        for line in judge(replace(WATCHED, session=one)).evidence
        if line.source.startswith("last memory")
    ]
    assert ["limit of 2.0 GiB" in text for text in texts] == [True, False]
    assert ["3.0 GiB that the kernel allows its cgroup" in text for text in texts] == [False, True]
