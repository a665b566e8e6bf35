"""`lowtide plan`: which model, how long, does it fit."""

from __future__ import annotations

import os
from pathlib import Path

import click

from lowtide.cli.choices import FILE, Option, debug_option, setting_options
from lowtide.cli.command import Command, examples
from lowtide.settings import PlanRequest


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
@setting_options(PlanRequest)
@click.option(
    "--write",
    cls=Option,
    group="output",
    sample="plan.toml",
    type=FILE,
    metavar="FILE",
    help="Write the plan there, for `train` to read.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
@debug_option
def plan_command(data: str, write: str | None, as_json: bool, **chosen: object) -> None:
    """Say what can be trained on DATA, before anything runs.

    DATA is a folder that lowtide wrote, or a file or folder of nanoGPT, llm.c, Megatron or numpy. Shows for
    each model whether it fits, how a step is cut, how long it takes, and which one to choose and why.
    """
    from lowtide.plan.measured import speeds_file
    from lowtide.show.training_results import show_plan
    from lowtide.stages.plan import make_plan
    from lowtide.stages.settings import settings_from

    asked = settings_from(PlanRequest, chosen, see="see `lowtide plan --help`")
    plan = make_plan(data, asked, slurm=os.environ, speeds=speeds_file(os.environ))
    if write:
        from lowtide.plan.plan_file import write_plan

        write_plan(plan, Path(write))
    show_plan(plan, written=write, as_json=as_json)
