"""`lowtide train-tokenizer`: raw text into a byte-pair vocabulary."""

from __future__ import annotations

import os

import click

from lowtide.cli.choices import (
    COUNT,
    FILE,
    FOLDER,
    SHARE,
    SIZES,
    OutOption,
    column_option,
    debug_option,
    dry_run_option,
    input_format_option,
    json_option,
    memory_option,
    quiet_option,
    separator_option,
    workers_option,
)
from lowtide.cli.command import Command, examples
from lowtide.cli.inputs import check_inputs
from lowtide.pipeline.stop_signals import listen_for_stops


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
    required=True,
    type=FOLDER,
    metavar="DIR",
    help="Folder for the files: a new or empty one, or one to resume.",
)
@click.option(
    "--vocab-size",
    type=SIZES,
    default="32000",
    show_default=True,
    metavar="N[,N...]",
    help="Tokens to learn, special ones and the 256 bytes included. A few sizes cost little more "
    "than the largest.",
)
@click.option(
    "--special-token",
    multiple=True,
    metavar="TEXT",
    help="A token of its own that no merge crosses; repeatable.  [default: <|endoftext|>]",
)
@click.option("--no-special-token", is_flag=True, help="Learn without any special token.")
@click.option(
    "--pattern",
    type=click.Choice(["gpt2", "cl100k", "o200k"]),
    default="gpt2",
    show_default=True,
    help="How text is cut into words, which no merge crosses.",
)
@click.option(
    "--min-frequency",
    type=COUNT,
    metavar="N",
    default=1,
    show_default=True,
    help="A pair is merged only if it occurs at least this often.",
)
@click.option(
    "--ties",
    type=click.Choice(["huggingface", "greatest"]),
    default="huggingface",
    show_default=True,
    help="Which of two equally frequent pairs is merged first: smallest ids, or greatest bytes.",
)
@memory_option
@workers_option
@column_option
@separator_option
@input_format_option
@click.option(
    "--bad-text",
    type=click.Choice(["fail", "replace", "skip"]),
    default="fail",
    show_default=True,
    help="What to do with text that is not valid UTF-8, and with rows without text.",
)
@click.option(
    "--val",
    type=SHARE,
    default=0.0,
    show_default=True,
    help="Share of documents not to learn from, by the same hash as tokenize.",
)
@click.option("--restart", is_flag=True, help="Begin again, removing what lowtide made in DIR.")
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
    from lowtide.pipeline.train_settings import choose_special_tokens, make_train_settings
    from lowtide.report.progress import show_progress

    tokens = choose_special_tokens(special_token, none=no_special_token)
    settings = make_train_settings({**chosen, "special_token": tokens})
    budget = choose_budget(memory, machine_limit(slurm=os.environ))
    if dry_run:
        from lowtide.pipeline.train_estimate import estimate_training
        from lowtide.report.results import show_rows as show_estimate

        found = estimate_training(inputs, out, settings, memory=budget, workers=workers)
        show_estimate(found.rows(), found.as_record(), as_json=as_json)
        return
    assert out is not None, "only a dry run does without it"
    with show_progress(quiet=quiet) as listen, listen_for_stops() as should_stop:
        # Loaded in here: a stop that comes meanwhile is obeyed, after the first block.
        from lowtide.pipeline.describe_training import training_record, training_rows
        from lowtide.pipeline.train_tokenizer import train_tokenizer
        from lowtide.report.results import show_rows

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
