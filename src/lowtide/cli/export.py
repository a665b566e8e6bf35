"""`lowtide export`: the same tokens in a peer's format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lowtide.cli.choices import COUNT, EOT, FORMAT, debug_option

if TYPE_CHECKING:
    from lowtide.shards.layout import Format, Placement


@click.command("export")
@click.argument("path", metavar="DIR")
@click.option("--to", "to_format", type=FORMAT, required=True, help="Layout to write.")
@click.option("--out", required=True, metavar="DIR2", help="New or empty folder.")
@click.option(
    "--shard-tokens", type=COUNT, default="100M", show_default=True, help="Tokens in a full shard."
)
@click.option(
    "--eot", type=EOT, help="Move the end-of-text token.  [default: where its readers expect it]"
)
@click.option("--tokenizer", help="Tokenizer of a peer's files, which do not name it.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@debug_option
def export_command(
    path: str,
    to_format: Format,
    out: str,
    shard_tokens: int,
    eot: Placement | None,
    tokenizer: str | None,
    as_json: bool,
) -> None:
    """Rewrite a dataset for a peer, without tokenizing again.

    DIR is a folder that lowtide wrote, or a file or folder of nanoGPT, llm.c, Megatron or numpy. Run the
    same command again to go on after any interruption.
    """
    from lowtide.pipeline.export import export
    from lowtide.report.results import show_exported

    manifest = export(path, out, to_format, shard_tokens=shard_tokens, eot=eot, tokenizer=tokenizer)
    show_exported(out, manifest, as_json=as_json)
