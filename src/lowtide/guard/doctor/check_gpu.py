"""Which cards are here, whether their driver answers, and whether torch starts, sees the card and compiles.

`nvidia-smi` is asked for the cards. A child process tries torch: a crash there does no harm.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lowtide.child import kill_session, python_command
from lowtide.events import Note
from lowtide.guard.doctor.check_software import is_installed
from lowtide.guard.doctor.checks import NOT_TRIED, Check, Examination, advice, ok, problem
from lowtide.memory.limits import machine_limit
from lowtide.memory.proc_files import read_text
from lowtide.memory.reading import GpuReading
from lowtide.units import GIB, MIB, format_bytes, format_seconds

_QUESTION = "--query-gpu=driver_version,memory.total,memory.used,name"
_SECONDS_TO_ANSWER = 10.0
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_TAKEN_SHARE = 0.2
NEEDED_BYTES = 2 * GIB
"""What must be free before the child is started; it takes 0.5 GiB, with CUDA up to 1.5."""
MOST_SECONDS = 180.0
_MARK = "lowtide: "
_LONGEST_REASON = 160
_OTHER_BUILD = (
    "install the build for the CUDA that `nvidia-smi` shows, as pytorch.org/get-started says"
)
_PROBE = """
import importlib, json, os, shutil, signal, sys, threading, time
folder, wanted = sys.argv[1:]
os.environ.update(
    TORCHINDUCTOR_CACHE_DIR=folder, TRITON_CACHE_DIR=folder, TMPDIR=folder, TORCHINDUCTOR_COMPILE_THREADS="1"
)

def end_with_the_parent():
    os.read(0, 1)  # nothing ever comes: the pipe closes when the parent has gone
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL) if hasattr(os, "killpg") else os._exit(1)

threading.Thread(target=end_with_the_parent, daemon=True).start()

def peak_bytes():
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return unit * sum(resource.getrusage(kind).ru_maxrss for kind in kinds)

def say(**fields):
    sys.stdout.write("lowtide: " + json.dumps({**fields, "peak_bytes": peak_bytes()}) + "\\n")
    sys.stdout.flush()

def reason(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

def try_it(device, action):
    begun, problem = time.perf_counter(), None
    try:
        x = torch.arange(64.0, device=device)
        plain = torch.relu(x * 2 - 9)
        made = action(lambda x: torch.relu(x * 2 - 9))(x)
        if not torch.allclose(made, plain):
            problem = "it gives other numbers than plain torch"
    except BaseException as error:
        problem = reason(error)
    return {"seconds": time.perf_counter() - begun, "problem": problem}

torch = importlib.import_module("torch")
cuda, problem = torch.cuda.is_available(), None
if torch.version.cuda and not cuda:
    try:
        torch.cuda.init()
    except BaseException as error:
        problem = reason(error)
if cuda:
    problem = try_it("cuda", lambda action: action)["problem"]
say(kind="torch", version=torch.__version__, cuda=torch.version.cuda, hip=torch.version.hip, sees_card=cuda,
    problem=problem)
if wanted == "compile":
    for device in ("cuda", "cpu") if cuda and not problem else ("cpu",):
        say(kind="compile", device=device, **try_it(device, torch.compile))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverAnswer:
    """What was found about cards without torch."""

    cards: tuple[GpuReading, ...] = ()
    driver: str = ""
    """The driver's release."""
    complaint: str | None = None
    """What `nvidia-smi` said instead of an answer."""
    asked: bool = False
    """Whether there is an `nvidia-smi`."""
    driver_loaded: bool = False
    on_the_bus: bool = False
    """An NVIDIA card sits in the machine, with or without a driver."""


def read_gpus(root: Path) -> DriverAnswer:
    """Ask the driver's own program, and look for cards that it may not know."""
    seen = DriverAnswer(
        driver_loaded=(root / "proc/driver/nvidia/version").exists(),
        on_the_bus=any(
            (read_text(device / "vendor") or "").strip() == _NVIDIA
            and (read_text(device / "class") or "").startswith(_DISPLAY)
            for device in (root / "sys/bus/pci/devices").glob("*")
        ),
    )
    command = ["nvidia-smi", _QUESTION, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS_TO_ANSWER, check=False
        )
    except FileNotFoundError:
        return seen
    except subprocess.TimeoutExpired:
        return replace(
            seen, asked=True, complaint=f"it has not answered for {_SECONDS_TO_ANSWER:.0f} s"
        )
    except OSError as error:
        return replace(seen, asked=True, complaint=str(error))
    if done.returncode == 0:
        driver = done.stdout.partition(",")[0].strip()
        return replace(seen, asked=True, cards=tuple(parse_gpus(done.stdout)), driver=driver)
    said = (done.stdout + done.stderr).strip().splitlines() or [f"code {done.returncode}"]
    return replace(seen, asked=True, complaint=said[0])


def parse_gpus(answer: str) -> list[GpuReading]:
    """Reads lines such as `570.86, 12282, 431, NVIDIA GeForce RTX 4070`; others are passed over."""
    cards = []
    for index, line in enumerate(answer.splitlines()):
        parts = [part.strip() for part in line.split(",", 3)]
        if len(parts) == 4 and parts[1].isdigit() and parts[2].isdigit():
            total, used = int(parts[1]) * MIB, int(parts[2]) * MIB
            cards.append(GpuReading(index=index, name=parts[3], used_bytes=used, total_bytes=total))
    return cards


def check_gpu(examination: Examination) -> list[Check]:
    """A line for each card, or one that says why there is none."""
    reading = examination.gpus
    assert reading is not None, "the driver is asked before it is judged"
    if reading.complaint is not None:
        finding = f"nvidia-smi does not answer: {reading.complaint}"
        remedy = "restart the machine, which reloads the driver; if that fails, reinstall it"
        return [problem("GPU", finding, remedy)]
    if not reading.cards:
        return [_without_card(reading, examination.container)]
    if are_hidden(examination.environ):
        finding = f"{reading.cards[0].name} is here, but CUDA_VISIBLE_DEVICES hides it"
        return [advice("GPU", finding, "`unset CUDA_VISIBLE_DEVICES`")]
    return [_judge_card(card, reading.driver) for card in reading.cards]


def are_hidden(environ: Mapping[str, str]) -> bool:
    """An empty CUDA_VISIBLE_DEVICES, or -1, leaves no card to CUDA."""
    return environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")


def _without_card(reading: DriverAnswer, container: str | None) -> Check:
    if reading.driver_loaded and not reading.asked:
        finding = (
            "an NVIDIA driver is loaded, but there is no nvidia-smi: `plan` cannot see the card"
        )
        remedy = "install the driver's tools (`nvidia-utils`)"
        if container:
            remedy = "start the container with `-e NVIDIA_DRIVER_CAPABILITIES=compute,utility`"
        return advice("GPU", finding, remedy)
    if reading.on_the_bus:
        if container:
            finding = "the host has an NVIDIA card, and the container was not given it"
            return advice("GPU", finding, "start the container with `--gpus all`")
        finding = "an NVIDIA card is here, and no driver that answers"
        return advice("GPU", finding, "install NVIDIA's driver, then restart the machine")
    return ok("GPU", "no NVIDIA card found: training runs on the CPU, which is for small models")


def _judge_card(card: GpuReading, driver: str) -> Check:
    finding = f"{card.name}, {format_bytes(card.total_bytes)}, driver {driver}"
    if card.used_bytes > _TAKEN_SHARE * card.total_bytes:
        taken = f"{finding}; {format_bytes(card.used_bytes)} of it are taken"
        return advice("GPU", taken, "`nvidia-smi` lists who holds it; end what is not needed")
    return ok("GPU", finding)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """What torch says about its build, and whether it can use the card."""

    version: str
    cuda: str | None
    """The CUDA version it was built for; None for the CPU alone."""
    hip: str | None
    sees_card: bool
    problem: str | None
    """Why the card cannot be used, or why a sum on it failed."""
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFacts:
    """How compiling a line of arithmetic came out."""

    device: str
    seconds: float
    problem: str | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchReading:
    """Everything the child reported before it ended."""

    torch: TorchFacts | None
    compiled: tuple[CompileFacts, ...]
    end: str | None
    """How it ended, where it failed."""


def ask_torch(*, compiles: bool, most_seconds: float = MOST_SECONDS) -> TorchReading:
    """Start torch in a child, at most `most_seconds`; what it compiles goes with its own folder."""
    with (
        tempfile.TemporaryDirectory(prefix="lowtide-doctor-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile("w+", errors="replace") as said,
    ):
        wanted = "compile" if compiles else "start"
        child = subprocess.Popen(
            python_command("-c", _PROBE, folder, wanted),
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # torch's compiler starts Python as well, and without `-P`
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        try:
            code: int | None = child.wait(most_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            kill_session(child)
            if child.stdin is not None:
                child.stdin.close()
        said.seek(0)
        return read_answers(said.read(), code, most_seconds)


def read_answers(said: str, code: int | None, most_seconds: float) -> TorchReading:
    """The lines that are meant for us; libraries may print others. A `code` of None is time run out."""
    torch: TorchFacts | None = None
    compiled = []
    for line in said.splitlines():
        if line.startswith(_MARK):
            fields = json.loads(line.removeprefix(_MARK))
            if fields.pop("kind") == "torch":
                torch = msgspec.convert(fields, TorchFacts)
            else:
                compiled.append(msgspec.convert(fields, CompileFacts))
    end = None
    if code is None:
        end = f"no answer in {format_seconds(most_seconds)}"
    elif code != 0:
        last = said.strip().splitlines()[-1:] or [f"it ended with code {code}"]
        end = last[0].strip() if code > 0 else f"killed by signal {-code}"
    return TorchReading(torch=torch, compiled=tuple(compiled), end=end)


def check_torch(examination: Examination) -> list[Check]:
    """Whether torch starts, sees the card and compiles."""
    if not is_installed("torch"):
        return []  # check_extras says so
    if examination.quick:
        return [ok("torch", NOT_TRIED), ok("torch.compile", NOT_TRIED)]
    left = machine_limit(root=examination.root).total_bytes
    if left < NEEDED_BYTES:
        finding = f"not tried: it may take {format_bytes(NEEDED_BYTES)} of memory"
        return [ok("torch", f"{finding}, and {format_bytes(left)} are left")]
    text = "trying torch and its compiler, which takes half a minute; --quick skips it"
    examination.listen(Note(text=text))
    reading = ask_torch(compiles=True)
    cards = examination.gpus.cards if examination.gpus else ()
    card_here = bool(cards) and not are_hidden(examination.environ)
    compiled = judge_compile(reading)
    return [judge_torch(reading, card_here=card_here), *([compiled] if compiled else [])]


def judge_torch(reading: TorchReading, *, card_here: bool) -> Check:
    """Whether torch starts, and whether it can use the card that the driver knows."""
    facts = reading.torch
    if facts is None:
        finding = f"does not start: {_short(reading.end or 'it said nothing')}"
        return problem("torch", finding, "`pip install --force-reinstall 'lowtide[train]'`")
    built_for = f"ROCm {facts.hip}" if facts.hip else "the CPU"
    build = f"{facts.version}, built for {f'CUDA {facts.cuda}' if facts.cuda else built_for}"
    if facts.problem is not None and (card_here or facts.sees_card):
        finding = f"{build}, which cannot use the card: {_short(facts.problem)}"
        return problem("torch", finding, _OTHER_BUILD)
    if card_here and not facts.sees_card:
        return problem("torch", f"{build}: it does not see the card that is here", _OTHER_BUILD)
    return ok("torch", f"{build}{_taken(facts.peak_bytes, 'starting it')}")


def judge_compile(reading: TorchReading) -> Check | None:
    """Whether `torch.compile` works where lowtide uses it: on a card. On the CPU it is a bonus."""
    if reading.torch is None:
        return None
    failed = [one for one in reading.compiled if one.problem is not None]
    if failed:
        return _failed(failed[0].device, failed[0].problem or "")  # the card is tried first
    if reading.end is not None:
        device = "cuda" if reading.torch.sees_card and not reading.compiled else "cpu"
        return _failed(device, reading.end)
    finding = " and ".join(
        f"for {one.device} in {format_seconds(one.seconds)}" for one in reading.compiled
    )
    peak = max((one.peak_bytes or 0 for one in reading.compiled), default=0)
    return ok("torch.compile", f"works {finding} (measured){_taken(peak, 'trying it')}")


def _failed(device: str, reason: str) -> Check:
    finding = f"fails for {device}: {_short(reason)}"
    compiler = "install a C++ compiler and Python's headers (Debian, Ubuntu: `apt install g++ python3-dev`)"
    if device == "cuda":
        remedy = f"{compiler}; or `compiled = false` in the file of `lowtide plan --write`"
        return problem("torch.compile", finding, remedy)
    return advice("torch.compile", finding, f"{compiler}; on the CPU lowtide trains without it")


def _taken(peak_bytes: int | None, doing: str) -> str:
    return f"; {doing} took up to {format_bytes(peak_bytes)}" if peak_bytes else ""


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"
