"""What fits: the largest micro-batch for each recipe, and the recipe to take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowtide.errors import DoesNotFitError
from lowtide.memory.budget import advise_memory
from lowtide.model.needs import AttentionKind, MemoryNeeds, StepKind, peak_of_run
from lowtide.model.shape import ModelShape
from lowtide.plan.machine import Machine
from lowtide.settings import Device, Recipe
from lowtide.units import format_bytes

RECIPES: tuple[Recipe, ...] = ("fast", "lean", "leanest")
_BUSY_TOKENS: dict[Device, int] = {"cuda": 4096, "cpu": 1024}
"""Fewer at a time leave a GPU idle between kernels: then a leaner recipe with more of them is faster.
More at a time make a CPU no faster, and take more memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFit:
    """One recipe on one machine."""

    recipe: Recipe
    largest_micro_batch: int
    """Windows at a time; 0 where not even one fits."""
    kind: StepKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The recipe that was chosen, how a step is cut, and what it needs."""

    recipe: Recipe
    micro_batch: int
    parts: int
    kind: StepKind
    needs: MemoryNeeds


def runnable_recipes(machine: Machine) -> tuple[Recipe, ...]:
    """The recipes that can run there, the one that needs least memory last."""
    return RECIPES if machine.has_torchao else RECIPES[:-1]


def step_kind(
    machine: Machine,
    recipe: Recipe,
    *,
    accumulating: bool = True,
    attention: AttentionKind = "window",
) -> StepKind:
    """How a step runs there: compiled and in bfloat16 on a GPU that has it."""
    return StepKind(
        recipe=recipe,
        compiled=machine.device == "cuda",
        precision="bfloat16" if machine.bfloat16 else "float32",
        accumulating=accumulating,
        device=machine.device,
        attention=attention,
    )


def fit_recipes(
    shape: ModelShape,
    machine: Machine,
    *,
    windows_per_step: int,
    attention: AttentionKind = "window",
) -> list[RecipeFit]:
    """Every recipe with its largest micro-batch, which is never more than a whole step."""
    found = []
    for recipe in RECIPES:
        kind = step_kind(machine, recipe, attention=attention)
        largest = largest_micro_batch(shape, kind, machine.budget_bytes, most=windows_per_step)
        if recipe not in runnable_recipes(machine):
            largest = 0
        found.append(RecipeFit(recipe=recipe, largest_micro_batch=largest, kind=kind))
    return found


def largest_micro_batch(shape: ModelShape, kind: StepKind, budget_bytes: int, *, most: int) -> int:
    """The most windows at a time whose peak is within the budget, by halving; 0 where one is too many."""
    fits, too_many = 0, most + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if peak_of_run(shape, middle, kind).total <= budget_bytes:
            fits = middle
        else:
            too_many = middle
    return fits


def choose_fit(shape: ModelShape, recipes: list[RecipeFit], *, windows_per_step: int) -> Fit | None:
    """The first recipe that keeps the card busy, else the one that holds most; None where nothing fits."""
    able = [one for one in recipes if one.largest_micro_batch]
    if not able:
        return None
    device = able[0].kind.device
    enough = -(-_BUSY_TOKENS[device] // shape.context)
    busy = [one for one in able if one.largest_micro_batch >= enough]
    whole = [one for one in able if one.largest_micro_batch >= windows_per_step]
    first_best = max(able, key=lambda one: one.largest_micro_batch)
    chosen = (busy or whole or [first_best])[0]
    most = chosen.largest_micro_batch
    if device == "cpu":
        most = min(most, enough)
    parts = -(-windows_per_step // most)
    while windows_per_step % parts:  # equal parts: a short last one would waste a pass
        parts += 1
    micro_batch = windows_per_step // parts
    kind = replace(chosen.kind, accumulating=parts > 1)
    return Fit(
        recipe=chosen.recipe,
        micro_batch=micro_batch,
        parts=parts,
        kind=kind,
        needs=peak_of_run(shape, micro_batch, kind),
    )


def does_not_fit(
    what: str, needs_bytes: int, machine: Machine, *, remedy: str, recipe: Recipe = "fast"
) -> DoesNotFitError:
    """The refusal of what needs more memory than the machine has; on a CPU it names the `--memory` to pass.

    With more memory a plan may take another recipe: one that `needs_bytes` are not enough for.
    """
    has = f"{machine.name} has {format_bytes(machine.budget_bytes)} for it"
    if machine.ram is not None:
        has += f" beside {format_bytes(machine.taken_bytes)} for torch: memory is {machine.ram.in_words}"
        enough = int(needs_bytes / (1 - machine.slack_share)) + machine.taken_bytes
        same = f" with `--recipe {recipe}`" if recipe != "fast" else ""
        remedy = f"{advise_memory(machine.ram.limit, enough)}{same}; or {remedy}"
    return DoesNotFitError(f"{what}, and {has}", remedy=remedy)
