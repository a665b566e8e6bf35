# ruff: noqa: E501 - messages of libraries and kernels stand here as they were printed
"""A size is given a name where the settings bear it, a guess where little else fits, and none otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.guard.why.allocations import (
    Dimensions,
    RequestedSize,
    read_dimensions,
    read_gpu_figures,
    read_requested_size,
    recognise,
    round_as_torch,
)
from lowtide.units import GIB, MIB

GPT2 = Dimensions(batch=8, positions=1024, vocabulary=50304, width=768, heads=12, layers=12)


def asked(text: str) -> RequestedSize:
    found = read_requested_size(f"CUDA out of memory. Tried to allocate {text}. GPU 0 has")
    assert found is not None
    return found


def printed(size_bytes: int) -> str:
    """As torch prints a request: in blocks, with two decimals."""
    size = round_as_torch(size_bytes)
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.2f} MiB"


def test_the_logits_of_the_issue_are_recognised() -> None:
    match = recognise(asked("1.54 GiB"), GPT2, evaluating=True)
    assert match is not None
    assert match.product == "batch 8 × 1024 positions × 50304 vocabulary × 4 bytes"
    assert match.tensor == "the logits in eval"
    assert match.exact


@pytest.mark.parametrize(
    ("numbers", "width", "tensor"),
    [
        ((8, 1024, 50304), 4, "the logits"),
        ((8, 1024, 50304), 2, "the logits"),
        ((8, 12, 1024, 1024), 4, "the attention scores of one layer"),
        ((8, 1024, 3072), 2, "the hidden layer of an MLP"),
        ((8, 1024, 2304), 2, "queries, keys and values of one layer"),
        ((8, 1024, 768), 2, "the residual stream between two layers"),
        ((50304, 768), 4, "the token embedding, its gradient or one optimizer state of it"),
    ],
)
def test_with_settings_every_large_tensor_has_its_name(
    numbers: tuple[int, ...], width: int, tensor: str
) -> None:
    size = width
    for number in numbers:
        size *= number
    match = recognise(asked(printed(size)), GPT2)
    assert match is not None
    assert match.tensor == tensor
    assert match.product.endswith(f"{width} bytes")
    assert match.exact


@given(
    batch=st.integers(1, 64),
    positions=st.sampled_from([512, 1024, 2048]),
    vocabulary=st.integers(30_000, 260_000),
    width=st.sampled_from([2, 4]),
)
def test_logits_of_known_settings_are_always_found(
    batch: int, positions: int, vocabulary: int, width: int
) -> None:
    known = Dimensions(batch=batch, positions=positions, vocabulary=vocabulary)
    match = recognise(asked(printed(batch * positions * vocabulary * width)), known)
    assert match is not None
    assert match.exact
    assert match.tensor == "the logits"
    assert f"batch {batch} × {positions} positions" in match.product


def test_another_batch_is_solved_for_and_said_to_be_another() -> None:
    match = recognise(asked(printed(16 * 1024 * 50304 * 4)), GPT2)
    assert match is not None
    assert match.batch == 16
    assert not match.exact
    assert "the settings say 8" in match.caution


def test_the_batch_of_the_evaluation_counts_in_the_evaluation() -> None:
    known = Dimensions(batch=8, eval_batch=16, positions=1024, vocabulary=50304)
    size = asked(printed(16 * 1024 * 50304 * 4))
    in_eval = recognise(size, known, evaluating=True)
    assert in_eval is not None
    assert in_eval.exact
    in_training = recognise(size, known)
    assert in_training is not None
    assert not in_training.exact


def test_without_settings_it_is_a_guess_and_says_so() -> None:
    match = recognise(asked("1.54 GiB"), Dimensions())
    assert match is not None
    assert not match.exact
    assert match.product == "batch 8 × 1024 positions × 50304 vocabulary × 4 bytes"
    assert match.caution.startswith("a guess: GPT-2's vocabulary fits")


@pytest.mark.parametrize(
    "text", ["2.00 GiB", "512.00 MiB", "64.00 MiB", "6.00 GiB", "32.00 MiB", "26.00 MiB"]
)
def test_a_round_size_is_nobodys(text: str) -> None:
    assert recognise(asked(text), Dimensions()) is None


def test_what_fits_several_vocabularies_is_not_claimed() -> None:
    assert recognise(asked("3.91 GiB"), Dimensions()) is None


@pytest.mark.parametrize("text", ["20.00 MiB", "2.00 MiB"])
def test_torchs_blocks_for_small_tensors_tell_nothing(text: str) -> None:
    assert asked(text).is_small_block
    assert recognise(asked(text), GPT2) is None


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("python train.py --batch_size=8 --block_size=1024", Dimensions(batch=8, positions=1024)),
        ("--per-device-train-batch-size 4 --max-seq-length 2048", Dimensions(batch=4, positions=2048)),
        ('{"micro_batch": 8, "shape": {"context": 512, "vocabulary_size": 8000}}', Dimensions(batch=8, positions=512, vocabulary=8000)),
        ("defaulting to vocab_size of GPT-2 to 50304 (50257 rounded up)", Dimensions(vocabulary=50304)),
        ("GPTConfig(n_layer=12, n_head=12, n_embd=768, vocab_size=50257)", Dimensions(layers=12, heads=12, width=768, vocabulary=50257)),
        ("batch_size = 12\nOverriding: batch_size = 4", Dimensions(batch=4)),
        ("no numbers, batch_size=abc, my_batch_size_x=3, batch_size=0", Dimensions()),
    ],
)  # fmt: skip
def test_settings_are_read_where_people_name_them(text: str, known: Dimensions) -> None:
    assert read_dimensions(text) == known


def test_another_process_on_the_card_is_told_from_the_process_itself() -> None:
    alone = (
        "CUDA out of memory. Tried to allocate 546.00 MiB. GPU 0 has a total capacity of 15.77 GiB of which 514.19 MiB "
        "is free. Process 562167 has 15.25 GiB memory in use. Of the allocated memory 13.73 GiB is allocated by PyTorch, "
        "and 736.86 MiB is reserved by PyTorch but unallocated."
    )
    assert read_gpu_figures(alone).other_pid is None
    shared = alone.replace(
        "Process 562167 has 15.25", "Process 7 has 9.00 GiB memory in use. Process 562167 has 15.25"
    )
    assert read_gpu_figures(shared).other_pid == 7


def test_sizes_of_every_library_are_read() -> None:
    numpy = read_requested_size(
        "Unable to allocate 123. GiB for an array with shape (8,) and data type float64"
    )
    assert numpy is not None
    assert numpy.low_bytes <= 123 * GIB <= numpy.high_bytes
    for text in ("malloc of size 17179869184 failed", "memory allocation of 17179869184 bytes failed",
                 "DefaultCPUAllocator: can't allocate memory: you tried to allocate 17179869184 bytes.",
                 "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."):  # fmt: skip
        found = read_requested_size(text)
        assert found is not None, text
        assert found.low_bytes == found.high_bytes == 17179869184


def test_a_batch_that_nothing_names_is_said_to_be_concluded() -> None:
    known = Dimensions(positions=1024, vocabulary=50304)
    match = recognise(asked(printed(16 * 1024 * 50304 * 4)), known)
    assert match is not None
    assert match.batch == 16
    assert not match.exact
    assert match.caution == "its batch is concluded from the size"


@pytest.mark.parametrize(
    ("size_bytes", "block_bytes"),
    [
        (1000, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (33 * MIB, 34 * MIB),
        (8 * 1024 * 50257 * 4, 1572 * MIB),
    ],
)
def test_torch_asks_the_card_for_whole_blocks(size_bytes: int, block_bytes: int) -> None:
    assert round_as_torch(size_bytes) == block_bytes
