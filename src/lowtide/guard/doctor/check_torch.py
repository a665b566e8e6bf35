"""Whether torch starts, sees the card and compiles. A child process tries it: a crash there harms nobody."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass

import msgspec

from lowtide.child import kill_session, python_command
from lowtide.guard.doctor.checks import Check, advice, ok, problem
from lowtide.units import GIB, format_bytes, format_seconds

NEEDED_BYTES = 2 * GIB
"""So much must be free before the child is started; it takes 0.5 GiB, with CUDA up to 1.5."""
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
    os.read(0, 1)  # nothing ever comes: the pipe closes when whoever asked has gone
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
    begun, told = time.perf_counter(), None
    try:
        x = torch.arange(64.0, device=device)
        plain = torch.relu(x * 2 - 9)
        made = action(lambda x: torch.relu(x * 2 - 9))(x)
        if not torch.allclose(made, plain):
            told = "it gives other numbers than plain torch"
    except BaseException as error:
        told = reason(error)
    return {"seconds": time.perf_counter() - begun, "problem": told}

torch = importlib.import_module("torch")
cuda, told = torch.cuda.is_available(), None
if torch.version.cuda and not cuda:
    try:
        torch.cuda.init()
    except BaseException as error:
        told = reason(error)
if cuda:
    told = try_it("cuda", lambda action: action)["problem"]
say(kind="torch", version=torch.__version__, cuda=torch.version.cuda, hip=torch.version.hip, sees_card=cuda,
    problem=told)
if wanted == "compile":
    for device in ("cuda", "cpu") if cuda and not told else ("cpu",):
        say(kind="compile", device=device, **try_it(device, torch.compile))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """What torch says of itself."""

    version: str
    cuda: str | None
    """The CUDA it was built for; None for the CPU alone."""
    hip: str | None
    sees_card: bool
    problem: str | None
    """Why the card cannot be used, or why a sum on it failed."""
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFacts:
    """What came of compiling a line of arithmetic."""

    device: str
    seconds: float
    problem: str | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchReading:
    """All that the child said before it ended."""

    torch: TorchFacts | None
    compiled: tuple[CompileFacts, ...]
    end: str | None
    """How it ended, if not well."""


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


def check_torch(reading: TorchReading, *, card_here: bool) -> Check:
    """Whether it starts, and whether it can use the card that the driver knows."""
    facts = reading.torch
    if facts is None:
        told = f"does not start: {_short(reading.end or 'it said nothing')}"
        return problem("torch", told, "`pip install --force-reinstall 'lowtide[train]'`")
    build = f"{facts.version}, {_build(facts)}"
    if facts.problem is not None and (card_here or facts.sees_card):
        told = f"{build}, which cannot use the card: {_short(facts.problem)}"
        return problem("torch", told, _OTHER_BUILD)
    if card_here and not facts.sees_card:
        return problem("torch", f"{build}: it does not see the card that is here", _OTHER_BUILD)
    return ok("torch", f"{build}{_taken(facts.peak_bytes, 'starting it')}")


def _build(facts: TorchFacts) -> str:
    if facts.cuda:
        return f"built for CUDA {facts.cuda}"
    return f"built for ROCm {facts.hip}" if facts.hip else "built for the CPU"


def check_compile(reading: TorchReading) -> Check | None:
    """Whether `torch.compile` works where lowtide uses it: on a card. On the CPU it is a bonus."""
    if reading.torch is None:
        return None
    failed = [one for one in reading.compiled if one.problem is not None]
    if failed:
        return _failed(failed[0].device, failed[0].problem or "")  # the card is tried first
    if reading.end is not None:
        device = "cuda" if reading.torch.sees_card and not reading.compiled else "cpu"
        return _failed(device, reading.end)
    told = " and ".join(
        f"for {one.device} in {format_seconds(one.seconds)}" for one in reading.compiled
    )
    peak = max((one.peak_bytes or 0 for one in reading.compiled), default=0)
    return ok("torch.compile", f"works {told} (measured){_taken(peak, 'trying it')}")


def _failed(device: str, reason: str) -> Check:
    told = f"fails for {device}: {_short(reason)}"
    compiler = "install a C++ compiler and Python's headers (Debian, Ubuntu: `apt install g++ python3-dev`)"
    if device == "cuda":
        remedy = f"{compiler}; or `compiled = false` in the file of `lowtide plan --write`"
        return problem("torch.compile", told, remedy)
    return advice("torch.compile", told, f"{compiler}; on the CPU lowtide trains without it")


def _taken(peak_bytes: int | None, doing: str) -> str:
    return f"; {doing} took up to {format_bytes(peak_bytes)}" if peak_bytes else ""


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"
