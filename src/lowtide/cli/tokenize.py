"""`lowtide tokenize`: raw text into token shards."""

from __future__ import annotations

import os

import click

from lowtide.cli.choices import (
    FILE,
    FOLDER,
    OutOption,
    debug_option,
    dry_run_option,
    json_option,
    memory_option,
    quiet_option,
    restart_option,
    setting_options,
    workers_option,
)
from lowtide.cli.command import Command, examples
from lowtide.cli.inputs import check_inputs
from lowtide.settings import TokenizeSettings
from lowtide.stages.stop_signals import listen_for_stops


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
    group="output",
    sample="tokens",
    required=True,
    type=FOLDER,
    metavar="DIR",
    help="Folder for the shards: a new or empty one, or one to resume.",
)
@setting_options(TokenizeSettings)
@memory_option
@workers_option
@restart_option
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
    **chosen: object,
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
    from lowtide.show.progress import show_progress
    from lowtide.show.results import note_no_validation, show_dataset
    from lowtide.show.results import show_rows as show_estimate
    from lowtide.stages.settings import make_settings

    settings = make_settings(chosen)
    budget = choose_budget(memory, machine_limit(slurm=os.environ))
    if dry_run:
        from lowtide.stages.estimate import estimate

        found = estimate(inputs, out, settings, memory=budget, workers=workers)
        show_estimate(found.rows(), found.as_record(), as_json=as_json)
        return
    assert out is not None, "only a dry run does without it"
    with show_progress(quiet=quiet) as listen, listen_for_stops() as should_stop:
        # Loaded in here: a stop that comes meanwhile is obeyed, after the first block.
        from lowtide.stages.tokenize import tokenize

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
    show_dataset(
        result.folder,
        result.manifest,
        seconds=result.seconds,
        peak_private_bytes=result.peak_private_bytes,
        already_done=result.already_done,
        as_json=as_json,
    )
    if not (as_json or quiet):
        note_no_validation(result.manifest)
