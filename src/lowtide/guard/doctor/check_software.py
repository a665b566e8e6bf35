"""Whether what lowtide stands on is installed, in releases that it was made for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from operator import eq, ge, gt, le, lt, ne

from lowtide.errors import UsageError
from lowtide.guard.doctor.checks import Check, Examination, advice, ok, problem
from lowtide.native import load_native

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*([^;]*)(?:;(.*))?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>|~=)\s*([0-9][\w.]*)")
_COMPARE = {">=": ge, "<=": le, "==": eq, "!=": ne, "<": lt, ">": gt}
FOR_DEVELOPERS = ("bench", "dev", "test")
"""Extras that nobody misses who only uses lowtide."""
ESSENTIAL = "train"
"""The extra without which nothing trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One requirement, and the release that is here."""

    name: str
    wanted: str
    """Such as `>=2.0`; empty for any."""
    extra: str | None
    version: str | None

    @property
    def fits(self) -> bool:
        return self.version is not None and satisfies(self.version, self.wanted)

    @property
    def install(self) -> str:
        return f"`pip install '{self.name}{self.wanted}'`"


def read_libraries() -> list[Library]:
    """What the installed lowtide says it needs; without its metadata (not installed), nothing."""
    try:
        return libraries_of(metadata.requires("lowtide") or (), _version)
    except metadata.PackageNotFoundError:
        return []


def is_installed(name: str) -> bool:
    """Whether it could be imported; it is not."""
    return find_spec(name) is not None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def libraries_of(
    requirements: Iterable[str], version: Callable[[str], str | None]
) -> list[Library]:
    """`torch>=2.8; extra == "train"`, one each; those of developers are left out."""
    found = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None:
            continue
        marker = _EXTRA.search(match[3] or "")
        extra = marker[1] if marker else None
        if extra not in FOR_DEVELOPERS:
            wanted = match[2].strip().strip("()")
            library = Library(name=match[1], wanted=wanted, extra=extra, version=version(match[1]))
            found.append(library)
    return found


def satisfies(version: str, wanted: str) -> bool:
    """`2.1` is `>=2.0,<3`. Numbers of a release alone: `2.13.0+cpu` counts as 2.13.0."""
    here = _numbers(version)
    for sign, bound in _BOUND.findall(wanted):
        there = _numbers(bound)
        width = max(len(here), len(there))
        left, right = (one + (0,) * (width - len(one)) for one in (here, there))
        if sign in _COMPARE and not _COMPARE[sign](left, right):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in release[0].split(".")) if release else ()


def check_libraries(examination: Examination) -> list[Check]:
    """One line for each that is missing or of another release, and one for all that fit."""
    core = [one for one in examination.libraries if one.extra is None]
    if not core:
        finding = "lowtide was not installed with pip, so what it needs is not known"
        return [advice("libraries", finding, "`pip install lowtide`")]
    checks = [
        problem("libraries", f"{_words(one)}, and {one.name}{one.wanted} is needed", one.install)
        for one in core
        if not one.fits
    ]
    fitting = ", ".join(f"{one.name} {one.version}" for one in core if one.fits)
    return [*checks, ok("libraries", fitting)]


def check_extras(examination: Examination) -> list[Check]:
    """What can be added to lowtide; only torch is missed by many."""
    extras = [one for one in examination.libraries if one.extra is not None]
    checks = [
        problem("extras", f"{_words(one)}, and {one.name}{one.wanted} is needed", one.install)
        for one in extras
        if one.version is not None and not one.fits
    ]
    missed = [one.name for one in extras if one.version is None and one.extra == ESSENTIAL]
    if missed:
        finding = f"{' and '.join(missed)} not installed: nothing trains without"
        checks.append(advice("extras", finding, f"`pip install 'lowtide[{ESSENTIAL}]'`"))
    here = ", ".join(f"{one.name} {one.version}" for one in extras if one.fits)
    absent = sorted({str(one.extra) for one in extras if one.version is None} - {ESSENTIAL})
    rest = "not installed, rarely needed: " + ", ".join(f"lowtide[{extra}]" for extra in absent)
    finding = "; ".join(part for part in (here, rest if absent else "") if part)
    return [*checks, ok("extras", finding)] if finding else checks


def _words(one: Library) -> str:
    return f"{one.name} is missing" if one.version is None else f"{one.name} {one.version} is here"


def check_native(_examination: Examination) -> Check:
    """The compiled part of lowtide itself."""
    try:
        load_native()
    except UsageError as error:
        return problem("compiled part", error.problem, error.remedy)
    return ok("compiled part", "lowtide's own C code loads")
