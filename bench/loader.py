"""Batches a second from the same tokens by lowtide and by the usual ways, in one run: print the table.

    python bench/make_peers.py /tmp/peers litdata streaming
    python bench/loader.py --peers /tmp/peers
    python bench/loader.py --tokens 10M --rounds 2 --seconds 1 --only lowtide

Tokens are made once: nanoGPT's train.bin, the same in 1,000 shards of lowtide, in litdata's chunks and in
MDS shards; `--folder` keeps them. All files are read once, so that they lie in the page cache. Then the ways
take turns: in every round each runs alone in a fresh process, which opens its files, asks for the first batch,
and from there on counts batches. Every way gives int64 `x` and `y`, but where its name says otherwise. litdata
and mosaicml-streaming run in environments of their own, all else in this one, which needs torch (`pip install
'lowtide[train]'`). A peer without an environment, and what cannot be imported, is left out and named.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import functools
import importlib.metadata
import json
import os
import shlex
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from bench.environments import find_python, find_versions, variables
from bench.loader_tokens import (
    SHARDS,
    Task,
    make_peer_tokens,
    make_tokens,
    missing,
    read_all,
)
from bench.loader_ways import BASELINE, WAYS, Way
from bench.measuring import describe_run, is_wanted
from lowtide.memory.meter import measure_tree
from lowtide.units import format_bytes, format_count, parse_count

ROOT = Path(__file__).parent.parent
_STARTS = 20
_FRESH_STARTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One way in one round."""

    batches_a_second: float
    cpu_seconds_a_batch: float
    """Of all threads and workers: what stays true when others use the machine too."""
    first_seconds: float
    """From opening to the first batch, imports apart."""
    private_bytes: int
    """Of the process and its workers, afterwards."""
    imported_bytes: int
    """Of the process before it opened anything."""


# Measuring


def measure(way: Way, task: Task, seconds: float) -> Measured:
    """In this process, which does nothing else."""
    for module in way.needs:
        importlib.import_module(module)
    imported_bytes = measure_tree().private_bytes
    started = time.perf_counter()
    batches = way.open(task)
    x, y = next(batches)
    begun = time.perf_counter()
    _check(way, task, x, y)
    count, cpu_seconds, first = 0, tree_cpu_seconds(), time.perf_counter()
    now, stop = first, first + seconds
    while now < stop:
        x, y = next(batches)
        count += 1
        now = time.perf_counter()
    cpu_seconds = tree_cpu_seconds() - cpu_seconds
    private_bytes = measure_tree().private_bytes
    batches.close()  # workers end here, not at the interpreter's end
    return Measured(
        batches_a_second=count / (now - first),
        cpu_seconds_a_batch=cpu_seconds / count,
        first_seconds=begun - started,
        private_bytes=private_bytes,
        imported_bytes=imported_bytes,
    )


def tree_cpu_seconds() -> float:
    """CPU time of this process and its workers so far."""
    workers = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(times.user + times.system for times in workers)


def _check(way: Way, task: Task, x: Any, y: Any) -> None:
    """A way that gives something else must not be compared."""
    for found in (x, y):
        assert tuple(found.shape) == (task.batch, task.context), found.shape
        assert str(found.dtype).removeprefix("torch.") == way.dtype, found.dtype
    assert bool((x[0, 1:] == y[0, :-1]).all()) or "document" in way.name


def measure_apart(way: Way, task: Task, chosen: argparse.Namespace) -> Measured:
    """In a fresh process."""
    more = ["--measure", way.name, "--seconds", str(chosen.seconds)]
    said = run_apart(chosen.peers, way.peer, task, more)
    return Measured(**json.loads(said.strip().rsplit("\n", 1)[-1]))


def run_apart(peers: Path | None, peer: str, task: Task, more: Sequence[str]) -> str:
    """This file by the peer's interpreter, which finds lowtide's sources though it has not installed them."""
    python = find_python(peers, peer)
    assert python is not None, f"{peer} was found before"
    command = [str(python), "-W", "ignore", __file__, *more, "--folder", str(task.folder)]
    command += ["--batch", str(task.batch), "--context", str(task.context)]
    done = subprocess.run(
        command,
        env=variables_of(peer),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def variables_of(peer: str) -> dict[str, str]:
    """This process's own, with lowtide's sources and the peer's stand-ins where Python looks for modules."""
    paths = [str(ROOT / "src"), *variables(peer).values()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def row(way: Way, runs: Sequence[Measured], baseline: float) -> str:
    """A line of the table: median and range."""
    rates = [run.batches_a_second for run in runs]
    first = statistics.median(run.first_seconds for run in runs)
    private = max(run.private_bytes for run in runs)
    grown = max(run.private_bytes - run.imported_bytes for run in runs)
    middle = statistics.median(rates)
    cpu = 1e6 * statistics.median(run.cpu_seconds_a_batch for run in runs)
    return (
        f"| {way.name} | {middle:,.0f} ({min(rates):,.0f}–{max(rates):,.0f}) | "
        f"{middle / baseline:.2f} | {cpu:,.0f} µs | {1e3 * first:,.1f} ms | {format_bytes(private)} | "
        f"{format_bytes(grown)} | {way.gives} |"
    )


def print_rates(ways: Sequence[Way], task: Task, chosen: argparse.Namespace) -> None:
    """The ways take turns, so that a slow minute of the machine hits each of them."""
    found: dict[str, list[Measured]] = {way.name: [] for way in ways}
    for _ in range(chosen.rounds):
        for way in ways:
            found[way.name].append(measure_apart(way, task, chosen))
    baseline = statistics.median(run.batches_a_second for run in found[BASELINE])
    print(
        "| way | batches/s (range) | × get_batch | CPU a batch | first batch "
        "| private after | beyond imports | what it gives |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    for way in ways:
        print(row(way, found[way.name], baseline))


def print_starts(task: Task) -> None:
    """From `TokenDataset(...)` to the first batch, and from nothing to there in a fresh process."""
    from lowtide import TokenDataset

    print("\n| lowtide's start | median | range |\n|---|--:|--:|")
    for name, path in (("train.bin", task.train_bin), (f"{SHARDS:,} shards", task.shards)):

        def open_and_read(path: Path = path) -> None:
            dataset = TokenDataset(path, context=task.context)
            dataset.batch(0, task.batch)
            dataset.close()

        code = "import sys; from lowtide import TokenDataset\n"
        code += f"TokenDataset(sys.argv[1], context={task.context}).batch(0, {task.batch})"
        fresh = [sys.executable, "-c", code, str(path)]
        open_and_read()  # what is imported on first use
        print(_start_row(f"{name}, open and first batch, {_STARTS} times", open_and_read, _STARTS))
        run = functools.partial(subprocess.run, fresh, check=True)
        print(_start_row(f"{name}, a fresh process, imports included", run, _FRESH_STARTS))
    numpy = functools.partial(
        subprocess.run, [sys.executable, "-c", "import numpy, json, ctypes"], check=True
    )
    print(_start_row("for comparison: a fresh process that imports numpy", numpy, _FRESH_STARTS))


def _start_row(name: str, run: Callable[[], object], times: int) -> str:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        run()
        taken.append(1e3 * (time.perf_counter() - started))
    middle, least, most = statistics.median(taken), min(taken), max(taken)
    return f"| {name} | {middle:.1f} ms | {least:.1f}–{most:.1f} ms |"


# The command


def choose() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=parse_count, default=parse_count("300M"))
    parser.add_argument("--batch", type=int, default=32, help="windows in a batch")
    parser.add_argument("--context", type=int, default=1024, help="tokens in a window")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="for each way in each round")
    parser.add_argument("--folder", type=Path, help="keep the tokens here, or use those kept")
    parser.add_argument("--only", default="", help="names, or parts of names: a,b")
    parser.add_argument("--skip", default="", help=f"leave these out: a,b; never {BASELINE}")
    parser.add_argument("--peers", type=Path, help="folder made by bench/make_peers.py")
    parser.add_argument("--measure", metavar="WAY", help=argparse.SUPPRESS)
    parser.add_argument("--make", metavar="PEER", help=argparse.SUPPRESS)
    return parser.parse_args()


def present(ways: Sequence[Way], chosen: argparse.Namespace) -> list[Way]:
    """The ways asked for whose modules can be imported, and the one they are compared with."""
    found = []
    for way in ways:
        if not is_wanted(way.name, chosen.only, chosen.skip) and way.name != BASELINE:
            continue
        problem = find_problem(way, chosen.peers)
        if problem:
            print(f"left out: {way.name} ({problem})\n")
        else:
            found.append(way)
    return found


def find_problem(way: Way, peers: Path | None) -> str:
    """Why a way cannot run; empty if it can."""
    python = find_python(peers, way.peer)
    if python is None:
        return f"no environment: python bench/make_peers.py DIR {way.peer}"
    found_by = (str(python), variables_of(way.peer)["PYTHONPATH"])
    return next((text for module in way.needs if (text := missing(module, *found_by))), "")


def own_versions() -> str:
    """Of what runs in this environment."""
    return ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("numpy", "torch")
        if any(importlib.metadata.distributions(name=name))
    )


def compare(task: Task, chosen: argparse.Namespace) -> None:
    task.folder.mkdir(parents=True, exist_ok=True)
    ways = present(WAYS, chosen)
    peers = dict.fromkeys(way.peer for way in ways if way.peer)
    make_tokens(task, chosen.tokens)
    for peer in peers:
        run_apart(chosen.peers, peer, task, ["--make", peer])
    read_all(task.folder)
    pythons = {peer: find_python(chosen.peers, peer) for peer in peers}
    versions = {peer: find_versions(python, peer) for peer, python in pythons.items() if python}
    print(describe_run({"lowtide, nanoGPT, numpy": own_versions(), **versions}))
    print(
        f"{format_count(chosen.tokens)} tokens, batches of {chosen.batch} × {chosen.context}, "
        f"{chosen.rounds} rounds of {chosen.seconds:g} s.\n"
    )
    print_rates(ways, task, chosen)
    print_starts(task)
    print(f"\nload afterwards, this run included: {os.getloadavg()[0]:.2f}")


def main() -> None:
    chosen = choose()
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as temporary:
        folder = chosen.folder or Path(temporary)
        task = Task(folder=folder, batch=chosen.batch, context=chosen.context)
        if chosen.measure:
            way = next(way for way in WAYS if way.name == chosen.measure)
            print(json.dumps(asdict(measure(way, task, chosen.seconds))))
        elif chosen.make:
            make_peer_tokens(task, chosen.make)
        else:
            compare(task, chosen)


if __name__ == "__main__":
    main()
