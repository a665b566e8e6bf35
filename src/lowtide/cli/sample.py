"""`lowtide sample`: text out of a model."""

from __future__ import annotations

import sys

import click

from lowtide.cli.choices import COUNT, DEVICE, FOLDER, SEED, Option, debug_option, json_option
from lowtide.cli.command import Command, examples


@click.command(
    "sample",
    cls=Command,
    epilog=examples(
        "lowtide sample run --prompt 'The tide'",
        "lowtide sample run --prompt 'The tide' --samples 3 --temperature 1 --top-k 50",
        "… | lowtide sample run --prompt - --count 200",
        "lowtide sample tuned --chat --prompt 'What is the tide?'",
        read_on="docs/training.md",
    ),
)
@click.argument("path", type=FOLDER, metavar="RUN")
@click.option("--prompt", required=True, metavar="TEXT", help="What to go on from; - reads stdin.")
@click.option("--chat", is_flag=True, help="The prompt is a message; print the answer to it.")
@click.option(
    "--system",
    cls=Option,
    used_if=lambda chosen: chosen["chat"] is True,
    metavar="TEXT",
    help="System message before it, with --chat.",
)
@click.option("--count", type=COUNT, default=100, show_default=True, help="Most tokens to add.")
@click.option(
    "--temperature",
    type=float,
    metavar="N",
    default=0.8,
    show_default=True,
    help="0 takes the likeliest token.",
)
@click.option("--top-k", type=COUNT, metavar="N", help="Draw from the N likeliest tokens.")
@click.option("--top-p", type=float, metavar="P", help="Draw from the likeliest that make up P.")
@click.option(
    "--seed",
    type=SEED,
    metavar="N",
    default=0,
    show_default=True,
    help="Another seed, another text.",
)
@click.option("--samples", type=COUNT, default=1, show_default=True, help="How many texts.")
@click.option("--step", type=COUNT, metavar="N", help="Checkpoint to use.  [default: the newest]")
@click.option("--device", type=DEVICE, help="Where to run.  [default: a GPU with room]")
@json_option
@debug_option
def sample_command(
    path: str,
    prompt: str,
    chat: bool,
    system: str | None,
    count: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    samples: int,
    step: int | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Generate text from a prompt.

    RUN is a folder of `lowtide train`, also while it trains: the newest checkpoint speaks. Or the folder
    of a GPT-2 for Hugging Face, with safetensors. The text appears as it is made.

    With --chat the prompt goes through the chat template that the run keeps, the one its examples were
    tokenized with, and the answer ends where the template ends a turn.
    """
    from lowtide.dataset.token_dataset import need_torch

    need_torch("a model needs torch", instead="")
    from lowtide.show.progress import tell_a_person
    from lowtide.show.training_results import show_samples
    from lowtide.stages.sample import stream_samples

    text = sys.stdin.read() if prompt == "-" else prompt
    streams = stream_samples(
        path,
        text,
        count=count,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        samples=samples,
        step=step,
        device=device,
        chat=chat,
        system=system,
        listen=tell_a_person,
    )
    show_samples(text, streams, as_json=as_json, shows_prompt=not chat)
