"""`lowtide export`: the same tokens in a peer's format, or a trained model for Hugging Face."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from lowtide.cli.choices import (
    COUNT,
    EOT,
    EXPORTS,
    FILE,
    FOLDER,
    Option,
    debug_option,
    json_option,
    memory_option,
    peer_tokenizer_option,
    quiet_option,
    restart_option,
)
from lowtide.cli.command import Command, examples
from lowtide.errors import UsageError
from lowtide.stages.stop_signals import listen_for_stops

if TYPE_CHECKING:
    from lowtide.settings import Format, Placement


@click.command(
    "export",
    cls=Command,
    epilog=examples(
        "lowtide export tokens --to llmc --out for-llmc",
        "lowtide export tokens --to nanogpt --out for-nanogpt",
        "lowtide export run --to huggingface --out model",
        read_on="docs/reference.md, under the folder of a dataset, and docs/training.md",
    ),
)
@click.argument("path", type=FILE, metavar="DIR")
@click.option(
    "--to",
    "to_format",
    cls=Option,
    group="output",
    type=EXPORTS,
    required=True,
    help="Layout to write.",
)
@click.option(
    "--out",
    cls=Option,
    group="output",
    required=True,
    type=FOLDER,
    metavar="DIR2",
    help="New or empty folder, or one to resume.",
)
@click.option(
    "--shard-tokens",
    cls=Option,
    group="output",
    used_if=lambda chosen: chosen["to_format"] != "huggingface",
    type=COUNT,
    default="100M",
    show_default=True,
    help="Tokens in a full shard.",
)
@click.option(
    "--eot",
    cls=Option,
    group="output",
    sample="end",
    used_if=lambda chosen: chosen["to_format"] != "huggingface",
    type=EOT,
    help="Move the end-of-text token.  [default: where its readers expect it]",
)
@peer_tokenizer_option
@click.option(
    "--step",
    cls=Option,
    used_if=lambda chosen: chosen["to_format"] == "huggingface",
    type=COUNT,
    metavar="N",
    help="Checkpoint to use.  [default: the newest]",
)
@memory_option
@restart_option
@json_option
@quiet_option
@debug_option
def export_command(
    path: str,
    to_format: Format | Literal["huggingface"],
    out: str,
    shard_tokens: int,
    eot: Placement | None,
    tokenizer: str | None,
    step: int | None,
    memory: str | None,
    restart: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Rewrite tokens, or a trained model, for others.

    DIR is a folder that lowtide wrote, or a file or folder of nanoGPT, llm.c, Megatron or numpy. Nothing is
    tokenized again. Of examples, the loss mask is copied into a file that only lowtide reads, and --eot
    cannot be changed. Run the same command again to resume after any interruption. If DIR2 holds that
    export already, nothing is changed.

    With --to huggingface, DIR is the folder of a training run, and DIR2 opens in transformers, with the
    chat template if the run has one.
    """
    _refuse_strangers(to_format)
    if Path(out).is_file():
        raise UsageError(f"{out} is a file", remedy="pass a new or empty folder as `--out`")
    if to_format == "huggingface":
        from lowtide.dataset.token_dataset import need_torch

        need_torch("a model needs torch", instead="")
        from lowtide.events import ignore
        from lowtide.show.progress import tell_a_person
        from lowtide.show.training_results import show_exported_model
        from lowtide.stages.export_model import export_checkpoint

        made = export_checkpoint(path, out, step=step, listen=ignore if quiet else tell_a_person)
        show_exported_model(made.folder, already_done=made.already_done, as_json=as_json)
        return
    from lowtide.memory.budget import choose_budget
    from lowtide.memory.limits import machine_limit
    from lowtide.show.progress import show_progress
    from lowtide.show.results import show_dataset
    from lowtide.storage.paths import as_path

    folder = as_path(out)
    budget = choose_budget(memory, machine_limit(slurm=os.environ))
    with show_progress(quiet=quiet) as listen, listen_for_stops() as should_stop:
        # Loaded in here: a stop that comes meanwhile is obeyed, after the first piece.
        from lowtide.dataset.find_tokens import open_dataset
        from lowtide.stages.export import export_dataset

        done = export_dataset(
            open_dataset(path, tokenizer=tokenizer),
            to_format,
            folder,
            shard_tokens=shard_tokens,
            eot=eot,
            memory=budget,
            restart=restart,
            listen=listen,
            should_stop=should_stop,
        )
    show_dataset(
        folder,
        done.manifest,
        seconds=done.seconds,
        peak_private_bytes=done.peak_private_bytes,
        already_done=done.work is None,
        as_json=as_json,
    )


def _refuse_strangers(to_format: str) -> None:
    """Options that would be ignored: a model has no shards, and tokens no checkpoints."""
    context = click.get_current_context()
    of_a_model = to_format == "huggingface"
    of_tokens = ("shard_tokens", "eot", "tokenizer", "memory", "restart")
    for name in of_tokens if of_a_model else ("step",):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            what = "a model" if of_a_model else "tokens"
            raise UsageError(
                f"--{name.replace('_', '-')} has no meaning with `--to {to_format}`, which exports {what}",
                remedy="leave it out",
            )
