"""A learnt bit is a target: an epoch of windows asks for as many tokens as the manifest says are learnt."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowtide
from lowtide import TokenDataset, TokenizeSettings
from lowtide.source.examples.built_in import PLAIN, PLAIN_COMPLETION
from tests.laws.chats import PlainReference, Tokens, make_chats, read_examples, write_rows

CHATS = make_chats(8, count=60, longest=60)
PAIRS = [
    (asked, answer) for asked in ("", "a", "how high?") for answer in ("", "yes", "two, " * 40)
]
CONTEXTS = (2, 3, 7, 32)


def tokenize(folder: Path, **chosen: object) -> list[Tokens]:
    """The examples that stand in `folder` / out, once those rows are tokens."""
    if chosen["examples"] == "completion":
        rows = [{"prompt": asked, "completion": answer} for asked, answer in PAIRS]
    else:
        rows = [{"messages": chat} for chat in CHATS]
    source = write_rows(folder / "rows.jsonl", rows)
    settings = TokenizeSettings(template="plain", val=0.0, **chosen)  # type: ignore[arg-type]
    made = lowtide.tokenize([source], folder / "out", settings).manifest
    found = read_examples(folder / "out")
    assert made.examples
    assert made.examples.learnt_tokens == sum(sum(flags) for _, flags in found)
    return found


def count_targets(folder: Path, context: int) -> int:
    """Over an epoch. The dataset says the same."""
    dataset = TokenDataset(folder / "out", context=context)
    found = sum(int((y != -100).sum()) for _, y in dataset.epoch(16))
    assert dataset.learnt_tokens == found
    return found


@pytest.mark.parametrize("learn", ["all", "assistant"])
@pytest.mark.parametrize("policy", ["split", "truncate", "skip"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_every_learnt_bit_is_a_target(
    tmp_path: Path, learn: str, policy: str, context: int
) -> None:
    found = tokenize(tmp_path, examples="completion", learn=learn, too_long=policy, context=context)
    bits = sum(sum(flags) for _, flags in found)
    assert bits > 0
    assert all(len(ids) <= context and not flags[0] for ids, flags in found)
    for window in {context, 5, 64}:
        assert count_targets(tmp_path, window) == bits


@pytest.mark.parametrize("learn", ["all", "assistant"])
@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_split_costs_no_target(tmp_path: Path, learn: str, kind: str, context: int) -> None:
    tokenize(tmp_path, examples=kind, learn=learn, too_long="split", context=context)
    reference = PlainReference(PLAIN if kind == "chat" else PLAIN_COMPLETION)
    chats = CHATS
    if kind == "completion":
        chats = [[{"content": asked}, {"content": answer}] for asked, answer in PAIRS]
    flags = [reference.encode(chat)[1] for chat in chats]
    wanted = [[flag or learn == "all" for flag in one[1:]] for one in flags]
    assert count_targets(tmp_path, context) == sum(map(sum, wanted))
