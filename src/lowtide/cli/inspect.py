"""`lowtide inspect`: what a dataset holds."""

from __future__ import annotations

import click

from lowtide.cli.choices import debug_option


@click.command("inspect")
@click.argument("path", metavar="DIR")
@click.option("--tokenizer", help="Tokenizer of a peer's files, which do not name it.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@debug_option
def inspect_command(path: str, tokenizer: str | None, as_json: bool) -> None:
    """Show what a dataset holds.

    Counts, splits, tokenizer, the longest documents, and a few documents as text. DIR is a folder that
    lowtide wrote, or a file or folder of nanoGPT, llm.c, Megatron or numpy.
    """
    from lowtide.pipeline.examine import inspect
    from lowtide.report.results import show_inspection

    found = inspect(path, tokenizer=tokenizer)
    show_inspection(found.facts, found.samples, note=found.note, as_json=as_json)
