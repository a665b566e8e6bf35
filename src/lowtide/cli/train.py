"""`lowtide train`: token shards into a GPT."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

import click

from lowtide.cli.choices import (
    FILE,
    FOLDER,
    Option,
    debug_option,
    json_option,
    quiet_option,
    restart_option,
    setting_options,
)
from lowtide.cli.command import Command, examples
from lowtide.settings import TrainRequest
from lowtide.stages.stop_signals import listen_for_stops


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
    cls=Option,
    group="output",
    sample="run",
    required=True,
    type=FOLDER,
    metavar="RUN",
    help="Folder of the run: new, or one to resume.",
)
@setting_options(TrainRequest)
@restart_option
@json_option
@quiet_option
@debug_option
def train_command(
    data: str | None, out: str, restart: bool, as_json: bool, quiet: bool, **chosen: object
) -> None:
    """Train a GPT on DATA, in the memory there is.

    DATA is a folder that lowtide wrote, or a file or folder of nanoGPT, llm.c, Megatron or numpy. RUN gets
    checkpoints, a log, curves for TensorBoard and a copy of the tokenizer.

    With --init, training starts from existing weights, at a lower learning rate, for three epochs.

    With --inbox every batch file that appears in FOLDER is tokenized and trained on once, for weeks if need be;
    FOLDER/lowtide.toml says how files are read. A file called .stop in RUN ends it.

    Several GPUs: torchrun --nproc-per-node=2 -m lowtide train DATA --out RUN
    """
    _prepare_for_torch(os.environ)
    from lowtide.dataset.token_dataset import need_torch
    from lowtide.plan.measured import speeds_file
    from lowtide.show.progress import show_progress
    from lowtide.stages.resolve_run import resolve_run
    from lowtide.stages.settings import settings_from

    need_torch("training needs torch", instead="")
    asked = settings_from(TrainRequest, chosen, see="see `lowtide train --help`")
    speeds = speeds_file(os.environ)
    with show_progress(quiet=quiet) as listen:  # until the run begins, a signal ends the command
        run = resolve_run(
            data,
            out,
            asked,
            restart=restart,
            environment=os.environ,
            speeds=speeds,
            listen=listen,
        )
    from lowtide.show.training_results import show_training
    from lowtide.stages.train import refuse_problems, start_training

    with listen_for_stops() as should_stop, show_progress(quiet=quiet) as listen:
        result = start_training(
            run,
            asked,
            restart=restart,
            environment=os.environ,
            listen=listen,
            should_stop=should_stop,
            speeds=speeds,
        )
    if result is not None:
        show_training(result, run.settings, as_json=as_json)
        refuse_problems(result)


_QUIETLY_SET = {
    # PyTorch's allocator leaves fewer gaps: gpt2-medium with 10.7 GiB of tensors ran out of 11.4 without it.
    ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"): "expandable_segments:True",
    # Threads that wait for each other sleep: with other work on both cores, gpt2-pico took 9.6 k tokens/s and
    # not 2.8 k.
    ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"): "PASSIVE",
}
"""Values of the first variable of each row, which libraries read when torch is loaded."""


def _prepare_for_torch(environment: MutableMapping[str, str]) -> None:
    """Set what torch and its libraries read. Where one variable of a row is set, it is kept."""
    for names, value in _QUIETLY_SET.items():
        if not set(names) & environment.keys():
            environment[names[0]] = value
    environment["PYTHONSAFEPATH"] = (
        "1"  # torch's compiler starts Python, which would import from here
    )
