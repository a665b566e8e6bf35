"""`lowtide plan`: which model, how long, does it fit."""

from __future__ import annotations

import os
from pathlib import Path

import click

from lowtide.cli.choices import COUNT, FILE, SIZE, debug_option, peer_tokenizer_option
from lowtide.cli.command import Command, examples


@click.command(
    "plan",
    cls=Command,
    epilog=examples(
        "lowtide plan tokens",
        "lowtide plan tokens --gpu 'RTX 4070' --hours 24",
        "lowtide plan tokens --model gpt2 --write plan.toml",
        "lowtide train tokens --plan plan.toml --out run",
        read_on="docs/planning.md",
    ),
)
@click.argument("data", type=FILE, metavar="DATA")
@click.option(
    "--model", metavar="NAME", help="Plan for this model alone, such as gpt2 or gpt2-medium."
)
@click.option(
    "--gpu",
    metavar="NAME",
    help="Card to plan for, such as 'RTX 4070'.  [default: the one found here]",
)
@click.option("--vram", type=SIZE, metavar="SIZE", help="Memory of the card, such as 12GiB.")
@click.option("--context", type=COUNT, help="Tokens in a window.  [default: 1024]")
@click.option(
    "--hours",
    type=float,
    metavar="N",
    help="Hours available: the largest model that finishes in them.",
)
@click.option("--tokens", type=COUNT, help="Tokens to train on.  [default: 20 for each parameter]")
@click.option("--batch-tokens", type=COUNT, help="Tokens of one step.  [default: by size]")
@peer_tokenizer_option
@click.option(
    "--write", type=FILE, metavar="FILE", help="Write the plan there, for `train` to read."
)
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
@debug_option
def plan_command(
    data: str,
    model: str | None,
    gpu: str | None,
    vram: str | None,
    context: int | None,
    hours: float | None,
    tokens: int | None,
    batch_tokens: int | None,
    tokenizer: str | None,
    write: str | None,
    as_json: bool,
) -> None:
    """Say what can be trained on DATA, before anything runs.

    DATA is a folder that lowtide wrote, or a file or folder of nanoGPT, llm.c, Megatron or numpy. Shows for
    each model whether it fits, how a step is cut, how long it takes, and which one to choose and why.
    """
    from lowtide.plan.measured import speeds_file
    from lowtide.show.training_results import show_plan
    from lowtide.stages.plan import make_plan

    plan = make_plan(
        data,
        model=model,
        gpu=gpu,
        vram=vram,
        context=context,
        hours=hours,
        tokens=tokens,
        batch_tokens=batch_tokens,
        tokenizer=tokenizer,
        slurm=os.environ,
        speeds=speeds_file(os.environ),
    )
    if write:
        from lowtide.plan.plan_file import write_plan

        write_plan(plan, Path(write))
    show_plan(plan, written=write, as_json=as_json)
