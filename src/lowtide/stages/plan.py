"""The story of `plan`: what can be trained on this data with this card, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from lowtide.dataset.find_tokens import count_targets, find_splits
from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import UsageError
from lowtide.model.shape import GPT2_VOCABULARY
from lowtide.plan.machine import Machine, choose_machine
from lowtide.plan.make_plan import Plan, PlanData
from lowtide.plan.make_plan import make_plan as plan_for
from lowtide.plan.measured import read_speeds
from lowtide.settings import PlanRequest
from lowtide.stages.settings import settings_from

_HELD_OUT = 0.005
_NO_SLURM: Mapping[str, str] = MappingProxyType({})


def make_plan(
    data: str | Path,
    asked: PlanRequest | None = None,
    *,
    machine: Machine | None = None,
    slurm: Mapping[str, str] = _NO_SLURM,
    speeds: Path | None = None,
    **chosen: object,
) -> Plan:
    """What to train on the dataset: `lowtide.make_plan("tokens", gpu="RTX 4070")`.

    Every flag of `lowtide plan` may be given by its name, or all of them as `asked`. Reads the manifest, or the
    sizes of a peer's files, and asks the driver for the card. Never loads torch. `speeds` is a file with speeds
    that were measured here before.
    """
    asked = asked or settings_from(PlanRequest, chosen, see="see `lowtide plan --help`")
    found = _with_windows(look_at_data(data, asked.tokenizer), asked.context)
    machine = machine or choose_machine(gpu=asked.gpu, vram=asked.vram, slurm=slurm)
    if asked.gpu is None and asked.vram is None:  # a card that was only named is not here
        known = read_speeds(speeds, machine.name)
        machine = replace(machine, measured=known + machine.measured)
    return plan_for(found, machine, asked)


def look_at_data(path: str | Path, tokenizer: str | None) -> PlanData:
    """How many tokens there are, and of which vocabulary."""
    splits = find_splits(path, tokenizer=tokenizer)
    train, val = splits.get("train"), splits.get("val")
    if train is None or not train.tokens:
        raise UsageError(
            f"{path} has no tokens in split train",
            remedy="make it again from more text: `lowtide tokenize INPUT... --out tokens`",
        )
    fraction = None if val is not None and val.tokens else _HELD_OUT
    kept = train.tokens if fraction is None else int(train.tokens * round(1 - fraction, 12))
    known = train.dataset.tokenizer
    return PlanData(
        path=str(path),
        train_tokens=kept,
        vocabulary_size=known.vocabulary_size if known else GPT2_VOCABULARY,
        vocabulary_known=known is not None,
        tokenizer=tokenizer,
        val_fraction=fraction,
        held_out_tokens=train.tokens - kept,
        learnt_tokens=count_targets(train),
    )


def _with_windows(found: PlanData, context: int | None) -> PlanData:
    """Examples are packed, to count the windows: how many are padded depends on their lengths."""
    if found.learnt_tokens is None or (context is not None and context < 1):
        return found
    data = TokenDataset(
        found.path,
        context=context or 1024,
        windows=found.windows,
        val_fraction=found.val_fraction,
        tokenizer=found.tokenizer,
    )
    return replace(found, epoch_windows=data.window_count)
