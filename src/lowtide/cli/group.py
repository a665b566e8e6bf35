"""`lowtide` itself: its commands in the order of the work, and a hint for a name that it does not know."""

from __future__ import annotations

import click

from lowtide.errors import UsageError
from lowtide.settings import nearest

SECTIONS = {
    "Begin": ("demo", "doctor"),
    "Make data": ("train-tokenizer", "tokenize", "verify", "export"),
    "Train": ("plan", "train", "sample"),
    "Look": ("inspect", "report", "compare"),
    "Guard": ("watch", "why"),
    "Set up": ("config", "completion"),
}
_ALSO_CALLED = {
    "bpe": "train-tokenizer",
    "vocab": "train-tokenizer",
    "encode": "tokenize",
    "prepare": "tokenize",
    "preprocess": "tokenize",
    "check": "verify",
    "validate": "verify",
    "convert": "export",
    "estimate": "plan",
    "finetune": "train",
    "fine-tune": "train",
    "resume": "train",
    "generate": "sample",
    "info": "inspect",
    "show": "inspect",
    "bench": "compare",
    "benchmark": "compare",
    "guard": "watch",
    "run": "watch",
    "init": "config",
    "settings": "config",
    "complete": "completion",
}
"""What other programs call the same."""
_LONGEST_SENTENCE = 100


class Commands(click.Group):
    """A group whose help tells the order of the work."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        named = [name for names in SECTIONS.values() for name in names if name in self.commands]
        return [*named, *(name for name in self.commands if name not in named)]

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        width = max(len(name) for name in self.commands)
        for title, names in SECTIONS.items():
            rows = [
                (name.ljust(width), self.commands[name].get_short_help_str(_LONGEST_SENTENCE))
                for name in names
                if name in self.commands
            ]
            with formatter.section(title):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if ctx.resilient_parsing or name in self.commands or name.startswith("-"):
            return super().resolve_command(ctx, args)
        raise UsageError(f"no such command '{name}'", remedy=self._hint(name, args[1:]))

    def _hint(self, name: str, rest: list[str]) -> str:
        listed = "`lowtide --help` lists them all"
        if name == "version":
            return "did you mean `lowtide --version`?"
        if name == "help":
            known = next((word for word in rest if word in self.commands), "")
            return f"did you mean `{' '.join(filter(None, ['lowtide', known, '--help']))}`?"
        meant = _ALSO_CALLED.get(name.lower()) or nearest(name, self.commands)
        return f"did you mean `lowtide {meant}`? {listed}" if meant in self.commands else listed
