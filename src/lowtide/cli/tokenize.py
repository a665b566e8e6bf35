"""`lowtide tokenize`: raw text into token shards."""

from __future__ import annotations

import os

import click

from lowtide.cli.choices import (
    COUNT,
    EOT,
    FILE,
    FOLDER,
    FORMAT,
    SHARE,
    OutOption,
    debug_option,
    dry_run_option,
    input_format_option,
    json_option,
    memory_option,
    quiet_option,
    separator_option,
    tokenizer_option,
    workers_option,
)
from lowtide.cli.command import Command, examples
from lowtide.cli.inputs import check_inputs
from lowtide.pipeline.stop_signals import listen_for_stops


@click.command(
    "tokenize",
    cls=Command,
    epilog=examples(
        "lowtide tokenize corpus --out tokens",
        "lowtide tokenize 'data/**/*.parquet' --column content --out tokens",
        "lowtide tokenize chats.jsonl --examples chat --out tokens",
        "lowtide tokenize corpus --out tokens --memory 512MiB --dry-run",
        read_on="docs/concepts.md and docs/examples.md",
        note="Run the same command again to resume after any interruption.",
    ),
)
@click.argument("inputs", nargs=-1, required=True, type=FILE, metavar="INPUT...")
@click.option(
    "--out",
    cls=OutOption,
    required=True,
    type=FOLDER,
    metavar="DIR",
    help="Folder for the shards: a new or empty one, or one to resume.",
)
@tokenizer_option
@click.option(
    "--column",
    metavar="NAME",
    help="Column with the text; with --examples messages=NAME,role=NAME,content=NAME.  [default: text]",
)
@separator_option
@input_format_option
@memory_option
@workers_option
@click.option(
    "--format", type=FORMAT, default="npy", show_default=True, help="Layout of the shards."
)
@click.option(
    "--shard-tokens", type=COUNT, default="100M", show_default=True, help="Tokens in a full shard."
)
@click.option(
    "--val",
    type=SHARE,
    help="Share held out for validation.  [default: 0.0005 of the documents; of a single document its last "
    "tenth, at most 1 MB, or nothing below 100 kB]",
)
@click.option(
    "--split",
    type=click.Choice(["hash", "tail"]),
    help="Hold out documents by a hash of their text, or the tail of the data. "
    " [default: hash; tail for a single document]",
)
@click.option(
    "--eot",
    type=EOT,
    help="Place of the end-of-text token.  [default: end; start for llmc; none for examples]",
)
@click.option(
    "--eot-token",
    metavar="TEXT",
    help="The end-of-text token by name.  [default: <|endoftext|>, </s> or another usual one]",
)
@click.option(
    "--bad-text",
    type=click.Choice(["fail", "replace", "skip"]),
    default="fail",
    show_default=True,
    help="What to do with text that is not valid UTF-8, and with rows without text.",
)
@click.option(
    "--special-in-text",
    type=click.Choice(["text", "token", "fail"]),
    default="text",
    show_default=True,
    help="How to read a special token's name inside a document.",
)
@click.option(
    "--examples",
    type=click.Choice(["chat", "instruction", "completion"]),
    help="Rows are examples of this kind, to fine-tune on.",
)
@click.option(
    "--template",
    type=FILE,
    metavar="NAME|FILE",
    help="chatml, plain, or a Jinja chat template.  [default: chatml; plain for completion]",
)
@click.option(
    "--learn",
    type=click.Choice(["assistant", "all", "completion"]),
    help="Learn every answer, everything, or the last answer alone.  [default: assistant]",
)
@click.option("--context", type=COUNT, help="Most tokens of an example.  [default: 1024]")
@click.option(
    "--too-long",
    type=click.Choice(["split", "truncate", "skip"]),
    help="What to do with a longer example.  [default: split]",
)
@click.option("--restart", is_flag=True, help="Begin again, removing what lowtide made in DIR.")
@dry_run_option
@json_option
@quiet_option
@debug_option
def tokenize_command(
    inputs: tuple[str, ...],
    out: str | None,
    memory: str | None,
    workers: int | None,
    restart: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **chosen: str | int | float | None,
) -> None:
    """Turn text of any size, or examples, into token shards.

    INPUT is a file, a folder or a glob: text, JSONL, Parquet or Arrow; text and JSONL also as .gz and .zst.
    A single - is standard input, which cannot be resumed.
    """
    check_inputs(inputs)
    # Arrow's own allocator keeps what it frees and reserves 1 GiB; it asks once, when it is loaded.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from lowtide.memory.budget import choose_budget
    from lowtide.memory.limits import machine_limit
    from lowtide.pipeline.settings import make_settings
    from lowtide.report.progress import show_progress
    from lowtide.report.results import show_rows as show_estimate
    from lowtide.report.results import show_tokenized

    settings = make_settings(chosen)
    budget = choose_budget(memory, machine_limit(slurm=os.environ))
    if dry_run:
        from lowtide.pipeline.estimate import estimate

        found = estimate(inputs, out, settings, memory=budget, workers=workers)
        show_estimate(found.rows(), found.as_record(), as_json=as_json)
        return
    assert out is not None, "only a dry run does without it"
    with show_progress(quiet=quiet) as listen, listen_for_stops() as should_stop:
        # Loaded in here: a stop that comes meanwhile is obeyed, after the first block.
        from lowtide.pipeline.tokenize import tokenize

        result = tokenize(
            inputs,
            out,
            settings,
            memory=budget,
            workers=workers,
            restart=restart,
            listen=listen,
            should_stop=should_stop,
        )
    show_tokenized(
        result.folder,
        result.manifest,
        seconds=result.seconds,
        peak_private_bytes=result.peak_private_bytes,
        already_done=result.already_done,
        as_json=as_json,
        quiet=quiet,
    )
