"""A plan as text: the data, the machine, a table of models, the memory of the chosen one, and what to do."""

from __future__ import annotations

from lowtide.plan.advise import CHINCHILLA
from lowtide.plan.make_plan import ModelPlan, Plan, checkpoint_bytes
from lowtide.units import format_bytes, format_count, format_seconds, printable

_HEADS = ("model", "parameters", "tokens/param", "fast", "lean", "leanest", "recipe", "peak",
          "steps × tokens", "hours")  # fmt: skip
_NAMES = {
    "copies": "bfloat16 copies",
    "workspace": "cuBLAS workspace",
}


def describe_plan(plan: Plan) -> str:
    """The whole plan, for a terminal of 112 columns."""
    chosen = plan.chosen
    lines = [*_facts(plan), "", *_table(plan), ""]
    lines += _rows(
        [
            ("choice", f"{chosen.name}: {plan.reason}"),
            *_choice_rows(plan),
            ("memory", f"{_peak_words(plan)}"),
            *[(f"  {name}", size) for name, size in _needs_rows(plan)],
            ("beside it", f"of {format_bytes(plan.machine.total_bytes)} in all"),
            *[(f"  {name}", size) for name, size in _other_rows(plan)],
        ]
    )
    return "\n".join(map(printable, lines))


def _facts(plan: Plan) -> list[str]:
    data, machine = plan.data, plan.machine
    vocabulary = f"a vocabulary of {data.vocabulary_size:,}"
    if not data.vocabulary_known:
        vocabulary += " (assumed: nothing names the tokenizer, `--tokenizer` does)"
    memory = machine.ram.size_in_words if machine.ram else format_bytes(machine.total_bytes)
    speed = "speed not known" if machine.peak_flops is None else _peak_speed(plan)
    learnt = data.learnt_tokens
    examples = "" if learnt is None else f" in examples, {format_count(learnt)} of them learnt"
    tokens = f"{format_count(data.train_tokens)} tokens to train on"
    if data.held_out_tokens:
        stored = format_count(data.train_tokens + data.held_out_tokens)
        tokens = f"{stored} tokens, {format_count(data.held_out_tokens)} of them to be held out"
    return _rows(
        [
            ("data", f"{data.path}: {tokens}{examples}, "
             f"{vocabulary}"),
            ("machine", f"{machine.name} ({machine.found}), {memory}, {speed}"),
        ]
    )  # fmt: skip


def _peak_speed(plan: Plan) -> str:
    machine = plan.machine
    kind = "bfloat16" if machine.bfloat16 else "float32"
    return f"{(machine.peak_flops or 0) / 1e12:,.1f} TFLOP/s in {kind} ({machine.peak_source})"


def _table(plan: Plan) -> list[str]:
    rows = [_HEADS, *(_cells(one) for one in plan.models)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADS))]
    lines = []
    for row in rows:
        cells = [f"{cell:<{width}}" if at in (0, 6) else f"{cell:>{width}}"
                 for at, (cell, width) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
        lines.append("  ".join(cells).rstrip())
    note = (
        "fast, lean, leanest: how many windows of one step fit in memory at a time (predicted). "
        f"tokens/param: tokens of one epoch for each parameter; Chinchilla recommends {CHINCHILLA}."
    )
    return [*lines, note]


def _cells(one: ModelPlan) -> tuple[str, ...]:
    most = [
        str(recipe.largest_micro_batch) if recipe.largest_micro_batch else "-"
        for recipe in one.recipes
    ]
    fed = f"{one.tokens_per_parameter:,.1f}"
    start = (one.name, format_count(one.shape.parameter_count), fed, *most)
    if one.fit is None:
        return (*start, "does not fit", "-", "-", "-")
    hours = "-" if one.hours is None else _hours(one.hours)
    batch = format_count(int(one.batch_tokens.value))
    peak = format_bytes(one.fit.needs.total)
    return (*start, one.fit.recipe, peak, f"{one.steps:,} × {batch}", hours)


def _choice_rows(plan: Plan) -> list[tuple[str, str]]:
    chosen = plan.chosen
    assert chosen.fit is not None
    fit, settings = chosen.fit, plan.settings
    each = f"{format_count(settings.batch_tokens)} tokens"
    parts = f"{fit.micro_batch} × {chosen.shape.context} tokens at a time"
    if fit.parts > 1:
        parts += f", {fit.parts} times"
    parts += f" ({fit.recipe})"
    tokens = format_count(settings.steps * settings.batch_tokens)
    rows = [
        ("a step", f"{each}: {parts}; {chosen.batch_tokens.reason}"),
        ("the run", f"{_steps(settings.steps)}, {tokens} tokens: {chosen.run_tokens.reason}"),
        ("epoch", f"{_steps(chosen.epoch_steps)}; {CHINCHILLA} tokens a parameter (Chinchilla) are "
         f"{_steps(chosen.chinchilla_steps)}"),
        ("rate", f"{settings.learning_rate:g} after {_steps(settings.warmup_steps)}, down to "
         f"{settings.final_learning_rate:g}"),
    ]  # fmt: skip
    if chosen.hours is not None and chosen.speed is not None:
        rate = format_count(round(chosen.speed.tokens_per_second))
        rows.append(("time", f"{_time(chosen.hours)} at {rate} tokens/s ({chosen.speed.basis})"))
    else:
        rows.append(("time", "not known: name the card with `--gpu`"))
    rows.append(("disk", f"{format_bytes(checkpoint_bytes(chosen))} a checkpoint"))
    return rows


def _peak_words(plan: Plan) -> str:
    fit = plan.chosen.fit
    assert fit is not None
    moment = {
        "head": "while logits are made",
        "last": "as the way back begins",
        "first": "as the way back ends",
        "embedding": "when the embedding's gradient is added",
        "evaluation": "in evaluation",
    }[fit.needs.moment]
    return f"{format_bytes(fit.needs.total)} at the peak, {moment} (predicted)"


def _needs_rows(plan: Plan) -> list[tuple[str, str]]:
    fit = plan.chosen.fit
    assert fit is not None
    return _sizes([(_NAMES.get(name, name), size) for name, size in fit.needs.parts() if size])


def _other_rows(plan: Plan) -> list[tuple[str, str]]:
    fit, machine = plan.chosen.fit, plan.machine
    assert fit is not None
    others = "CUDA and others" if machine.device == "cuda" else "libraries"
    return _sizes(
        [
            (others, machine.taken_bytes),
            (f"slack, {100 * machine.slack_share:.0f} %", machine.slack_bytes),
            ("left", machine.budget_bytes - fit.needs.total),
        ]
    )


def _sizes(rows: list[tuple[str, int]]) -> list[tuple[str, str]]:
    return [(name, f"{format_bytes(size):>10}") for name, size in rows]


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}" if hours >= 0.1 else f"{hours:.2g}"


def _time(hours: float) -> str:
    return f"{_hours(hours)} hours" if hours >= 1 else format_seconds(3600 * hours)


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def _rows(rows: list[tuple[str, str]]) -> list[str]:
    return [f"{name:<18} {value}" for name, value in rows]
