"""A plan for people, or with `--json` all its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from lowtide.report.results import print_json, say

if TYPE_CHECKING:
    from lowtide.plan.make_plan import ModelPlan, Plan


def show_plan(plan: Plan, *, written: str | None, as_json: bool) -> None:
    """The plan, and where it was written."""
    if as_json:
        print_json(_figures(plan))
        return
    click.echo(str(plan))
    if written:
        say(
            f"{'written':<18} {written}; start with `lowtide train {plan.data.path} --plan {written} --out RUN`"
        )


def _figures(plan: Plan) -> dict[str, object]:
    return {
        "data": msgspec.to_builtins(plan.data),
        "machine": {
            **msgspec.to_builtins(plan.machine),
            "slack_bytes": plan.machine.slack_bytes,
            "budget_bytes": plan.machine.budget_bytes,
        },
        "models": [_model(one) for one in plan.models],
        "chosen": plan.chosen.name,
        "reason": plan.reason,
        "settings": msgspec.to_builtins(plan.settings),
    }


def _model(one: ModelPlan) -> dict[str, object]:
    return {
        "name": one.name,
        "parameters": one.shape.parameter_count,
        "tokens_per_parameter": round(one.tokens_per_parameter, 3),
        "largest_micro_batch": {fit.recipe: fit.largest_micro_batch for fit in one.recipes},
        "recipe": one.fit.recipe if one.fit else None,
        "micro_batch": one.fit.micro_batch if one.fit else None,
        "parts": one.fit.parts if one.fit else None,
        "peak_bytes": one.fit.needs.total if one.fit else None,
        "memory_bytes": dict(one.fit.needs.parts()) if one.fit else None,
        "batch_tokens": int(one.batch_tokens.value),
        "steps": one.steps,
        "epoch_steps": one.epoch_steps,
        "chinchilla_steps": one.chinchilla_steps,
        "hours": None if one.hours is None else round(one.hours, 3),
        "hours_basis": one.speed.basis if one.speed else None,
    }
