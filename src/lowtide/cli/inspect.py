"""`lowtide inspect`: what a dataset holds."""

from __future__ import annotations

import click


@click.command("inspect")
@click.argument("path", metavar="DIR")
@click.option("--tokenizer", help="Tokenizer of a peer's files, which do not name it.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def inspect_command(path: str, tokenizer: str | None, as_json: bool) -> None:
    """Show what a dataset holds: counts, splits, tokenizer, longest documents, samples.

    DIR is a folder that lowtide wrote, or files of nanoGPT, llm.c, Megatron or numpy.
    """
    from lowtide.pipeline.examine import inspect
    from lowtide.report.results import show_inspection

    show_inspection(inspect(path, tokenizer=tokenizer), as_json)
