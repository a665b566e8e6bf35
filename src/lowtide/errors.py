"""All errors that lowtide raises on purpose. Each carries a remedy that works, and an exit code.

LowtideError              1    the work failed
├── UsageError            2    wrong usage, unreadable settings, a folder that belongs to other work
├── DoesNotFitError       3    does not fit in memory or on disk: nothing was started
├── DataError             1    an input cannot be read as what it says it is
│   ├── ChangedInputError 1    an input was written to while it was read
│   ├── ReservedTextError 1    an input holds bytes that lowtide reserves, or a refused special token
│   └── SharedFaultError  1    a template or a tokenizer is at fault: every other input would fail as well
├── VerificationError     4    data on disk is not what its manifest promises
├── StorageError          1    a disk cannot be written or read: full, read-only, failing
└── StoppedError          75   stopped cleanly; the same command resumes where it stopped
    └── InterruptedRun    130  stopped cleanly by Ctrl-C; the same command resumes where it stopped
"""

from __future__ import annotations

from collections.abc import Callable


class LowtideError(Exception):
    """A `problem` with its values, a `remedy`, which is required, and the command's `exit_code`.

    `setting` is the setting to change, if there is one, and `value` a value that works. The remedy ends with
    both as they are written on the command line; `remedy_as` is for other places, such as a file.
    """

    exit_code = 1

    def __init__(
        self, problem: str, *, remedy: str, setting: str | None = None, value: object = None
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.setting = setting
        self._value = value
        self._remedy = remedy
        self.add_note(f"hint: {self.remedy}")  # a traceback shows it too

    @property
    def remedy(self) -> str:
        """What to do, with the setting as a flag: `… (`--val 0.05`)`."""
        return self.remedy_as(flag_with_value)

    def remedy_as(self, spell: Callable[[str, object], str]) -> str:
        """What to do, with the setting as it is spelled by `spell`."""
        return self._remedy + (f" ({spell(self.setting, self._value)})" if self.setting else "")


def error_of_kind(kind: str, problem: str, *, remedy: str) -> LowtideError:
    """An error that another process has met, by the name of its class."""
    kinds: list[type[LowtideError]] = [LowtideError]
    for one in kinds:
        if one.__name__ == kind:
            return one(problem, remedy=remedy)
        kinds += one.__subclasses__()
    return LowtideError(problem, remedy=remedy)


def flag_with_value(setting: str, value: object = None) -> str:
    """A setting on the command line: `--val 0.05`, in backticks."""
    return f"`--{setting.replace('_', '-')}{'' if value is None else f' {value}'}`"


class UsageError(LowtideError):
    """The command or its settings are wrong; nothing was changed."""

    exit_code = 2


class DoesNotFitError(LowtideError):
    """The work would not fit in memory or on disk; nothing was started."""

    exit_code = 3


class DataError(LowtideError):
    """An input is damaged, of another kind, or contains what the settings do not allow."""


class ChangedInputError(DataError):
    """An input changed while it was read. The text may mix two versions, so the run cannot be resumed."""


class ReservedTextError(DataError):
    """An input contains `text`, which is reserved."""

    def __init__(self, problem: str, *, remedy: str, text: bytes = b"") -> None:
        super().__init__(problem, remedy=remedy)
        self.text = text


class SharedFaultError(DataError):
    """A template or tokenizer that all inputs share is faulty: leaving out an input does not help."""


class VerificationError(LowtideError):
    """Shards, index or manifest do not agree with each other."""

    exit_code = 4


class StorageError(LowtideError):
    """Writing or reading a disk failed; files that were published before are intact."""


class StoppedError(LowtideError):
    """The run was asked to stop, or stopped itself. Finished work is saved, and the same command resumes it."""

    exit_code = 75


class Terminated(BaseException):
    """SIGTERM in a command that does not poll for stops. Like KeyboardInterrupt, it is not an Exception."""


class InterruptedRun(StoppedError):  # noqa: N818 - named for what happened, not for a fault
    """Ctrl-C: work is saved as with any other stop."""

    exit_code = 130
