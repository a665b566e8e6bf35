"""plan.toml: the settings of a run with their reasons, for people to change and for `train` to read."""

from __future__ import annotations

import json
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

import msgspec

from lowtide.errors import UsageError
from lowtide.model.shape import ModelShape
from lowtide.plan.advise import choose_final_rate, choose_learning_rate, choose_warmup
from lowtide.plan.make_plan import Plan
from lowtide.plan.speed import UTILISATION
from lowtide.settings import nearest
from lowtide.storage.decode_json import convert_json, explain_field
from lowtide.storage.publish import storage_errors, write_atomically
from lowtide.training.settings import TrainSettings
from lowtide.units import format_bytes, format_count, format_seconds

_NO_REASON = ""


def write_plan(plan: Plan, path: Path) -> None:
    """The file is there, whole, afterwards; a link still points at it."""
    with storage_errors(path, doing="read"):
        place = path.resolve()
        if place.exists() and not place.is_file():
            raise UsageError(
                f"{path} is not a file to be replaced",
                remedy="pass a name such as `--write plan.toml`",
            )
    write_atomically(place, plan_text(plan).encode())


def plan_text(plan: Plan) -> str:
    """The file's text: one setting a line, the reason behind it."""
    settings, reasons = plan.settings, _reasons(plan)
    lines = [
        "# What `lowtide train --plan` reads. Change what you like; unknown names are refused.",
        f"# {plan.chosen.name}: {plan.reason}.",
        f"# Planned for {plan.machine.name} ({plan.machine.found}).",
        "",
    ]
    for field in fields(TrainSettings):
        value = getattr(settings, field.name)
        if field.name == "shape" or value is None:
            continue
        reason = reasons.get(field.name, _NO_REASON)
        lines.append(f"{field.name} = {_toml(value)}" + (f"  # {reason}" if reason else ""))
    lines += ["", "[shape]"]
    lines += [
        f"{field.name} = {getattr(settings.shape, field.name)}" for field in fields(ModelShape)
    ]
    return "\n".join(lines) + "\n"


def read_plan(path: Path) -> TrainSettings:
    """The settings in the file; UsageError with the key where one is unknown, missing or of another type."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"there is no plan {path}", remedy=f"write one with `lowtide plan DATA --write {path}`"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        raise UsageError(
            f"{path} cannot be read as TOML: {cause}",
            remedy=f"correct it, or write it again with `lowtide plan DATA --write {path}`",
        ) from cause
    shape = found.get("shape")
    _check_names(path, found, TrainSettings, "")
    if isinstance(shape, dict):
        _check_names(path, shape, ModelShape, "shape.")
    try:
        return convert_json(found, TrainSettings)
    except msgspec.ValidationError as cause:
        name, reason = explain_field(cause)
        problem = f"{path}: `{name}`: {reason}"
        raise UsageError(problem, remedy="correct that line of the file") from cause


def _check_names(path: Path, found: dict[str, object], kind: type, prefix: str) -> None:
    known = {field.name: field for field in fields(kind)}
    for name in found:
        if name not in known:
            meant = nearest(name, known)
            advice = f"did you mean `{prefix}{meant}`?" if meant else "remove that line"
            raise UsageError(f"{path}: there is no setting `{prefix}{name}`", remedy=advice)
    for name, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and name not in found:
            line = "a `[shape]` table" if name == "shape" else f"a line `{prefix}{name} = …`"
            raise UsageError(
                f"{path}: the setting `{prefix}{name}` is missing", remedy=f"add {line}"
            )


def _reasons(plan: Plan) -> dict[str, str]:
    chosen, settings = plan.chosen, plan.settings
    assert chosen.fit is not None
    fit = chosen.fit
    hours = "" if chosen.hours is None else f"; {format_seconds(3600 * chosen.hours)} predicted"
    room = format_bytes(plan.machine.budget_bytes)
    run_tokens = format_count(settings.steps * settings.batch_tokens)
    peak = f"{format_bytes(fit.needs.total)} at the peak, of {room} (predicted)"
    return {
        "model": f"{format_count(chosen.shape.parameter_count)} parameters",
        "batch_tokens": chosen.batch_tokens.reason,
        "micro_batch": f"windows at a time{f', {fit.parts} times a step' if fit.parts > 1 else ''}; {peak}",
        "steps": f"{run_tokens} tokens: {chosen.run_tokens.reason}{hours}",
        "learning_rate": choose_learning_rate(chosen.shape).reason,
        "final_learning_rate": choose_final_rate(settings.learning_rate).reason,
        "warmup_steps": choose_warmup(settings.steps, settings.batch_tokens).reason,
        "weight_decay": "GPT-3's; of matrices, not of biases and norms",
        "beta2": "GPT-3's; 0.999 forgets a spike too slowly",
        "clip": "GPT-3's; longer gradients are shortened to it",
        "recipe": _recipe_reason(settings.recipe),
        "precision": "there is no bfloat16 to gain from" if not plan.machine.bfloat16 else "",
        "windows": "examples are packed whole" if settings.windows == "document" else "",
        "attention": "no example looks into another" if settings.attention == "document" else "",
        "val_fraction": "held out of train, for there is no val" if settings.val_fraction else "",
        "compiled": f"hours assume {UTILISATION:.0%} of the peak" if settings.compiled else "",
    }


def _recipe_reason(recipe: str) -> str:
    return {
        "fast": "all activations fit: nothing is computed twice",
        "lean": "blocks run again in the backward pass: a third more arithmetic, a fifth of the activations",
        "leanest": "as lean, with 8-bit optimizer states: needs `pip install 'lowtide[gpu]'`",
    }[recipe]


def _toml(value: object) -> str:
    """JSON's numbers, texts, true and false are TOML's too, but for one character."""
    if isinstance(value, int) and value >= 10_000:
        return f"{value:_}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
