"""Builds the compiled part of lowtide: C files without Python in them, into one shared library.

`cc` does it where there is one; elsewhere (and on Windows) the compiler in the `ziglang` package, which is
then fetched for the build alone. The library is loaded with ctypes, so one wheel serves every Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = Path("src/lowtide/native")
_FLAGS = ["-O3", "-std=c11", "-fPIC", "-shared", "-fvisibility=default", "-Wall", "-Wextra"]
_FLAGS += ["-Werror=missing-prototypes"]  # what is not in layout.h is not compared at load
_SUFFIXES = {"win32": ".dll", "darwin": ".dylib"}


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """hatchling calls this before it packs a wheel, and for `pip install -e`."""

    def dependencies(self) -> list[str]:
        return [] if _own_compiler() else ["ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / _FOLDER
        library = folder / f"lowtide_native{_SUFFIXES.get(sys.platform, '.so')}"
        sources = sorted(str(path) for path in folder.glob("*.c"))
        partial = library.with_name(f".{library.name}.{os.getpid()}.tmp")
        subprocess.run([*_compiler(), *_FLAGS, "-o", str(partial), *sources], check=True)
        os.replace(partial, library)  # noqa: PTH105 - a library that is loaded must not change under its user
        relative = str(library.relative_to(self.root))
        build_data["artifacts"].append(f"/{relative}")
        build_data["pure_python"] = False
        build_data["tag"] = (
            f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        )


def _own_compiler() -> str | None:
    if sys.platform == "win32":
        return None
    return shutil.which(os.environ.get("CC", "cc").split()[0])


def _compiler() -> list[str]:
    if _own_compiler():
        return os.environ.get("CC", "cc").split()
    return [sys.executable, "-m", "ziglang", "cc"]
