"""Tokens come one by one, the same with and without a cache, and only those that may come."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import DataError, UsageError
from lowtide.model import generate as room
from lowtide.model.generate import Chooser, generate, generate_reference
from lowtide.model.gpt import GPT
from lowtide.model.shape import ModelShape
from lowtide.training.build import empty_model
from lowtide.units import GIB
from tests.model.plain_gpt import plain_logits
from tests.model.small import SMALL, lively, shapes

PATIENT = settings(deadline=None)


def loud(shape: ModelShape, seed: int = 0) -> GPT:
    """A model with opinions, in float64: two ways to the same logits draw the same token."""
    return lively(shape, seed=seed).double()


@PATIENT
@given(
    shape=shapes(),
    count=st.integers(0, 40),
    temperature=st.sampled_from([0.0, 0.1, 0.8, 3.0]),
    top_k=st.one_of(st.none(), st.integers(1, 400)),
    top_p=st.one_of(st.none(), st.floats(0.01, 1)),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_the_cache_changes_no_token(
    shape: ModelShape,
    count: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    data: st.DataObject,
) -> None:
    """Also far beyond the context, where it slides, and up to a token to stop at."""
    model = loud(shape, seed)
    known = st.integers(0, shape.vocabulary_size - 1)
    prompt = data.draw(st.lists(known, min_size=1, max_size=shape.context))
    stop = data.draw(st.one_of(st.none(), known))
    cached = generate(
        model,
        prompt,
        count=count,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
    )
    plain = generate_reference(
        model,
        prompt,
        count=count,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
    )
    found = list(cached)
    assert found == list(plain)
    assert len(found) == count or (stop is not None and len(found) < count)
    assert all(0 <= token < shape.vocabulary_size for token in found)
    assert stop not in found


def test_the_likeliest_tokens_are_those_of_a_plain_gpt() -> None:
    model = loud(SMALL)
    seen = [5, 9, 2]
    for token in generate(model, seen, count=SMALL.context - 3, temperature=0):
        with torch.no_grad():
            logits = plain_logits(model.state_dict(), SMALL, torch.tensor([seen]))
        assert token == int(logits[0, -1].argmax())
        seen = [*seen, token]


def test_a_full_context_slides_to_its_last_half() -> None:
    model = loud(SMALL)
    prompt = list(range(SMALL.context))
    first, second = generate(model, prompt, count=2, temperature=0)
    kept = [*prompt, first][-(SMALL.context // 2) :]
    assert [second] == list(generate(model, kept, count=1, temperature=0))


def test_each_token_costs_one_position(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    embed = GPT.embed

    def watch(self: GPT, tokens: torch.Tensor, first: int = 0) -> torch.Tensor:
        read.append(tokens.shape[1])
        return embed(self, tokens, first)

    monkeypatch.setattr(GPT, "embed", watch)
    list(generate(loud(SMALL), [1, 2, 3], count=SMALL.context - 2))
    assert read == [3, *[1] * (SMALL.context - 3)]
    read.clear()
    list(generate(loud(SMALL), [1, 2, 3], count=SMALL.context + 4))
    assert read.count(SMALL.context // 2) == 1


def test_a_seed_repeats_itself_and_another_differs() -> None:
    model = lively(SMALL)
    runs = [list(generate(model, [1], count=30, temperature=2, seed=seed)) for seed in (4, 4, 5)]
    assert runs[0] == runs[1] != runs[2]


def test_drawing_touches_no_random_numbers_of_others() -> None:
    model = lively(SMALL)
    state = torch.get_rng_state()
    list(generate(model, [1], count=3))
    assert torch.equal(state, torch.get_rng_state())


def test_gradients_stay_on_for_the_caller_between_tokens() -> None:
    model = lively(SMALL)
    for _ in generate(model, [1], count=3):
        assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_it_works_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert len(list(generate(lively(SMALL), [1, 2], count=20))) == 20


def test_tokens_come_as_they_are_made() -> None:
    endless = generate(lively(SMALL), [1], count=10**12, stop=None)
    assert len(list(itertools.islice(endless, 5))) == 5


def draws(chooser: Chooser, logits: list[float], count: int = 4000) -> list[float]:
    """How often each token is drawn, as a share."""
    numbers = torch.tensor(logits)
    found = torch.tensor([chooser.choose(numbers) for _ in range(count)])
    return (torch.bincount(found, minlength=len(logits)) / count).tolist()


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    logits = [0.0, 1.0, 2.0, -1.0]
    for temperature in (0.5, 1.0, 2.0):
        chooser = Chooser(temperature=temperature, top_k=None, top_p=None, seed=1)
        wanted = torch.softmax(torch.tensor(logits) / temperature, dim=0).tolist()
        assert draws(chooser, logits) == pytest.approx(wanted, abs=0.03)


def test_top_k_leaves_the_likeliest_in_their_proportion() -> None:
    chooser = Chooser(temperature=1.0, top_k=2, top_p=None, seed=1)
    shares = draws(chooser, [0.0, 1.0, 2.0, -1.0])
    assert shares[0] == shares[3] == 0
    assert shares[2] / shares[1] == pytest.approx(math.e, rel=0.15)


@pytest.mark.parametrize(
    ("top_p", "left"), [(0.01, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (1.0, 4)]
)
def test_top_p_leaves_the_fewest_that_reach_it(top_p: float, left: int) -> None:
    logits = [math.log(share) for share in (0.05, 0.3, 0.5, 0.15)]
    shares = draws(Chooser(temperature=1.0, top_k=None, top_p=top_p, seed=1), logits)
    assert sum(share > 0 for share in shares) == left
    assert [shares[token] > 0 for token in (2, 1, 3, 0)] == [True] * left + [False] * (4 - left)


def test_top_p_counts_within_what_top_k_leaves() -> None:
    logits = [math.log(share) for share in (0.4, 0.3, 0.2, 0.1)]
    shares = draws(Chooser(temperature=1.0, top_k=2, top_p=0.5, seed=1), logits)
    assert shares == [1.0, 0, 0, 0]  # 0.4 of 0.7


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e300])
def test_no_temperature_overflows(temperature: float) -> None:
    chooser = Chooser(temperature=temperature, top_k=None, top_p=None, seed=0)
    assert chooser.choose(torch.tensor([1.0, 3.0, 2.0])) in (0, 1, 2)
    if temperature < 1:
        assert chooser.choose(torch.tensor([1.0, 3.0, 2.0])) == 1


def test_a_model_gone_wrong_is_told() -> None:
    model = lively(SMALL)
    with torch.no_grad():
        model.final_norm.bias[0] = math.nan
    with pytest.raises(DataError, match="not finite"):
        next(generate(model, [1], count=1))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"prompt": []}, "empty prompt"),
        ({"prompt": [1] * (SMALL.context + 1)}, "13 tokens but the model sees 12"),
        ({"prompt": [SMALL.vocabulary_size]}, "the token 131"),
        ({"prompt": [-1]}, "the token -1"),
        ({"count": -1}, "-1 tokens"),
        ({"temperature": -0.1}, "temperature of -0.1"),
        ({"temperature": math.nan}, "temperature of nan"),
        ({"temperature": math.inf}, "temperature of inf"),
        ({"top_k": 0}, "--top-k 0"),
        ({"top_p": 0.0}, "0.0 is not a probability"),
        ({"top_p": 1.5}, "1.5 is not a probability"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_token(
    changed: dict[str, object], problem: str
) -> None:
    arguments = {"prompt": [1], "count": 1, **changed}
    with pytest.raises(UsageError, match=problem):
        generate(lively(SMALL), **arguments)  # type: ignore[arg-type]


def test_room_is_made_for_what_is_asked_and_not_for_the_whole_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    made = room._Cache

    def watch(model: GPT, positions: int) -> room._Cache:
        asked.append(positions)
        return made(model, positions)

    monkeypatch.setattr(room, "_Cache", watch)
    for count in (2, 1000):
        next(generate(lively(SMALL), [1, 2], count=count))
    assert asked == [4, SMALL.context]


def test_what_cannot_be_is_never_drawn_not_even_at_the_borders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Random numbers come from [0, 1), and rounding may reach 1: the unlikely ends must be right too."""
    logits = torch.tensor([-1e6, 0.0, 0.0, -1e6])
    for drawn, wanted in ((0.0, 1), (0.499, 1), (0.5, 2), (1.0, 2)):
        monkeypatch.setattr(torch, "rand", lambda *_, at=drawn, **__: torch.tensor(at).double())
        chooser = Chooser(temperature=1.0, top_k=None, top_p=None, seed=0)
        assert chooser.choose(logits) == wanted


def test_top_p_leaves_no_more_than_it_needs() -> None:
    logits = torch.zeros(4)
    for share, most in ((0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (1.0, 4)):
        chooser = Chooser(temperature=1.0, top_k=None, top_p=share, seed=0)
        drawn = {chooser.choose(logits) for _ in range(200)}
        assert drawn == set(range(most))


def test_a_gpu_that_is_nearly_full_is_left_to_who_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (GIB, 12 * GIB))
    model = empty_model(ModelShape(layers=1, heads=1, width=8, context=8, vocabulary_size=16), None)
    assert model.token_embedding.weight.device.type == "cpu"
