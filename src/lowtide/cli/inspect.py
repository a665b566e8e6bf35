"""`lowtide inspect`: what a dataset holds, and what a loader makes of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from lowtide.cli.choices import (
    COUNT,
    FILE,
    WINDOWS,
    Option,
    debug_option,
    json_option,
    peer_tokenizer_option,
)
from lowtide.cli.command import Command, examples
from lowtide.errors import VerificationError


@click.command(
    "inspect",
    cls=Command,
    epilog=examples(
        "lowtide inspect tokens",
        "lowtide inspect tokens --loader --context 1024 --batch 32",
        "lowtide inspect data/train.bin --tokenizer gpt2",
        read_on="docs/loading.md and docs/examples.md",
    ),
)
@click.argument("path", type=FILE, metavar="DIR")
@peer_tokenizer_option
@click.option("--loader", is_flag=True, help="Run a loader for a few seconds and measure it.")
@click.option(
    "--split",
    cls=Option,
    used_if=lambda chosen: chosen["loader"] is True,
    metavar="NAME",
    default="train",
    show_default=True,
    help="Split that the loader reads.",
)
@click.option("--context", type=COUNT, default=1024, show_default=True, help="Tokens in a window.")
@click.option(
    "--batch",
    cls=Option,
    used_if=lambda chosen: chosen["loader"] is True,
    type=COUNT,
    default=32,
    show_default=True,
    help="Windows in a batch.",
)
@click.option(
    "--windows",
    cls=Option,
    used_if=lambda chosen: chosen["loader"] is True,
    type=WINDOWS,
    help="Kind of window.  [default: document for examples, else contiguous]",
)
@click.option(
    "--seconds",
    cls=Option,
    used_if=lambda chosen: chosen["loader"] is True,
    type=float,
    metavar="N",
    default=3.0,
    show_default=True,
    help="How long it runs.",
)
@json_option
@debug_option
def inspect_command(
    path: str,
    tokenizer: str | None,
    loader: bool,
    split: str,
    context: int,
    batch: int,
    windows: str | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Show what a dataset holds.

    Counts, splits, tokenizer, the longest documents, and a few documents as text; of examples, with the
    learnt part marked. DIR is a folder that lowtide wrote, or a file or folder of nanoGPT, llm.c, Megatron
    or numpy.

    With --loader: batches per second, private memory and page cache apart, and whether every token of an
    epoch comes exactly once.

    Of a run with --inbox: which files are done, and which have failed, and why.
    """
    if loader:
        from lowtide.dataset.describe import try_loader
        from lowtide.show.results import show_loader

        found = try_loader(
            path,
            split=split,
            context=context,
            batch_size=batch,
            windows=windows,  # type: ignore[arg-type]
            seconds=seconds,
            tokenizer=tokenizer,
        )
        show_loader(found, as_json=as_json)
        if not found.exactly_once:
            raise VerificationError(
                "a window of the epoch came twice or not at all",
                remedy="this is a fault of lowtide: report it with the figures above",
            )
        return
    if _show_inbox(path, as_json=as_json):
        return
    from lowtide.show.results import show_inspection
    from lowtide.stages.examine import inspect

    inspection = inspect(path, tokenizer=tokenizer)
    show_inspection(
        inspection.facts,
        inspection.samples,
        note=inspection.note,
        context=context,
        as_json=as_json,
        colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
    )


def _show_inbox(path: str, *, as_json: bool) -> bool:
    """Whether the folder is a run's that takes files from an inbox."""
    from lowtide.show.training_results import show_inbox_files
    from lowtide.stages.inbox.ledger import count_stages, is_inbox_run, read_entries

    if not is_inbox_run(Path(path)):
        return False
    entries = list(read_entries(Path(path)))
    failures = [(one.name, one.reason) for one in entries if one.stage == "failed"]
    show_inbox_files(path, entries, count_stages(entries), failures, as_json=as_json)
    return True
