"""`lowtide train-tokenizer`: raw text into a byte-pair vocabulary."""

from __future__ import annotations

import os

import click

from lowtide.cli.choices import (
    FILE,
    FOLDER,
    Option,
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
from lowtide.settings import TokenizerSettings
from lowtide.stages.stop_signals import listen_for_stops


@click.command(
    "train-tokenizer",
    cls=Command,
    epilog=examples(
        "lowtide train-tokenizer corpus --out mine",
        "lowtide train-tokenizer corpus --vocab-size 8000,16000,32k --out three",
        "lowtide train-tokenizer corpus --out mine --memory 512MiB --dry-run",
        "lowtide tokenize corpus --tokenizer mine --out tokens",
        read_on="docs/tokenizer.md",
        note="Run the same command again to resume after any interruption.",
    ),
)
@click.argument("inputs", nargs=-1, required=True, type=FILE, metavar="INPUT...")
@click.option(
    "--out",
    cls=OutOption,
    group="output",
    sample="tokenizer",
    required=True,
    type=FOLDER,
    metavar="DIR",
    help="Folder for the files: a new or empty one, or one to resume.",
)
@setting_options(TokenizerSettings)
@click.option(
    "--no-special-token",
    cls=Option,
    group="vocabulary",
    gives_way_to=("special_token",),
    is_flag=True,
    help="Learn without any special token.",
)
@memory_option
@workers_option
@restart_option
@dry_run_option
@json_option
@quiet_option
@debug_option
def train_tokenizer_command(
    inputs: tuple[str, ...],
    out: str | None,
    special_token: tuple[str, ...],
    no_special_token: bool,
    memory: str | None,
    workers: int | None,
    restart: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **chosen: object,
) -> None:
    """Learn a tokenizer from raw text of any size.

    INPUT is a file, a folder or a glob: text, JSONL, Parquet or Arrow; text and JSONL also as .gz and .zst.
    A single - is standard input, which cannot be resumed.
    """
    check_inputs(inputs)
    # Arrow's own allocator keeps what it frees and reserves 1 GiB; it asks once, when it is loaded.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from lowtide.memory.budget import choose_budget
    from lowtide.memory.limits import machine_limit
    from lowtide.show.progress import show_progress
    from lowtide.stages.tokenizer_settings import choose_special_tokens, make_tokenizer_settings

    tokens = choose_special_tokens(special_token, none=no_special_token)
    settings = make_tokenizer_settings({**chosen, "special_token": tokens})
    budget = choose_budget(memory, machine_limit(slurm=os.environ))
    if dry_run:
        from lowtide.show.results import show_rows as show_estimate
        from lowtide.stages.estimate_tokenizer import estimate_tokenizer

        found = estimate_tokenizer(inputs, out, settings, memory=budget, workers=workers)
        show_estimate(found.rows(), found.as_record(), as_json=as_json)
        return
    assert out is not None, "only a dry run does without it"
    with show_progress(quiet=quiet) as listen, listen_for_stops() as should_stop:
        # Loaded in here: a stop that comes meanwhile is obeyed, after the first block.
        from lowtide.show.results import show_rows
        from lowtide.stages.describe_training import training_record, training_rows
        from lowtide.stages.train_tokenizer import train_tokenizer

        result = train_tokenizer(
            inputs,
            out,
            settings,
            memory=budget,
            workers=workers,
            restart=restart,
            listen=listen,
            should_stop=should_stop,
        )
    show_rows(training_rows(result), training_record(result), as_json=as_json)
