# ruff: noqa: E501 - messages of libraries and kernels stand here as they were printed
"""The right verdict on staged deaths, and "unknown" where the evidence does not suffice."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lowtide.guard.why.kernel_log import read_kernel_log
from lowtide.journal import LOG_NAME, Journal
from lowtide.stages.why import Question, explain
from lowtide.units import GIB, MIB
from tests.guard.deaths import (
    SLEEP,
    asked_by_watch,
    begin,
    child,
    dies,
    end,
    ended_run,
    killed_by,
    log_of,
    out_of_memory_in_a_box,
    python,
    question,
    read,
    run_folder,
    small_address_space,
    small_files,
    wait_until_ready,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals, /proc and kernel logs")

Stage = Callable[[Path], Question]
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 264, in <module>',
    "    losses = estimate_loss()",
    '  File "train.py", line 224, in estimate_loss',
    "    logits, loss = model(X, Y)",
)
STEPS = tuple(f"iter {step}: loss {9 - step / 10:.4f}, time 12ms" for step in range(20))
TORCH_1_0 = "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)"
TORCH_1_8 = "RuntimeError: CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB already allocated; 3.03 GiB free; 1.24 GiB reserved in total by PyTorch)"
TORCH_2_1 = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacty of 4.00 GiB of which 41.56 MiB is free. Including non-PyTorch memory, this process has 3.44 GiB memory in use. Of the allocated memory 2.58 GiB is allocated by PyTorch, and 1.90 MiB is reserved by PyTorch but unallocated."
TORCH_2_5 = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB. GPU 0 has a total capacity of 11.76 GiB of which 320.12 MiB is free. Including non-PyTorch memory, this process has 11.43 GiB memory in use. Of the allocated memory 8.90 GiB is allocated by PyTorch, and 2.24 GiB is reserved by PyTorch but unallocated."
HIP = "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 432.00 MiB. GPU 0 has a total capacity of 15.92 GiB of which 7.12 GiB is free. Of the allocated memory 8.08 GiB is allocated by PyTorch, and 321.96 MiB is reserved by PyTorch but unallocated."
MPS = "RuntimeError: MPS backend out of memory (MPS allocated: 5.56 GB, other allocations: 1.10 GB, max allowed: 6.80 GB). Tried to allocate 768.00 MB on private pool."
SLURM = "slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks have been OOM Killed."
SLURM_TIME = (
    "slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-10-27T19:35:36 DUE TO TIME LIMIT ***"
)
SHARED = "RuntimeError: DataLoader worker (pid 467) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."


def killed_inside_a_shell(folder: Path) -> Question:
    """The shell lives, and hands 137 on: `watch` saw no signal."""
    return dies("", command=["sh", "-c", "sleep 60 & kill -9 $!; wait $!"])(folder)


def kernel_kill(folder: Path, *, late_seconds: float, scope: str = "Out of memory") -> Question:
    """SIGKILL, and a kernel's log that tells of a kill of that number at some time."""
    asked = killed_by(signal.SIGKILL)(folder)
    assert asked.target is not None
    pid = int(asked.target.read_text().partition('"job_pid": ')[2].partition(",")[0])
    at = time.time() + late_seconds
    line = f"{at:.6f} host kernel: {scope}: Killed process {pid} (python3) total-vm:9kB, anon-rss:99kB\n"
    log = folder / "kern.log"
    log.write_text(f"{at - 9e5:.6f} host kernel: boot\n{line}")
    return question(folder, target=asked.target, kernel_log=log)


def broken_off(
    folder: Path, *, private_bytes: int = 10 * MIB, available_bytes: int = 8 * GIB
) -> Question:
    """Watch was killed too: the job is gone, and no end was written."""
    path = folder / "timeline.jsonl"
    with Journal(path) as journal, child(folder, python("pass")) as process:
        begin(journal, process, folder)
        read(journal, process, private_bytes=private_bytes, available_bytes=available_bytes)
    (folder / "empty.txt").touch()
    return question(folder, target=path, kernel_log=folder / "empty.txt")


def run_without_end(folder: Path, *, kernel: bool) -> Question:
    run = run_folder(folder)
    (folder / "empty.txt").touch()
    fields = {} if kernel else {"kernel_log": folder / "empty.txt"}
    return question(folder, target=run, **fields)


def survived(folder: Path) -> Question:
    """It ran out of GPU memory, went on with less, and finished."""
    code = f"print({TORCH_2_5!r}); [print('iter', n, 'loss 3.1') for n in range(9)]"
    return dies(code)(folder)


def went_on_then_terminated(folder: Path) -> Question:
    asked = killed_by(signal.SIGTERM)(folder)
    (folder / "err.txt").write_text("\n".join([TORCH_2_5, *STEPS]))
    return asked


STAGED: dict[str, tuple[Stage, str, str]] = {
    "finished": (dies("pass"), "finished", "certain"),
    "finished after it ran out of GPU memory and went on": (survived, "finished", "certain"),
    "SIGKILL from outside, the kernel's log is silent": (killed_by(9), "killed from outside", "likely"),
    "SIGKILL from outside, no kernel's log": (killed_by(9, kernel=None), "killed from outside", "possible"),
    "SIGKILL when memory was gone, no kernel's log": (
        killed_by(9, kernel=None, available_bytes=MIB),
        "out of memory: the machine",
        "possible",
    ),
    "SIGKILL near the cgroup's limit, no kernel's log": (
        killed_by(9, kernel=None, private_bytes=99 * MIB, cgroup_limit_bytes=100 * MIB),
        "out of memory: its cgroup",
        "possible",
    ),
    "SIGKILL inside a shell": (killed_inside_a_shell, "killed from outside", "possible"),
    "137 alone": (partial(question, exit_code=137), "unknown", "unknown"),
    "137 and a log that says nothing, the kernel's log is silent": (
        log_of("step 1", "step 2", exit_code=137),
        "killed from outside",
        "possible",
    ),
    "137 and a log that says nothing, no kernel's log": (
        log_of("step 1", "step 2", exit_code=137, kernel_log=Path("/dev/null")),
        "out of memory: the machine",
        "possible",
    ),
    "137 and a shell's word": (
        log_of("./go.sh: line 3:  2565 Killed                  python train.py", exit_code=137),
        "killed from outside",
        "possible",
    ),
    "the kernel killed it, the machine's memory was gone": (
        partial(kernel_kill, late_seconds=0.0),
        "out of memory: the machine",
        "certain",
    ),
    "the kernel killed it in a cgroup": (
        partial(kernel_kill, late_seconds=0.0, scope="Memory cgroup out of memory"),
        "out of memory: its cgroup",
        "certain",
    ),
    "the kernel killed a process of that number an hour ago": (
        partial(kernel_kill, late_seconds=-3600.0),
        "killed from outside",
        "likely",
    ),
    "the cgroup's counter": (partial(out_of_memory_in_a_box, with_end=True), "out of memory: its cgroup", "certain"),
    "SIGTERM": (killed_by(15), "terminated", "certain"),
    "SIGTERM after GPU memory ran out and it went on": (went_on_then_terminated, "terminated", "certain"),
    "143 alone": (partial(question, exit_code=143), "terminated", "likely"),
    "SIGHUP": (killed_by(1), "terminated", "certain"),
    "SIGSEGV": (dies("import ctypes; ctypes.string_at(0)"), "crashed", "certain"),
    "139 alone": (partial(question, exit_code=139), "crashed", "likely"),
    "SIGABRT": (dies("import os; os.abort()"), "crashed", "certain"),
    "SIGBUS": (killed_by(signal.SIGBUS), "crashed", "certain"),
    "SIGILL": (killed_by(signal.SIGILL), "crashed", "certain"),
    "Ctrl-C": (killed_by(signal.SIGINT), "interrupted", "certain"),
    "130 alone": (partial(question, exit_code=130), "interrupted", "likely"),
    "MemoryError": (dies("bytearray(1 << 40)", before=small_address_space), "MemoryError", "certain"),
    "Cannot allocate memory": (
        dies("import mmap; mmap.mmap(-1, 1 << 45)", before=small_address_space),
        "MemoryError",
        "certain",
    ),
    "disk full": (dies("open('/dev/full', 'w').write('x' * 99999)"), "disk full", "certain"),
    "file too large": (
        dies("open('big', 'wb').write(b'x' * 99999)", before=small_files),
        "failed",
        "certain",
    ),
    "an error of its own": (dies("1 / 0"), "failed", "certain"),
    "a code without a word": (dies("raise SystemExit(3)"), "failed", "certain"),
    "no such command": (dies("", command=["sh", "-c", "no-such-command-here"]), "failed", "likely"),
    "watch asked it to stop": (asked_by_watch, "limit of watch", "certain"),
    "watch was killed with it": (broken_off, "unknown", "unknown"),
    "watch was killed with it when memory was gone": (
        partial(broken_off, available_bytes=MIB),
        "out of memory: the machine",
        "possible",
    ),
    "a run of ours breaks off, the kernel's log is silent": (
        partial(run_without_end, kernel=True),
        "killed from outside",
        "possible",
    ),
    "a run of ours breaks off, no kernel's log": (partial(run_without_end, kernel=False), "unknown", "unknown"),
    "a run of ours that is done": (ended_run(outcome="done", exit_code=0), "finished", "certain"),
    "a run of ours that stopped": (
        ended_run(outcome="stopped", exit_code=75, problem="memory is nearly gone", remedy="run it again"),
        "stopped cleanly",
        "certain",
    ),
    "a run of ours, Ctrl-C": (ended_run(outcome="interrupted", exit_code=130), "interrupted", "certain"),
    "a run of ours on a full disk": (
        ended_run(outcome="failed", exit_code=1, problem="cannot write x: No space left on device (ENOSPC)"),
        "disk full",
        "certain",
    ),
    "a run of ours that failed": (
        ended_run(outcome="failed", exit_code=1, problem="line 3 is not JSON", remedy="mend it"),
        "failed",
        "certain",
    ),
    "torch 1.0": (log_of(*TRACEBACK, TORCH_1_0), "out of GPU memory", "certain"),
    "torch 1.8": (log_of(*TRACEBACK, TORCH_1_8), "out of GPU memory", "certain"),
    "torch 2.1": (log_of(*TRACEBACK, TORCH_2_1), "out of GPU memory", "certain"),
    "torch 2.5": (log_of(*TRACEBACK, TORCH_2_5, exit_code=1), "out of GPU memory", "certain"),
    "torch of AMD": (log_of(*TRACEBACK, HIP), "out of GPU memory", "certain"),
    "torch of Apple": (log_of(*TRACEBACK, MPS), "out of GPU memory", "certain"),
    "torch 0.4": (log_of("RuntimeError: cuda runtime error (2) : out of memory at x.cu:58"), "out of GPU memory", "likely"),
    "cuBLAS": (
        log_of("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", exit_code=1),
        "out of GPU memory",
        "certain",
    ),
    "JAX": (
        log_of("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes."),
        "out of GPU memory",
        "likely",
    ),
    "torch on the CPU": (
        log_of(*TRACEBACK, "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
               "allocate memory: you tried to allocate 17179869184 bytes. Error code 12 (Cannot allocate memory)"),
        "MemoryError",
        "certain",
    ),
    "Rust": (log_of("memory allocation of 81604378624 bytes failed", "Aborted (core dumped)"), "MemoryError", "certain"),
    "Slurm's memory": (log_of(SLURM, "srun: error: n1: task 0: Out Of Memory"), "out of memory: its cgroup", "certain"),
    "Slurm's time": (log_of(*STEPS, SLURM_TIME), "terminated", "certain"),
    "shared memory": (log_of(*TRACEBACK, SHARED), "crashed", "certain"),
    "advice is not a death": (log_of("In case of CUDA out of memory, lower the batch.", *STEPS), "unknown", "unknown"),
    "an empty log": (log_of(""), "unknown", "unknown"),
}  # fmt: skip


@pytest.mark.parametrize(("stage", "cause", "sureness"), STAGED.values(), ids=STAGED)
def test_the_verdict_on_a_staged_death(
    tmp_path: Path, stage: Stage, cause: str, sureness: str
) -> None:
    verdict = explain(stage(tmp_path))
    assert (verdict.cause, verdict.sureness) == (cause, sureness), verdict.sentence
    assert verdict.sentence.endswith(".")
    assert verdict.remedies or verdict.cause in ("finished", "interrupted")


def test_the_kernels_own_log_proves_a_kill_that_watch_did_not_live_to_see(tmp_path: Path) -> None:
    asked = out_of_memory_in_a_box(tmp_path, with_end=False)
    if "dmesg" not in read_kernel_log(since=None).sources:
        pytest.skip("the kernel's log cannot be read here")
    verdict = explain(question(tmp_path, target=asked.target, kernel_log=None))
    assert (verdict.cause, verdict.sureness) == ("out of memory: its cgroup", "certain")
    assert any("Killed process" in line.text and line.speaks == "for" for line in verdict.evidence)


def test_a_process_that_lives_is_not_dead(tmp_path: Path) -> None:
    with child(tmp_path, python(SLEEP)) as process:
        wait_until_ready(tmp_path)
        verdict = explain(question(tmp_path, pid=process.pid))
        assert (verdict.cause, verdict.sureness) == ("running", "certain")
        assert "private memory" in verdict.sentence
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        paused = explain(question(tmp_path, pid=process.pid))
        assert "it is paused" in paused.sentence
        assert f"`kill -CONT {process.pid}`" in paused.remedies[0]


def test_a_job_under_watch_that_lives_is_not_dead(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    with Journal(path) as journal, child(tmp_path, python(SLEEP)) as process:
        begin(journal, process, tmp_path)
        read(journal, process)
        assert explain(question(tmp_path, target=path)).cause == "running"
        process.kill()
        process.wait()
        assert explain(question(tmp_path, target=path)).cause != "running"


def test_a_zombie_is_dead_and_tells_how_it_died(tmp_path: Path) -> None:
    with child(tmp_path, python(SLEEP)) as process:
        wait_until_ready(tmp_path)
        process.terminate()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        verdict = explain(question(tmp_path, pid=process.pid))
    assert (verdict.cause, verdict.sureness) == ("terminated", "certain")


def test_a_process_of_the_same_number_that_is_younger_is_another(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with child(tmp_path, python(SLEEP)) as process:
        long_ago = time.time() - 9999
        (run / LOG_NAME).write_text(
            f'{{"event": "start", "at": {long_ago}, "kind": "train", "pid": {process.pid}}}\n'
        )
        assert explain(question(tmp_path, target=run)).cause != "running"


def test_a_run_whose_lock_is_held_is_running_and_the_lock_stays_free_to_take(
    tmp_path: Path,
) -> None:
    run = run_folder(tmp_path)
    lock = run / ".lowtide" / "lock"
    lock.parent.mkdir()
    lock.touch()
    assert explain(question(tmp_path, target=run)).cause != "running"
    code = f"import fcntl; f = open({str(lock)!r}); fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); {SLEEP}"
    with child(tmp_path, python(code)):
        wait_until_ready(tmp_path)
        assert explain(question(tmp_path, target=run)).cause == "running"


def test_a_process_that_died_is_found_in_the_newest_timeline_that_knows_it(tmp_path: Path) -> None:
    asked = killed_by(15)(tmp_path)
    assert asked.target is not None
    pid = int(asked.target.read_text().partition('"job_pid": ')[2].partition(",")[0])
    (tmp_path / "state").mkdir()
    asked.target.rename(tmp_path / "state" / "20260101-000000-1.jsonl")
    (tmp_path / "state" / "20260101-000000-2.jsonl").write_text('{"event": "start", "pid": 1}\n')
    verdict = explain(question(tmp_path, pid=pid))
    assert verdict.cause == "terminated"
    assert "20260101-000000-1.jsonl" in verdict.about


def test_of_a_resumed_run_the_last_session_counts(tmp_path: Path) -> None:
    run = run_folder(tmp_path, outcome="interrupted", exit_code=130)
    with Journal(run / LOG_NAME) as journal:
        journal.write("start", kind="train", pid=os.getpid(), settings={})
        journal.write("end", outcome="done", exit_code=0)
    assert explain(question(tmp_path, target=run)).cause == "finished"


@pytest.mark.parametrize("died", ["killed", "resumed and killed", "refused memory"])
def test_a_run_that_ended_before_its_first_checkpoint_begins_again(
    tmp_path: Path, died: str
) -> None:
    run = run_folder(tmp_path)
    code = 134 if died == "refused memory" else 137

    def advice() -> str:
        return " ".join(explain(question(tmp_path, target=run, exit_code=code)).remedies)

    assert "resumes" not in advice()
    with Journal(run / LOG_NAME) as journal:
        if died != "resumed and killed":
            journal.write("checkpoint", step=12, path="x", seconds=1.0)
        else:  # the checkpoint's own record was lost in a crash of the machine
            journal.write("start", kind="train", pid=1 << 22, settings={}, step=12)
    assert "resumes" in advice()
    with Journal(run / LOG_NAME) as journal:
        journal.write("start", kind="train", pid=1 << 22, settings={}, step=12)
    assert "resumes" in advice()


def test_a_torn_or_damaged_journal_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    with (run / LOG_NAME).open("a") as file:
        file.write('not json\n{"event": "st')
    texts = [line.text for line in explain(question(tmp_path, target=run)).evidence]
    assert any("in the middle of a line" in text for text in texts)
    assert any("could not be read" in text for text in texts)
    with (run / LOG_NAME).open("a") as file:
        file.write('art"}\n{"event": "end", "outcome": "done"}\n')
    assert explain(question(tmp_path, target=run)).cause == "finished"


def test_only_what_the_job_itself_wrote_into_a_file_is_its_own(tmp_path: Path) -> None:
    log, path = tmp_path / "shared.log", tmp_path / "timeline.jsonl"
    log.write_text("MemoryError\nlowtide: note: 3 GiB\nall is well\nMemoryError\n")
    began, ended = len("MemoryError\n"), log.read_text().index("MemoryError", 5)
    with Journal(path) as journal:
        journal.write(
            "start", kind="watch", command=["job"], stderr_path=str(log), stderr_began_bytes=began
        )
        journal.write(
            "end",
            outcome="ended",
            exit_code=3,
            signal=None,
            stderr_path=str(log),
            stderr_ended_bytes=ended,
        )
    verdict = explain(question(tmp_path, target=path))
    assert verdict.cause == "failed", verdict
    assert not any("MemoryError" in line.text for line in verdict.evidence)


def test_lines_of_other_programs_with_an_event_are_a_text(tmp_path: Path) -> None:
    log = tmp_path / "structured.log"
    log.write_text(
        '{"event": "step 3", "level": "info"}\nMemoryError: Unable to allocate 5.6 GiB\n'
    )
    assert explain(question(tmp_path, target=log)).cause == "MemoryError"


def test_a_run_whose_lock_is_free_is_dead_whoever_has_its_number_now(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with Journal(run / LOG_NAME) as journal:
        journal.write("start", kind="train", pid=os.getpid(), settings={})
    assert explain(question(tmp_path, target=run)).cause != "running"


@pytest.mark.parametrize("text", ["[" * 60_000, '{"event": "start", "settings": ' + "[" * 60_000])
def test_deep_nesting_and_huge_numbers_are_survived(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.jsonl"
    huge = "9" * 400
    path.write_text(
        f'{text}\n{{"event": "reading", "private_bytes": {huge}}}\n'
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {huge} GiB.\n"
    )
    assert explain(question(tmp_path, target=path)).cause == "out of GPU memory"


def test_fields_of_other_kinds_are_as_good_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    path.write_text(
        '{"event": "start", "at": "now", "kind": 7, "pid": "x", "command": "ls", "stdout_path": 3}\n'
        '{"event": "reading", "private_bytes": 1e30, "top": {"pid": 1}, "gpus": [3]}\n'
        '{"event": "reading", "private_bytes": 5, "at": 1e300, "top": [4, {"pid": null}], "gpus": [{}]}\n'
        '{"event": "alert", "stage": [], "reason": {}}\n'
        '{"event": "end", "outcome": 3, "exit_code": "zero", "signal": true, "oom_kills": "many"}\n'
    )
    assert explain(question(tmp_path, target=path)).cause == "unknown"


def test_a_real_end_by_watch_with_force_is_told_from_the_kernels(tmp_path: Path) -> None:
    for number, (fields, cause) in enumerate(
        [
            ({"forced": True, "oom_kills": 0}, "limit of watch"),
            ({"forced": False, "oom_kills": 1}, "out of memory: its cgroup"),
            ({"forced": False, "oom_kills": 0}, "killed from outside"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "timeline.jsonl"
        with Journal(path) as journal, child(folder, python(SLEEP)) as process:
            begin(journal, process, folder, limit_bytes=MIB)
            wait_until_ready(folder)
            read(journal, process)
            journal.write("alert", stage="ask", reason="the job uses too much", top=[])
            process.kill()
            end(journal, process, **fields)
        assert explain(question(folder, target=path)).cause == cause


def test_a_kernel_log_that_was_saved_before_the_process_began_blames_nobody(tmp_path: Path) -> None:
    asked = killed_by(signal.SIGKILL)(tmp_path)
    assert asked.target is not None
    pid = int(asked.target.read_text().partition('"job_pid": ')[2].partition(",")[0])
    log = tmp_path / "old.txt"
    stamp = f"[{time.monotonic():.6f}]"
    log.write_text(f"{stamp} Out of memory: Killed process {pid} (python3) total-vm:9kB\n")
    long_ago = time.time() - time.monotonic() - 4 * 86400
    os.utime(log, (long_ago, long_ago))
    verdict = explain(question(tmp_path, target=asked.target, kernel_log=log))
    assert "memory" not in verdict.cause
