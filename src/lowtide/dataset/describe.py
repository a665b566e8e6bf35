"""What a loader will see and hold, for people: figures of the dataset, memory apart from page cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowtide.memory.meter import measure_tree
from lowtide.units import format_bytes, format_count, printable

if TYPE_CHECKING:
    from lowtide.dataset.token_dataset import TokenDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """A dataset as its windows; as text, a few lines."""

    path: str
    format: str
    split: str
    tokens: int
    documents: int | None
    """None when no index knows them."""
    tokenizer: str | None
    files: int
    stored_bytes: int
    context: int
    windows: str
    order: str
    seed: int
    window_count: int
    """In an epoch."""
    padding_share: float
    """Of all positions in an epoch."""
    window_bytes: int
    """Private memory for one window of a batch: `x` and `y`, and its raw tokens."""
    private_bytes: int
    """Measured: what this process holds now, all of it."""
    mapped_bytes: int
    """Measured: page cache that it has mapped, tokens and libraries, which the kernel takes back at will."""
    exact: bool
    """False where the system offers only an estimate of the two."""
    learnt_tokens: int | None = None
    """Of examples, those that are targets; None for text, which all is."""

    def __str__(self) -> str:
        documents = "" if self.documents is None else f", {format_count(self.documents)} documents"
        files = "file" if self.files == 1 else "files"
        measured = "measured" if self.exact else "estimated"
        rows = [
            ("dataset", f"{self.path}, {self.format}, {format_bytes(self.stored_bytes)}"),
            (self.split, f"{format_count(self.tokens)} tokens{documents} in {self.files} {files}"),
            ("tokenizer", self.tokenizer or "not known"),
            (
                "epoch",
                f"{format_count(self.window_count)} {self.windows} windows of {self.context} tokens, "
                f"{_percent(self.padding_share)} padding, {self.order}, seed {self.seed}",
            ),
            ("a window", f"{format_bytes(self.window_bytes)} of private memory in a batch"),
            ("private", f"{format_bytes(self.private_bytes)} in this process ({measured})"),
            (
                "page cache",
                f"{format_bytes(self.mapped_bytes)} of mapped files, libraries among them: the kernel's "
                f"({measured})",
            ),
        ]
        if self.learnt_tokens is not None:
            share = _percent(self.learnt_tokens / max(1, self.tokens))
            learnt = f"{format_count(self.learnt_tokens)} tokens, {share} of them: others are not targets"
            rows.insert(2, ("learnt", learnt))
        return "\n".join(printable(f"{name:<12} {value}") for name, value in rows)


def _percent(share: float) -> str:
    return "under 0.01%" if 0 < share < 0.0001 else f"{share:.2%}"


def describe(dataset: TokenDataset) -> LoaderFacts:
    """Figures from the files and one look at this process; about a millisecond."""
    use = measure_tree()
    token_bytes = dataset.files[0].dtype.itemsize
    settings = dataset.settings
    return LoaderFacts(
        path=settings.path,
        format=dataset.format,
        split=settings.split,
        tokens=dataset.tokens,
        documents=dataset.document_count,
        tokenizer=dataset.tokenizer.name if dataset.tokenizer else None,
        files=len(dataset.files),
        stored_bytes=sum(file.file_bytes for file in dataset.files),
        context=dataset.context,
        windows=settings.windows,
        order=settings.order,
        seed=settings.seed,
        window_count=dataset.window_count,
        padding_share=dataset.padding_share,
        learnt_tokens=dataset.learnt_tokens,
        window_bytes=16 * dataset.context + token_bytes * (dataset.context + 1),
        private_bytes=use.private_bytes,
        mapped_bytes=use.mapped_file_bytes,
        exact=use.exact,
    )
