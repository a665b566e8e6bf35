"""What a plan says holds: it fits, one window more would not, the time is arithmetic, the advice works."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import DoesNotFitError, UsageError
from lowtide.model.needs import peak_of_run
from lowtide.model.shape import SHAPES
from lowtide.plan.advise import choose_batch_tokens, choose_learning_rate, choose_warmup
from lowtide.plan.cards import CARDS
from lowtide.plan.machine import Machine, choose_machine
from lowtide.plan.make_plan import Plan, PlanData, make_plan, now_and_then
from lowtide.plan.measured import MeasuredSpeed, read_speeds, remember_speed
from lowtide.plan.plan_file import plan_text, read_plan, write_plan
from lowtide.plan.speed import predict_speed
from lowtide.settings import PlanRequest, Recipe

STORY = PlanData(
    path="tokens",
    train_tokens=14_000_000_000,
    vocabulary_size=50257,
    vocabulary_known=True,
    tokenizer=None,
    val_fraction=None,
)
OWNED = [card.name for card in CARDS]


def plan(gpu: str = "RTX 4070", *, tokens: int = STORY.train_tokens, **wishes: object) -> Plan:
    data = replace(STORY, train_tokens=tokens)
    return make_plan(data, choose_machine(gpu=gpu), PlanRequest(**wishes))  # type: ignore[arg-type]


@pytest.mark.parametrize("gpu", OWNED)
def test_what_is_said_to_fit_fits_and_one_window_more_does_not(gpu: str) -> None:
    made = plan(gpu)
    budget = made.machine.budget_bytes
    for model in made.models:
        for recipe in model.recipes:
            most = recipe.largest_micro_batch
            whole = int(model.batch_tokens.value) // model.shape.context
            assert most == 0 or peak_of_run(model.shape, most, recipe.kind).total <= budget
            assert most == whole or peak_of_run(model.shape, most + 1, recipe.kind).total > budget
        if model.fit:
            assert model.fit.needs.total <= budget
            assert (
                model.fit.micro_batch * model.fit.parts * model.shape.context
                == model.batch_tokens.value
            )


def test_the_story_of_a_12_gb_card_is_answered() -> None:
    """760 M does not fit but with 8-bit states; gpt2 does, in days; the parts of memory add up to the card."""
    made = plan("RTX 4070")
    by_name = {one.name: one for one in made.models}
    assert by_name["gpt2-xl"].fit is None
    assert [fit.largest_micro_batch for fit in by_name["gpt2-large"].recipes][:2] == [0, 0]
    assert made.chosen.name == "gpt2"
    assert made.chosen.hours is not None
    assert 10 < made.chosen.hours < 100
    assert "gpt2-medium would take" in made.reason
    assert made.settings.batch_tokens == 1 << 19


def test_more_time_never_recommends_a_smaller_model() -> None:
    sizes = [
        plan(hours=hours).chosen.shape.parameter_count for hours in (0.1, 1, 10, 100, 1000, 10000)
    ]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 3


@pytest.mark.parametrize("hours", [1, 48, 400])
def test_the_hours_that_there_are_are_kept(hours: float) -> None:
    made = plan(hours=hours)
    assert made.chosen.hours is not None
    assert made.chosen.hours <= hours * 1.01


def test_data_that_is_too_little_holds_the_model_down() -> None:
    made = plan("H200", tokens=200_000_000)
    assert made.chosen.name == "gpt2-micro"
    assert "tokens a parameter" in made.reason
    tiny = plan("H200", tokens=100_000)
    assert tiny.chosen.name == "gpt2-pico"
    assert "less than 20 tokens" in tiny.reason


def test_a_run_never_sees_its_data_more_than_four_times_unless_asked() -> None:
    made = plan("H200", tokens=1_000_000)
    assert made.settings.steps * made.settings.batch_tokens <= 4.1 * 1_000_000
    asked = plan("H200", tokens=1_000_000, model="gpt2")
    more = make_plan(
        replace(STORY, train_tokens=1_000_000),
        choose_machine(gpu="H200"),
        PlanRequest(model="gpt2", tokens=50_000_000),
    )
    assert more.settings.steps * more.settings.batch_tokens == pytest.approx(50_000_000, rel=0.01)
    seen = asked.settings.steps * asked.settings.batch_tokens
    assert seen <= 4.1 * 1_000_000 < more.settings.steps * more.settings.batch_tokens


@pytest.mark.parametrize("model", ["gpt2-pico", "gpt2-nano", "gpt2-mini", "gpt2", "gpt2-medium"])
def test_as_many_tokens_are_as_many_steps(model: str) -> None:
    """A run as long as Chinchilla has it, or as one epoch, has the steps that are named for that."""
    chosen = plan("H200", tokens=10**10, model=model).chosen
    assert chosen.steps == chosen.chinchilla_steps
    once = plan("H200", tokens=123_456_789, model=model)
    asked = make_plan(
        replace(STORY, train_tokens=123_456_789),
        choose_machine(gpu="H200"),
        PlanRequest(model=model, tokens=123_456_789, batch_tokens=once.settings.batch_tokens),
    )
    assert asked.chosen.steps == once.chosen.epoch_steps


def test_hours_are_tokens_times_arithmetic_over_what_the_card_reaches() -> None:
    made = plan("RTX 4070", model="gpt2")
    settings = made.settings
    evaluated = settings.steps // settings.evaluate_every * settings.evaluate_windows * 1024
    tokens = settings.steps * settings.batch_tokens + evaluated / 3
    seconds = tokens * made.chosen.shape.flops_per_token / (58.3e12 * 0.35)
    assert made.chosen.hours == pytest.approx(seconds / 3600, rel=0.001)  # with evaluations
    assert made.chosen.speed is not None
    assert "assumed: 35%" in made.chosen.speed.basis


@given(steps=st.integers(1, 200) | st.integers(1, 100_000), most=st.sampled_from([250, 1000]))
def test_a_short_run_is_evaluated_ten_times_at_most(steps: int, most: int) -> None:
    every = now_and_then(steps, most=most)
    assert steps // every <= 10 or every == most
    assert every > 1 or steps <= 10


def test_a_speed_that_was_measured_is_said_to_be() -> None:
    speed = plan("H200", model="gpt2").chosen.speed
    assert speed is not None
    assert "measured on such a card" in speed.basis


def test_what_was_measured_here_is_used_for_it_and_for_others() -> None:
    here = choose_machine(gpu="RTX 4070")
    small = plan("RTX 4070", model="gpt2-mini").chosen.shape
    measured = MeasuredSpeed(
        machine="RTX 4070", recipe="fast", tokens_per_second=50_000.0, shape=small
    )
    known = replace(here, measured=(measured,))
    speed = predict_speed(small, known, "fast")
    assert speed is not None
    assert (speed.tokens_per_second, speed.basis) == (50_000.0, "measured here")
    larger = plan("RTX 4070", model="gpt2").chosen.shape
    other = predict_speed(larger, known, "lean")
    assert other is not None
    arithmetic = 50_000 * small.flops_per_token / larger.flops_per_token
    assert other.tokens_per_second == pytest.approx(arithmetic * 3 / 4)
    assert "51.5M model on this machine" in other.basis


def test_speeds_are_remembered_by_machine_shape_and_recipe(tmp_path: Path) -> None:
    path, shape = tmp_path / "cache" / "speeds.json", plan("H200", model="gpt2").chosen.shape

    def remember(machine: str, recipe: Recipe, rate: float) -> None:
        told = MeasuredSpeed(machine=machine, recipe=recipe, tokens_per_second=rate, shape=shape)
        remember_speed(path, told)

    remember("T4", "fast", 1.0)
    remember("T4", "lean", 2.0)
    remember("L4", "fast", 3.0)
    remember("T4", "fast", 4.0)
    assert [one.tokens_per_second for one in read_speeds(path, "T4")] == [2.0, 4.0]
    remember("T4", "fast", math.nan)
    assert len(read_speeds(path, "T4")) == 2
    path.write_text("[{]")
    assert read_speeds(path, "T4") == ()
    remember("T4", "fast", 5.0)
    assert [one.tokens_per_second for one in read_speeds(path, "T4")] == [5.0]
    assert read_speeds(None, "T4") == ()
    (tmp_path / "file").write_text("")
    remember_speed(tmp_path / "file" / "speeds.json", read_speeds(path, "T4")[0])


def test_a_model_that_does_not_fit_is_refused_and_the_advice_works() -> None:
    with pytest.raises(DoesNotFitError, match="gpt2-xl needs") as told:
        plan("RTX 4070", model="gpt2-xl")
    advised = re.search(r"`--model (\S+)`", told.value.remedy)
    assert advised
    assert plan("RTX 4070", model=advised[1]).chosen.name == advised[1]


def test_where_no_context_helps_a_card_is_advised() -> None:
    huge = replace(STORY, vocabulary_size=200_000)
    tight = choose_machine(vram="900MiB")
    with pytest.raises(DoesNotFitError, match="gpt2-pico needs") as told:
        make_plan(huge, tight, PlanRequest())
    advised = re.search(r"`--gpu '(.+?)'`", told.value.remedy)
    assert advised
    assert make_plan(huge, choose_machine(gpu=advised[1]), PlanRequest()).chosen.fit


def test_a_card_whose_speed_is_not_known_has_no_hours() -> None:
    made = make_plan(STORY, choose_machine(vram="12GiB"), PlanRequest(model="gpt2"))
    assert made.chosen.hours is None
    assert "not known" in str(made)
    with pytest.raises(UsageError, match="how fast"):
        make_plan(STORY, choose_machine(vram="12GiB"), PlanRequest(hours=48))


def test_a_card_without_bfloat16_is_planned_in_float32() -> None:
    assert plan("T4").settings.precision == "float32"
    assert plan("RTX 3060").settings.precision == "bfloat16"


def test_the_rate_is_gpt3s_at_its_own_sizes_and_falls_with_size() -> None:
    rates = [choose_learning_rate(shape).value for shape in SHAPES.values()]
    assert rates == sorted(rates, reverse=True)
    assert choose_learning_rate(SHAPES["gpt2"]).value == pytest.approx(6e-4, rel=0.02)
    assert choose_learning_rate(SHAPES["gpt2-medium"]).value == pytest.approx(3e-4, rel=0.02)
    assert choose_learning_rate(SHAPES["gpt2-large"]).value == pytest.approx(2.5e-4, rel=0.02)


@given(tokens=st.integers(1, 10**13), name=st.sampled_from(sorted(SHAPES)))
def test_a_step_is_always_whole_windows(tokens: int, name: str) -> None:
    shape = SHAPES[name]
    batch = choose_batch_tokens(shape, tokens, wanted=None).value
    assert batch % shape.context == 0
    assert 8 * shape.context <= batch <= 1 << 19


@given(steps=st.integers(1, 10**7), batch=st.sampled_from([8192, 1 << 15, 1 << 19]))
def test_warming_up_is_a_small_part_of_any_run(steps: int, batch: int) -> None:
    assert 1 <= choose_warmup(steps, batch).value <= max(1, steps * 0.05)


@given(
    gpu=st.sampled_from(OWNED),
    tokens=st.integers(2_000, 10**12),
    hours=st.none() | st.floats(0.01, 10_000),
)
def test_every_plan_can_be_written_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, gpu: str, tokens: int, hours: float | None
) -> None:
    made = plan(gpu, tokens=tokens, hours=hours)
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    write_plan(made, path)
    assert read_plan(path) == made.settings
    assert made.settings.warmup_steps <= made.settings.steps


def test_a_path_with_any_characters_is_read_back(tmp_path: Path) -> None:
    odd = replace(STORY, path='a "quoted"\\back\tslash\n#é')
    made = make_plan(odd, choose_machine(gpu="4070"), PlanRequest())
    write_plan(made, tmp_path / "plan.toml")
    assert read_plan(tmp_path / "plan.toml").data == odd.path


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("steps =", "stepps =", "there is no setting `stepps`"),
        ("micro_batch = 16", 'micro_batch = "many"', "`micro_batch`: expected `int`, got `str`"),
        ("layers = 12", "layers = 12.5", "`shape.layers`: expected `int`"),
        ("layers = 12", "", "the setting `shape.layers` is missing"),
        ("layers = 12", "layer = 12", "there is no setting `shape.layer`"),
        ("[shape]", "[shapes]", "there is no setting `shapes`"),
        ('recipe = "fast"', 'recipe = "quick"', "`recipe`: invalid enum value 'quick'"),
        ("clip = 1.0", "clip = ", "cannot be read as TOML"),
        ("batch_tokens = 524_288", "batch_tokens = 524_289", "is not a multiple of"),
        ("heads = 12", "heads = 11", "cannot be shared by 11 heads"),
    ],
)
def test_a_line_that_is_wrong_is_named(
    tmp_path: Path, before: str, after: str, problem: str
) -> None:
    text = plan_text(plan())
    assert before in text
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(UsageError, match=re.escape(problem)):
        read_plan(path)


def test_a_plan_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no plan") as told:
        read_plan(tmp_path / "plan.toml")
    assert "lowtide plan" in told.value.remedy


def test_every_choice_has_its_reason_in_the_file() -> None:
    text = plan_text(plan())
    for name in ("batch_tokens", "micro_batch", "steps", "learning_rate", "final_learning_rate",
                 "warmup_steps", "weight_decay", "recipe"):  # fmt: skip
        assert re.search(rf"^{name} = \S+  # \w", text, re.MULTILINE), name


def test_the_cpu_is_planned_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide.plan.machine.seen_cards", list)
    machine: Machine = choose_machine()
    made = make_plan(
        replace(STORY, train_tokens=5_000_000), machine, PlanRequest(model="gpt2-nano", context=256)
    )
    assert made.settings.device == "cpu"
    assert made.settings.precision == "float32"
    assert not made.settings.compiled
    assert "assumed" in str(made)
