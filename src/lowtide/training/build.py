"""A model and its optimizer, ready to train on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from lowtide.errors import DataError, DoesNotFitError, UsageError
from lowtide.memory.limits import machine_limit
from lowtide.model.gpt import EVERY_KERNEL, GPT, compile_model, document_mask, initialise
from lowtide.model.shape import ModelShape
from lowtide.training.data_parallel import Ranks
from lowtide.training.settings import TrainSettings
from lowtide.units import GIB, format_bytes

_TRIED = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
)
_TRIALS, _WINDOWS = 10, 16


def device_of(settings: TrainSettings, ranks: Ranks) -> torch.device:
    """The device of this rank; UsageError where a GPU was planned and none is there."""
    if settings.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError(
            "the run is planned for a GPU, and torch finds none",
            remedy="pass `--device cpu` (for small models), or install a torch that fits your GPU's driver",
        )
    if ranks.local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"rank {ranks.local_rank} has no GPU: there are {torch.cuda.device_count()}",
            remedy=f"start `torchrun --nproc-per-node={torch.cuda.device_count()}`",
        )
    torch.cuda.set_device(ranks.local_rank)
    return torch.device("cuda", ranks.local_rank)


def cpu_in_words() -> str:
    """The CPU with its threads, and what to do where others share it."""
    threads = torch.get_num_threads()
    told = f"the CPU with {threads} thread{'s' if threads > 1 else ''}"
    if threads > 1:
        told += " (`OMP_NUM_THREADS=1` is faster where other work shares the cores)"
    return told


def build_model(
    settings: TrainSettings, device: torch.device, *, load: Callable[[GPT], None] | None = None
) -> GPT:
    """A model with random weights or those that `load` copies into it; compiled where that is wanted."""
    model = GPT(settings.shape, recompute=settings.recipe != "fast")
    if load is None:
        initialise(model, settings.seed)
    else:
        load(model)
    model.to(device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        choose_attention(model, settings, device)
    if settings.compiled:
        compile_model(model)
    return model


@torch.no_grad()
def fill_first_rows(model: GPT, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Every parameter gets its numbers, one after another; of a longer table of positions, the first."""
    parameters = dict(model.named_parameters())
    for name, tensor in tensors:
        if not bool(tensor.isfinite().all()):
            raise DataError(
                f"{name} of the initial weights holds numbers that are not finite",
                remedy="pass an earlier checkpoint or another model as `--init`",
            )
        is_cut = name.startswith("position_")
        parameters[name].copy_(tensor[: len(parameters[name])] if is_cut else tensor)


def choose_attention(model: GPT, settings: TrainSettings, device: torch.device) -> None:
    """The fastest here, and the plain one where that cannot run."""
    kernels = [fastest_attention(settings, device), SDPBackend.MATH]
    for block in model.blocks:
        block.attention.kernels = kernels  # type: ignore[union-attr]


def fastest_attention(settings: TrainSettings, device: torch.device) -> SDPBackend:
    """Measured here, forward and backward: which one it is depends on card, driver and shape."""
    times = {kernel: _time_attention(kernel, settings, device) for kernel in _TRIED}
    usable = {kernel: seconds for kernel, seconds in times.items() if seconds is not None}
    if not usable:
        return EVERY_KERNEL[-1]
    return min(usable, key=lambda kernel: usable[kernel])


def _time_attention(
    kernel: SDPBackend, settings: TrainSettings, device: torch.device
) -> float | None:
    """Milliseconds of a few passes, with tensors that lie as the model's do; None where it cannot run."""
    shape = settings.shape
    size = (min(settings.micro_batch, _WINDOWS), shape.context, 3, shape.heads, shape.head_width)
    kind = torch.bfloat16 if settings.precision == "bfloat16" else torch.float32
    packed = torch.randn(size, device=device, dtype=kind, requires_grad=True)
    q, k, v = (one.transpose(1, 2) for one in packed.unbind(2))
    mask = None
    if settings.attention == "document":  # which not every kernel takes
        mask = document_mask(torch.zeros(size[:2], dtype=torch.int64, device=device), kind)
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    try:
        with sdpa_kernel([kernel]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says of each kernel why it cannot run
            for trial in range(2 * _TRIALS):
                if trial == _TRIALS:  # the first ones load and plan
                    _occupy(device)
                    began.record()
                mixed = functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, is_causal=mask is None
                )
                torch.autograd.grad(mixed, packed, mixed.detach(), retain_graph=True)
    except RuntimeError:  # torch's word for "not for this card, type or shape"
        return None
    ended.record()
    torch.cuda.synchronize(device)
    return float(began.elapsed_time(ended))


def _occupy(device: torch.device) -> None:
    """Work for some milliseconds, behind which passes queue up: else their launching would be timed."""
    square = torch.ones(4096, 4096, device=device, dtype=torch.bfloat16)
    for _ in range(50):
        square @ square


def empty_model(shape: ModelShape, device: str | None) -> GPT:
    """Of the right shape, its numbers not yet written: drawing them first would take a minute."""
    found = _find_device(shape, device)
    if found == "cpu":
        _check_room(4 * shape.stored_parameter_count)
    with torch.device("meta"):
        model = GPT(shape)
    return model.to_empty(device=found).eval()


def _check_room(weights_bytes: int) -> None:
    limit = machine_limit()
    if weights_bytes > limit.total_bytes:
        raise DoesNotFitError(
            f"the weights take {format_bytes(weights_bytes)}, and {limit.source} allows "
            f"{format_bytes(limit.total_bytes)}",
            remedy="free memory, or use a machine that has more",
        )


def _find_device(shape: ModelShape, asked: str | None) -> str:
    if asked == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "there is no GPU that torch can use", remedy="pass `--device cpu`, or leave it out"
        )
    if asked is not None or not torch.cuda.is_available():
        return asked or "cpu"
    free_bytes, _ = torch.cuda.mem_get_info()
    return "cuda" if free_bytes > 3 * 4 * shape.stored_parameter_count + GIB else "cpu"
