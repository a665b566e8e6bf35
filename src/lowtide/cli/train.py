"""`lowtide train`: token shards into a GPT."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lowtide.cli.choices import (
    COUNT,
    DEVICE,
    FILE,
    FOLDER,
    SEED,
    SIZE_OR_SHARE,
    Option,
    debug_option,
    json_option,
    peer_tokenizer_option,
    quiet_option,
    restart_option,
)
from lowtide.cli.command import Command, examples
from lowtide.errors import UsageError
from lowtide.stages.stop_signals import listen_for_stops

if TYPE_CHECKING:
    from lowtide.stages.choose_run import Asked


@click.command(
    "train",
    cls=Command,
    epilog=examples(
        "lowtide train tokens --out run",
        "lowtide train tokens --model gpt2 --epochs 1 --memory 8GiB --out run",
        "lowtide train tokens --init pretrained --out tuned",
        "lowtide train --inbox batches --init pretrained --out run",
        read_on="docs/training.md, docs/finetuning.md and docs/inbox.md",
        note="Run the same command again to resume after any interruption.",
    ),
)
@click.argument("data", type=FILE, metavar="DATA", required=False)
@click.option(
    "--out",
    required=True,
    type=FOLDER,
    metavar="RUN",
    help="Folder of the run: new, or one to resume.",
)
@click.option(
    "--inbox",
    cls=Option,
    gives_way_to=("data",),
    type=FOLDER,
    metavar="FOLDER",
    help="Train on files as they appear there, without DATA.",
)
@click.option(
    "--until-empty",
    cls=Option,
    used_if=lambda chosen: chosen["inbox"] is not None,
    is_flag=True,
    help="With --inbox: end when no whole file is left.",
)
@click.option(
    "--plan",
    cls=Option,
    gives_way_to=("init",),
    type=FILE,
    metavar="FILE",
    help="Settings that `lowtide plan --write` wrote.",
)
@click.option(
    "--model",
    cls=Option,
    gives_way_to=("plan", "init"),
    metavar="NAME",
    help="Model, such as gpt2.  [default: what `lowtide plan` recommends]",
)
@click.option(
    "--context",
    cls=Option,
    gives_way_to=("plan", "init"),
    type=COUNT,
    help="Tokens in a window.  [default: 1024]",
)
@click.option(
    "--init",
    cls=Option,
    gives_way_to=("plan",),
    type=FOLDER,
    metavar="RUN|HF_DIR",
    help="Start from the weights of a run or of GPT-2.",
)
@click.option(
    "--epochs",
    cls=Option,
    gives_way_to=("steps",),
    type=float,
    metavar="N",
    help="Passes over the data.  [with --init: 3]",
)
@click.option(
    "--steps",
    cls=Option,
    gives_way_to=("epochs", "inbox"),
    type=COUNT,
    help="Steps of the whole run.",
)
@click.option("--batch-tokens", type=COUNT, help="Tokens of one step.")
@click.option("--micro-batch", type=COUNT, help="Windows that go through the model at a time.")
@click.option(
    "--recipe",
    type=click.Choice(["fast", "lean", "leanest"]),
    help="How much memory is traded for time.",
)
@click.option("--device", type=DEVICE, help="Where to train.  [default: cuda if there is one]")
@click.option(
    "--seed", type=SEED, metavar="N", help="Seed for weights and data order.  [default: 0]"
)
@peer_tokenizer_option
@click.option(
    "--memory",
    type=SIZE_OR_SHARE,
    metavar="SIZE",
    help="Budget such as 8GiB or 50%.  [default: leaves a quarter of the memory free]",
)
@click.option(
    "--wandb",
    cls=Option,
    command_line_only="it sends data out, and a file that lies in a folder must not",
    metavar="PROJECT",
    help="Send curves to Weights & Biases as well.",
)
@click.option(
    "--smoke",
    cls=Option,
    command_line_only="no run would go further than ten steps",
    is_flag=True,
    help="Only try it: ten steps, an evaluation, a checkpoint.",
)
@click.option(
    "--no-smoke",
    cls=Option,
    gives_way_to=("smoke",),
    is_flag=True,
    help="Begin a long run without trying it first.",
)
@click.option("--yes", is_flag=True, help="Begin a run that will take more than a week.")
@restart_option
@json_option
@quiet_option
@debug_option
def train_command(
    data: str | None,
    inbox: str | None,
    until_empty: bool,
    out: str,
    plan: str | None,
    memory: str | None,
    wandb: str | None,
    smoke: bool,
    no_smoke: bool,
    yes: bool,
    restart: bool,
    as_json: bool,
    quiet: bool,
    **wished: str | float | None,
) -> None:
    """Train a GPT on DATA, in the memory there is.

    DATA is a folder that lowtide wrote, or a file or folder of nanoGPT, llm.c, Megatron or numpy. RUN gets
    checkpoints, a log, curves for TensorBoard and a copy of the tokenizer.

    With --init, training starts from existing weights, at a lower learning rate, for three epochs.

    With --inbox every batch file that appears in FOLDER is tokenized and trained on once, for weeks if need be;
    FOLDER/lowtide.toml says how files are read. A file called .stop in RUN ends it.

    Several GPUs: torchrun --nproc-per-node=2 -m lowtide train DATA --out RUN
    """
    _let_segments_grow(os.environ)
    _let_threads_sleep(os.environ)
    os.environ["PYTHONSAFEPATH"] = (
        "1"  # torch's compiler starts Python, which would import from here
    )
    from lowtide.dataset.token_dataset import need_torch
    from lowtide.plan.measured import speeds_file
    from lowtide.stages.choose_run import Asked, choose_run

    need_torch("training needs torch", instead="")
    asked = Asked(plan=Path(plan) if plan else None, memory=memory, **wished)  # type: ignore[arg-type]
    speeds = speeds_file(os.environ)
    if data is None or inbox is not None:
        _refuse_mixtures(data, inbox, smoke=smoke)
        _train_on_inbox(str(inbox), out, asked, until_empty=until_empty, restart=restart, memory=memory,
                        wandb=wandb, speeds=speeds, as_json=as_json, quiet=quiet)  # fmt: skip
        return
    if until_empty:
        raise UsageError("DATA has an end of its own", remedy="leave `--until-empty` out")
    from lowtide.show.progress import show_progress

    with show_progress(quiet=quiet) as listen:  # until the run begins, a signal ends the command
        chosen = choose_run(
            data, out, asked, restart=restart, slurm=os.environ, speeds=speeds, listen=listen
        )
    from lowtide.show.training_results import show_smoke, show_trained
    from lowtide.stages.start_run import refuse_problems, start_run

    with listen_for_stops() as should_stop, show_progress(quiet=quiet) as listen:
        started = start_run(
            chosen,
            out,
            environment=os.environ,
            memory=memory,
            wandb=wandb,
            only_smoke=smoke,
            without_smoke=no_smoke,
            restart=restart,
            listen=listen,
            should_stop=should_stop,
            speeds=speeds,
            accepts_weeks=yes,
        )
    if started.smoke is not None and started.run is None:
        show_smoke(started.smoke, as_json=as_json)
        refuse_problems(started.smoke)
    if started.run is not None:
        show_trained(started.run, chosen.settings, as_json=as_json)


def _refuse_mixtures(data: str | None, inbox: str | None, *, smoke: bool) -> None:
    if data is None and inbox is None:
        raise UsageError(
            "there is nothing to train on",
            remedy="name DATA, such as the `--out` of `lowtide tokenize`, or pass `--inbox FOLDER`",
        )
    if data is not None:
        raise UsageError(
            f"both {data} and the inbox {inbox} are to be trained on",
            remedy="name DATA or pass `--inbox`, not both",
        )
    if smoke:
        raise UsageError(
            "--smoke needs DATA: an inbox has no data yet",
            remedy="leave `--smoke` out, or name DATA",
        )


def _train_on_inbox(
    inbox: str,
    out: str,
    asked: Asked,
    *,
    until_empty: bool,
    restart: bool,
    memory: str | None,
    wandb: str | None,
    speeds: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    from lowtide.stages.inbox.choose import choose_inbox_run

    chosen = choose_inbox_run(inbox, out, asked, restart=restart, slurm=os.environ, speeds=speeds)
    from lowtide.show.progress import show_progress
    from lowtide.show.training_results import show_inbox_run
    from lowtide.stages.inbox.train_on_inbox import start_inbox

    with listen_for_stops() as should_stop, show_progress(quiet=quiet) as listen:
        run = start_inbox(
            chosen,
            out,
            environment=os.environ,
            memory=memory,
            wandb=wandb,
            until_empty=until_empty,
            restart=restart,
            listen=listen,
            should_stop=should_stop,
        )
    show_inbox_run(run, chosen.run.settings, as_json=as_json)


def _let_segments_grow(environment: MutableMapping[str, str]) -> None:
    """PyTorch's allocator leaves fewer gaps that way; it asks before its first use. Who has chosen, has chosen.

    gpt2-medium with 10.7 GiB of tensors ran out of 11.4 without it.
    """
    if not {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"} & environment.keys():
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


def _let_threads_sleep(environment: MutableMapping[str, str]) -> None:
    """Threads that wait for each other sleep instead of spinning; libgomp asks once, when torch is loaded.

    With other work on both cores, gpt2-pico took 9.6 k tokens a second instead of 2.8 k.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & environment.keys():
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
