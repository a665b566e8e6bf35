"""A question through the chat template that a model keeps, and the answer out of what the model writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from lowtide.errors import LowtideError, UsageError
from lowtide.events import Listener, Note, ignore
from lowtide.source.examples.marks import MARK, assign_marks
from lowtide.source.examples.piece_builder import PieceBuilder
from lowtide.source.examples.templates import TEMPLATE_FILE, load_template
from lowtide.source.examples.token_names import NOTHING_KNOWN, read_token_names
from lowtide.source.examples.turns import BadExampleError, Turn
from lowtide.tokenizer.tokenizer import Tokenizer, decode_stream

SAMPLE_QUESTION = "Hello!"
"""The user's message that the samples of a run answer."""
_ANSWER = "lowtide's stand-in for an answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """What the model reads, and how it ends its turn."""

    text: str
    """As transformers' `apply_chat_template` writes it with `add_generation_prompt=True`."""
    ids: list[int]
    """Special tokens stand where the template wrote them; their names in a message are text."""
    stop_token: int | None
    stop_text: str
    """How the turn ends where the tokenizer has no token for it; else empty."""


def make_chat_prompt(
    folder: Path,
    tokenizer: Tokenizer,
    question: str,
    *,
    system: str | None = None,
    listen: Listener = ignore,
) -> ChatPrompt:
    """One user's turn by the template in `folder`, and the beginning of the assistant's.

    UsageError where there is no template, or it does not take these turns.
    """
    special = tokenizer.special_tokens
    names = {mark: name for name, mark in assign_marks(special).items()}
    turns = [Turn("system", system)] if system is not None else []
    turns.append(Turn("user", question))
    prompt = _render(folder, special, turns, add_generation_prompt=True)
    answered = _render(folder, special, [*turns, Turn("assistant", _ANSWER)])
    before, found, behind = answered.rpartition(_ANSWER)
    if found and before.startswith(prompt) and before.rstrip() != prompt.rstrip():
        missing = "the chat template does not use add_generation_prompt: the model is not told whose turn it is"
        listen(Note(text=missing, level="warning"))
    ends = MARK.search(behind) if found else None
    pieces = MARK.split(prompt)
    return ChatPrompt(
        text="".join(names.get(piece, piece) for piece in pieces),
        ids=[
            token
            for piece in pieces
            for token in ([special[names[piece]]] if piece in names else tokenizer.encode(piece))
        ],
        stop_token=special[names[ends.group()]] if ends else None,
        stop_text="" if ends or not found else behind.strip(),
    )


def prompt_for_samples(folder: Path, *, context: int, listen: Listener) -> ChatPrompt | None:
    """What a run's samples answer, by the template in `folder`; None where they begin like a text.

    That is for a run of plain text, for a template that does not take a question alone, which is told, and
    for windows that are shorter than the prompt.
    """
    if not (folder / TEMPLATE_FILE).is_file():
        return None
    try:
        prompt = make_chat_prompt(folder, Tokenizer.load(folder), SAMPLE_QUESTION)
    except LowtideError as reason:
        listen(Note(text=f"samples are written without the chat template: {reason.problem}"))
        return None
    return prompt if len(prompt.ids) <= context else None


def decode_answer(prompt: ChatPrompt, tokenizer: Tokenizer, ids: Iterator[int]) -> Iterator[str]:
    """The answer as text, in pieces as they come; what follows the end of the turn is left out."""
    turn = takewhile(lambda token: token != prompt.stop_token, ids)
    return read_answer(decode_stream(tokenizer, turn), prompt.stop_text)


def read_answer(pieces: Iterator[str], stop_text: str) -> Iterator[str]:
    """The pieces of a text before `stop_text`, without white space in front."""
    held, has_begun = "", False
    for piece in pieces:
        held += piece
        if not has_begun:
            held = held.lstrip()
            has_begun = bool(held)
        if stop_text and stop_text in held:
            yield held.partition(stop_text)[0]
            return
        begun = range(len(stop_text) - 1, 0, -1)  # what may be the beginning of the end waits
        ready = len(held) - next((n for n in begun if held.endswith(stop_text[:n])), 0)
        if ready:
            yield held[:ready]
        held = held[ready:]
    if held:
        yield held


def _render(
    folder: Path,
    special_tokens: Mapping[str, int],
    turns: list[Turn],
    *,
    add_generation_prompt: bool = False,
) -> str:
    """The text of the turns, special tokens as marks."""
    try:
        template = load_template(
            str(folder.absolute()),
            "chat",
            special_tokens=special_tokens,
            end_of_text=None,
            names=read_token_names(folder) or NOTHING_KNOWN,
            add_generation_prompt=add_generation_prompt,
        )
    except UsageError as error:
        raise UsageError(
            f"there is no chat template to answer by: {error.problem}",
            remedy="leave out `--chat` for a model of plain text; for a model that chats, tokenize with "
            "`--examples chat` and train on that: the run keeps the template",
        ) from error
    builder = PieceBuilder(delimiter=b"", learn="all")
    with closing(template):
        try:
            template.render(turns, "all", builder)
        except BadExampleError as error:
            raise UsageError(
                f"the chat template refuses this conversation: {error}",
                remedy="leave out `--system`, or pass another `--prompt`",
            ) from error
    return b"".join(builder.parts).decode()
