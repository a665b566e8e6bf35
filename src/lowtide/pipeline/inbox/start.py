"""How a run over an inbox begins: what it needs is compared with what there is, and said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.events import Listener, Note
from lowtide.memory.budget import check_needs, choose_budget
from lowtide.memory.limits import machine_limit
from lowtide.pipeline.inbox.choose import ChosenInbox
from lowtide.pipeline.inbox.story import train_on_inbox
from lowtide.pipeline.start_run import open_boards
from lowtide.pipeline.watch_run import ShouldStop
from lowtide.training.build import cpu_in_words
from lowtide.training.data_parallel import ranks_of
from lowtide.training.run_results import InboxRun
from lowtide.units import format_bytes, format_count


def start_inbox(
    chosen: ChosenInbox,
    out: str | Path,
    *,
    environment: Mapping[str, str],
    memory: str | None,
    wandb: str | None,
    until_empty: bool,
    restart: bool,
    listen: Listener,
    should_stop: ShouldStop,
) -> InboxRun:
    """Train until a stop, or until the inbox is empty; one rank alone."""
    if ranks_of(environment).world_size > 1:
        raise UsageError(
            "an inbox is trained on by one process alone",
            remedy="start it without torchrun; or `lowtide tokenize` the files, and train on that by several",
        )
    budget = choose_budget(memory, machine_limit(slurm=environment), generous=True)
    needs = {**chosen.run.ram_needs, "tokenizing a file": chosen.inbox.least_bytes}
    check_needs(budget, needs)
    for line in opening_lines(chosen):
        listen(Note(text=line))
    return train_on_inbox(
        chosen.inbox,
        out,
        chosen.run.settings,
        until_empty=until_empty,
        memory=budget,
        restart=restart,
        listen=listen,
        should_stop=should_stop,
        environment=environment,
        peak_flops=chosen.run.peak_flops,
        boards=open_boards(wandb, Path(out), chosen.run.settings),
    )


def opening_lines(chosen: ChosenInbox) -> list[str]:
    """What is about to happen, for people."""
    settings, inbox = chosen.run.settings, chosen.inbox
    size = format_count(settings.shape.parameter_count)
    place = cpu_in_words() if settings.device == "cpu" else chosen.run.machine_name or "the GPU"
    kind = (
        "documents" if inbox.settings.examples == "none" else f"{inbox.settings.examples} examples"
    )
    epochs = f"{settings.epochs or 1:g} epoch{'' if settings.epochs == 1 else 's'}"
    lines = [
        f"{settings.model}, {size} parameters, windows of {settings.shape.context} tokens, recipe "
        f"{settings.recipe}, on {place}",
        f"{kind} from {inbox.folder}: {epochs} of each file, steps of "
        f"{format_count(settings.batch_tokens)} tokens, learning rate {settings.learning_rate:g} after "
        f"{settings.warmup_steps:,} step{'' if settings.warmup_steps == 1 else 's'}",
        f"a file is tokenized in {format_bytes(inbox.least_bytes)} or more, beside the model",
    ]
    if settings.init is not None:
        lines.append(f"from the weights of {settings.init}")
    return [*lines, "Ctrl-C saves and stops; the same command resumes the run"]
