"""From data and a machine to a plan: every model with what it needs, and the one to take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowtide.dataset.settings import WindowKind
from lowtide.errors import DoesNotFitError, UsageError
from lowtide.model.needs import AttentionKind, bytes_of_checkpoint, peak_of_run
from lowtide.model.shape import SHAPES, ModelShape, find_shape
from lowtide.plan.advise import (
    CHINCHILLA,
    MOST_EPOCHS,
    Choice,
    choose_batch_tokens,
    choose_final_rate,
    choose_learning_rate,
    choose_run_tokens,
    choose_warmup,
)
from lowtide.plan.fit import (
    Fit,
    RecipeFit,
    choose_fit,
    does_not_fit,
    fit_recipes,
    runnable_recipes,
    step_kind,
)
from lowtide.plan.machine import Machine
from lowtide.plan.speed import Speed, hours_of_run, predict_speed
from lowtide.settings import PlanRequest
from lowtide.training.settings import EVALUATED_WINDOWS, TrainSettings
from lowtide.units import format_bytes, format_count, format_seconds

REASONABLE_HOURS = 7 * 24
"""Without `--hours`, a model that takes longer than a week is not recommended."""

CPU_HOURS = 0.5
"""On a CPU a run that nobody gave a size or a length to ends within the hour, also where the machine is half as
fast as it was when it was timed."""

_EVALUATED_SHARE = 0.3
"""Of the windows between two evaluations: without the way back, these take a tenth of the time."""
_FEWEST_EVALUATED = 4

MOST_BETWEEN_EVALUATIONS, MOST_BETWEEN_CHECKPOINTS = 250, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanData:
    """The data, as far as a plan is concerned."""

    path: str
    train_tokens: int
    vocabulary_size: int
    vocabulary_known: bool
    tokenizer: str | None
    """As it was named, for files that do not name theirs."""
    val_fraction: float | None
    """Share to hold out, where there is no val."""
    held_out_tokens: int = 0
    """That share of the file's tokens: beside `train_tokens`, not among them."""
    learnt_tokens: int | None = None
    """Of examples, those that are targets; None for text, which all is."""
    epoch_windows: int | None = None
    """Windows that the examples are packed into, at the plan's context; None for text, which fills them."""

    @property
    def windows(self) -> WindowKind:
        """Examples are packed whole; text is cut as it comes."""
        return "contiguous" if self.learnt_tokens is None else "document"

    @property
    def attention(self) -> AttentionKind:
        """No example looks into another."""
        return "window" if self.learnt_tokens is None else "document"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """One model on the machine."""

    name: str
    shape: ModelShape
    recipes: tuple[RecipeFit, ...]
    fit: Fit | None
    """None where it does not fit."""
    speed: Speed | None
    run_tokens: Choice
    batch_tokens: Choice
    train_tokens: int
    epoch_tokens: int
    """What the windows of an epoch hold, with the padding behind examples."""

    @property
    def steps(self) -> int:
        """Of the run."""
        return self._steps_for(int(self.run_tokens.value))

    @property
    def epoch_steps(self) -> int:
        """To see every window once."""
        return self._steps_for(self.epoch_tokens)

    @property
    def chinchilla_steps(self) -> int:
        """To see twenty tokens for each parameter."""
        return self._steps_for(CHINCHILLA * self.shape.parameter_count)

    def _steps_for(self, tokens: int) -> int:
        """Whole steps that see at least so many tokens: one rule, so that equal tokens are equal steps."""
        return max(1, -(-tokens // int(self.batch_tokens.value)))

    @property
    def hours(self) -> float | None:
        """Of the run; None where the speed is not known."""
        if self.speed is None:
            return None
        return hours_of_run(
            self.steps,
            batch_tokens=int(self.batch_tokens.value),
            evaluate_every=now_and_then(self.steps, most=MOST_BETWEEN_EVALUATIONS),
            evaluate_tokens=self.evaluate_windows * self.shape.context,
            speed=self.speed,
        )

    @property
    def evaluate_windows(self) -> int:
        """Of one evaluation: so many that all of them take a tenth of the time at most."""
        every = now_and_then(self.steps, most=MOST_BETWEEN_EVALUATIONS)
        between = every * self.batch_tokens.value / self.shape.context
        return min(EVALUATED_WINDOWS, max(_FEWEST_EVALUATED, int(_EVALUATED_SHARE * between)))

    @property
    def tokens_per_parameter(self) -> float:
        """What the data has, seen once."""
        return self.train_tokens / self.shape.parameter_count

    @property
    def is_fed(self) -> bool:
        """Whether the data, seen a few times, has twenty tokens for each parameter."""
        return MOST_EPOCHS * self.tokens_per_parameter >= CHINCHILLA


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every model that was looked at, the one to take, and why; as text, tables and sentences."""

    data: PlanData
    machine: Machine
    models: tuple[ModelPlan, ...]
    chosen: ModelPlan
    reason: str
    settings: TrainSettings

    def __repr__(self) -> str:
        hours = self.chosen.hours
        took = "" if hours is None else f", {format_seconds(3600 * hours)}"
        return (
            f"<Plan {self.chosen.name} on {self.machine.name}: {self.settings.steps} steps{took}>"
        )

    def __str__(self) -> str:
        from lowtide.plan.describe import describe_plan

        return describe_plan(self)


def make_plan(data: PlanData, machine: Machine, asked: PlanRequest) -> Plan:
    """A plan for the data on the machine; DoesNotFitError where no model that was asked for fits."""
    _check(asked, machine)
    if machine.device == "cpu" and not (asked.model or asked.hours or asked.tokens):
        asked = replace(asked, hours=CPU_HOURS)
    shapes = {asked.model: find_shape(asked.model)} if asked.model else SHAPES
    context = asked.context
    if data.windows == "contiguous" and data.train_tokens <= (context or 1024):
        raise UsageError(
            f"{data.path} has {format_count(data.train_tokens)} tokens to train on, too few for windows of "
            f"{context or 1024}",
            remedy="pass a smaller `--context`, or tokenize more text",
        )
    models = tuple(
        plan_model(
            name,
            shape.with_data(vocabulary_size=data.vocabulary_size, context=context),
            data,
            machine,
            asked,
        )
        for name, shape in shapes.items()
    )
    fitting = [one for one in models if one.fit]
    if not fitting:
        raise _does_not_fit(models, data, machine, asked)
    chosen, reason = _recommend(fitting, asked)
    settings = make_settings(chosen, data, machine)
    return Plan(
        data=data, machine=machine, models=models, chosen=chosen, reason=reason, settings=settings
    )


def plan_model(
    name: str, shape: ModelShape, data: PlanData, machine: Machine, asked: PlanRequest
) -> ModelPlan:
    """One model's figures. What the hours allow depends on the recipe, and that on the batch: twice around."""
    fit, speed, affordable = None, None, None
    epoch_tokens = (
        data.train_tokens if data.epoch_windows is None else data.epoch_windows * shape.context
    )
    for _ in range(2):
        run = choose_run_tokens(shape, epoch_tokens, wanted=asked.tokens, affordable=affordable)
        batch = choose_batch_tokens(shape, int(run.value), wanted=asked.batch_tokens)
        windows = int(batch.value) // shape.context
        recipes = fit_recipes(shape, machine, windows_per_step=windows, attention=data.attention)
        fit = choose_fit(shape, recipes, windows_per_step=windows)
        speed = predict_speed(shape, machine, fit.recipe if fit else "fast")
        if asked.hours is None or asked.tokens is not None or speed is None:
            break
        affordable = int(asked.hours * 3600 * speed.tokens_per_second)
    return ModelPlan(
        name=name,
        shape=shape,
        recipes=tuple(recipes),
        fit=fit,
        speed=speed,
        run_tokens=run,
        batch_tokens=batch,
        train_tokens=data.train_tokens,
        epoch_tokens=epoch_tokens,
    )


def make_settings(chosen: ModelPlan, data: PlanData, machine: Machine) -> TrainSettings:
    """What `train` would be told."""
    assert chosen.fit is not None
    rate = choose_learning_rate(chosen.shape).value
    batch_tokens = int(chosen.batch_tokens.value)
    return TrainSettings(
        model=chosen.name,
        shape=chosen.shape,
        data=data.path,
        val_fraction=data.val_fraction,
        tokenizer=data.tokenizer,
        windows=data.windows,
        attention=data.attention,
        batch_tokens=batch_tokens,
        micro_batch=chosen.fit.micro_batch,
        steps=chosen.steps,
        learning_rate=rate,
        final_learning_rate=choose_final_rate(rate).value,
        warmup_steps=int(choose_warmup(chosen.steps, batch_tokens).value),
        evaluate_every=now_and_then(chosen.steps, most=MOST_BETWEEN_EVALUATIONS),
        evaluate_windows=chosen.evaluate_windows,
        checkpoint_every=now_and_then(chosen.steps, most=MOST_BETWEEN_CHECKPOINTS),
        sample_every=now_and_then(chosen.steps, most=MOST_BETWEEN_CHECKPOINTS),
        recipe=chosen.fit.recipe,
        compiled=chosen.fit.kind.compiled,
        precision=chosen.fit.kind.precision,
        device=machine.device,
    )


def now_and_then(steps: int, *, most: int) -> int:
    """Ten times in a short run at most, and at least once in `most` steps of a long one.

    >>> [now_and_then(steps, most=250) for steps in (1, 10, 11, 51, 100, 100_000)]
    [1, 1, 2, 6, 10, 250]
    """
    return min(most, -(-steps // 10))


def checkpoint_bytes(chosen: ModelPlan) -> int:
    """Of one checkpoint on disk."""
    assert chosen.fit is not None
    return bytes_of_checkpoint(chosen.shape, chosen.fit.kind)


def _check(asked: PlanRequest, machine: Machine) -> None:
    for name in ("context", "hours", "tokens", "batch_tokens"):
        value = getattr(asked, name)
        if value is not None and not 0 < value < 1e18:
            raise UsageError(
                f"{name.replace('_', ' ')} cannot be {value}",
                remedy="pass a number above 0",
                setting=name,
            )
    if asked.hours is not None and machine.peak_flops is None:
        raise UsageError(
            f"how fast {machine.name} is, is not known, so hours cannot be counted",
            remedy="name the card besides: `--gpu 'RTX 4070'`",
        )


def _recommend(fitting: list[ModelPlan], asked: PlanRequest) -> tuple[ModelPlan, str]:
    """The largest that fits, is fed and done in time, and the reason."""
    if asked.model:
        return fitting[0], "the model that was asked for"
    largest = fitting[-1]
    fed = [one for one in fitting if one.is_fed]
    done = [one for one in fed if _is_in_time(one, asked)]
    if not done:
        smallest = fitting[0]
        if not fed:
            return (
                smallest,
                f"you have too little text even for the smallest model: {MOST_EPOCHS} passes give less than "
                f"{CHINCHILLA} tokens for each parameter",
            )
        return smallest, "the smallest: every larger one takes too long"
    chosen = done[-1]
    held_back = "the largest there is"
    if chosen is not largest:
        larger = fitting[fitting.index(chosen) + 1]
        held_back = _why_not(larger, asked)
    elif len(fitting) < len(SHAPES):
        held_back = "every larger one does not fit in memory"
    return chosen, f"the largest that fits, has tokens enough and is done in time; {held_back}"


def _is_in_time(one: ModelPlan, asked: PlanRequest) -> bool:
    if one.speed is None:
        return True
    limit = REASONABLE_HOURS if asked.hours is None else asked.hours
    if asked.tokens is not None:
        return (one.hours or 0.0) <= limit
    needed = CHINCHILLA * one.shape.parameter_count / one.speed.tokens_per_second / 3600
    return needed <= limit


def _why_not(larger: ModelPlan, asked: PlanRequest) -> str:
    if not larger.is_fed:
        return (
            f"{larger.name} would have {MOST_EPOCHS * larger.tokens_per_parameter:.1f} tokens a parameter "
            f"in {MOST_EPOCHS} epochs, and wants {CHINCHILLA}"
        )
    assert larger.speed is not None
    tokens = asked.tokens or CHINCHILLA * larger.shape.parameter_count
    hours = tokens / larger.speed.tokens_per_second / 3600
    within = f"{asked.hours:,.0f}" if asked.hours is not None else f"a week's {REASONABLE_HOURS}"
    return f"{larger.name} would take {hours:,.0f} hours, more than {within}"


def _does_not_fit(
    models: tuple[ModelPlan, ...], data: PlanData, machine: Machine, asked: PlanRequest
) -> DoesNotFitError:
    one = models[0]
    recipe = runnable_recipes(machine)[-1]
    needs = peak_of_run(one.shape, 1, step_kind(machine, recipe, attention=data.attention))
    return does_not_fit(
        f"{one.name} needs {format_bytes(needs.total)} for one window of {one.shape.context} tokens with the "
        f"recipe {recipe}",
        needs.total,
        machine,
        remedy=_what_fits(one, data, machine, asked),
    )


def _what_fits(one: ModelPlan, data: PlanData, machine: Machine, asked: PlanRequest) -> str:
    """A flag that works: a smaller model at the same context, or any at a smaller context."""
    wanted = one.shape.context
    for context in dict.fromkeys(
        (wanted, *(size for size in (512, 256, 128, 64) if size < wanted))
    ):
        for name, shape in reversed(SHAPES.items()):
            smaller = shape.with_data(vocabulary_size=data.vocabulary_size, context=context)
            if smaller.parameter_count > one.shape.parameter_count and asked.model:
                continue
            if plan_model(name, smaller, data, machine, asked).fit:
                flags = f"--model {name}" + (f" --context {context}" if context != wanted else "")
                return f"pass `{flags}`, the largest that fits; or plan for a card with more memory"
    return (
        "plan for a card with more memory, such as `--gpu 'RTX 4070'`, or use a smaller vocabulary"
    )
