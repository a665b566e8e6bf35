"""The story of `sample`: a prompt into tokens, tokens that follow, and back into text as they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.events import Listener, Note, ignore
from lowtide.model.generate import generate
from lowtide.stages.chat import decode_answer, make_chat_prompt
from lowtide.stages.open_model import OpenedModel, open_model
from lowtide.tokenizer.tokenizer import Tokenizer, decode_stream


def sample(
    path: str | Path,
    prompt: str,
    *,
    count: int = 100,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    samples: int = 1,
    device: str | None = None,
    step: int | None = None,
    chat: bool = False,
    system: str | None = None,
) -> list[str]:
    """Texts that follow the prompt, without it: each at most `count` tokens long, or up to an end of text.

    With `chat`, the prompt is a user's message, after a `system` message if there is one, and the texts are the
    assistant's answers: both go through the chat template that the run keeps.
    """
    streams = stream_samples(
        path,
        prompt,
        count=count,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        samples=samples,
        device=device,
        step=step,
        chat=chat,
        system=system,
    )
    return ["".join(stream) for stream in streams]


def stream_samples(
    path: str | Path,
    prompt: str,
    *,
    count: int = 100,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    samples: int = 1,
    device: str | None = None,
    step: int | None = None,
    chat: bool = False,
    system: str | None = None,
    listen: Listener = ignore,
) -> Iterator[Iterator[str]]:
    """The same texts, each in pieces as they come; read one to its end before the next.

    Sample number i is drawn with `seed + i`, so that it can be had again alone. An empty prompt is an end of
    text: the model begins a document. All is checked, and the model is open, before this returns.
    """
    if samples < 1:
        raise UsageError(
            f"{samples} samples cannot be made", remedy="pass 1 or more as `--samples`"
        )
    if system is not None and not chat:
        raise UsageError("a system message needs a chat template", remedy="pass `--chat` as well")
    opened = open_model(path, step=step, device=device)
    listen(Note(text=f"the weights are those of {opened.source.name}"))
    tokenizer = _tokenizer_of(opened)
    asked = None
    if chat:
        assert opened.tokenizer_folder, "where there is a tokenizer, it has a folder"
        asked = make_chat_prompt(
            opened.tokenizer_folder, tokenizer, prompt, system=system, listen=listen
        )
    ids = asked.ids if asked else _encode(tokenizer, prompt)

    def tokens(number: int) -> Iterator[int]:
        return generate(
            opened.model,
            ids,
            count=count,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed + number,
            stop=tokenizer.end_of_text,
        )

    tokens(0)  # complains about what cannot be, before anything was shown
    if asked is None:
        return (decode_stream(tokenizer, tokens(number)) for number in range(samples))
    return (decode_answer(asked, tokenizer, tokens(number)) for number in range(samples))


def _tokenizer_of(opened: OpenedModel) -> Tokenizer:
    if opened.tokenizer is None:
        raise UsageError(
            f"{opened.source} has no tokenizer beside it, so text cannot be turned into tokens",
            remedy="run its `lowtide train` command again with `--tokenizer`, which copies it into the run, or "
            "call lowtide.model.generate.generate with token ids",
        )
    return opened.tokenizer


def _encode(tokenizer: Tokenizer, prompt: str) -> list[int]:
    ids = tokenizer.encode(prompt, special_in_text="token")
    if not ids and tokenizer.end_of_text is not None:
        return [tokenizer.end_of_text]
    return ids
