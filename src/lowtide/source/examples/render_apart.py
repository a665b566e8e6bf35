"""A Jinja template, rendered in a process of its own: whatever it does, the stage is not killed.

Rows that are read ahead (`expect`) are rendered in one go: asking for each would take longer than rendering it.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Mapping, Sequence

from lowtide.child import Child, ran_out_of_memory
from lowtide.errors import SharedFaultError, UsageError
from lowtide.settings import Learn
from lowtide.source.examples.piece_builder import PieceBuilder
from lowtide.source.examples.render_protocol import (
    Answer,
    BadExample,
    Compiled,
    Fault,
    Messages,
    NoMemory,
    Rendered,
    Setup,
    TooLarge,
    decode_answers,
    encode_batch,
    encode_setup,
)
from lowtide.source.examples.token_names import CONFIG_FILE, TokenNames
from lowtide.source.examples.turns import BadExampleError, Turn
from lowtide.source.rows import too_large
from lowtide.units import format_bytes, printable

_MODULE = "lowtide.source.examples.render_child"
_ENDED_BY_TIME = -signal.SIGPROF if hasattr(signal, "SIGPROF") else 1
_MEND = "fix the template, or choose another"
_LARGER = "pass a larger `--memory` if the example is large, or fix the template"
_SIMPLER = "write it more simply; a chat template takes a page. Or pass a larger `--memory`"


class JinjaTemplate:
    """Renders rows through Jinja: slower than the built-in ones, and as wide as Hugging Face's templates."""

    whole_messages = True

    def __init__(self, setup: Setup, names: TokenNames) -> None:
        """`names` are the special tokens that the setup offers as variables."""
        self.name = setup.name
        self.source = setup.source
        self.digest = hashlib.sha256(setup.source.encode()).hexdigest()
        self._setup = setup
        self._ahead: list[list[Turn]] = []
        self._answers: dict[int, Answer] = {}
        self._has_rendered = False
        self._used: list[str] = []
        self._child: Child | None = self._start()
        self.tokens: Mapping[str, str] = {
            each: names.tokens[each] for each in self._used if each in names.tokens
        }
        unknown = [each for each in self._used if each not in names.tokens]
        if unknown and not names.is_complete:
            self.close()
            raise UsageError(
                f"template {self.name} uses {' and '.join(unknown)}, and no {CONFIG_FILE} beside the tokenizer "
                f"says which token that is",
                remedy=f"put the tokenizer's {CONFIG_FILE} beside it, or write the token into the template",
            )

    def close(self) -> None:
        """End the process at once. Whoever renders again starts a new one."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def expect(self, examples: Sequence[list[Turn]]) -> None:
        """Announce examples that `render` will be called for: they may be rendered in one go."""
        self._ahead = list(examples)
        self._answers = {}

    def render(self, turns: list[Turn], learn: Learn, builder: PieceBuilder) -> None:
        """Append the text of an example, in parts of which some are in the loss mask."""
        if id(turns) not in self._answers:
            self._ask(turns, learn)
        answer = self._answers.pop(id(turns))
        if isinstance(answer, Rendered):
            first = len(builder.parts)
            builder.learnt += [first + number for number in answer.learnt]
            builder.parts += answer.parts
        elif isinstance(answer, BadExample):
            raise BadExampleError(answer.reason)
        elif isinstance(answer, TooLarge):
            raise too_large("the example", answer.size_bytes, self._setup.limits.example_bytes)
        elif isinstance(answer, Fault):
            raise SharedFaultError(f"template {self.name} {answer.what}", remedy=answer.remedy)
        else:
            raise SharedFaultError(
                f"template {self.name} needs more memory for one example than the "
                f"{format_bytes(self._setup.limits.memory_bytes)} that it may take",
                remedy=_LARGER,
            )

    def _ask(self, turns: list[Turn], learn: Learn) -> None:
        """Have the example rendered, and those announced after it."""
        at = next((i for i, ahead in enumerate(self._ahead) if ahead is turns), None)
        # The very first goes alone: with a hostile template, nothing has to be rendered twice.
        examples = [turns] if at is None or not self._has_rendered else self._ahead[at:]
        child = self._child = self._child or self._start()
        try:
            request = encode_batch((learn, [_messages(each) for each in examples]))
        except (
            RecursionError,
            ValueError,
        ) as error:  # the latter for a number of thousands of digits
            if len(examples) == 1:
                raise BadExampleError(
                    "is nested too deeply, or holds too large a number"
                ) from error
            return self._ask_alone(turns, learn)
        self._asked += 1
        answered = child.ask(request)
        if answered is None:
            self._child = None
            answers = [self._explain_end(child, "for one example")]
        else:
            answers = decode_answers(answered)
        self._has_rendered = True
        is_short = any(isinstance(answer, NoMemory) for answer in answers)
        if (len(examples) > 1 and self._child is None) or (is_short and self._asked > 1):
            return self._ask_alone(turns, learn)
        self._answers |= zip(map(id, examples), answers, strict=False)
        return None

    def _ask_alone(self, turns: list[Turn], learn: Learn) -> None:
        """Ask for one at a time from here on, in a new process: earlier examples must not decide the answer."""
        self.close()
        self.expect([])
        self._ask(turns, learn)

    def _start(self) -> Child:
        child = Child(_MODULE)
        self._asked = 0
        answered = child.ask(encode_setup(self._setup))
        if answered is None:
            answer = self._explain_end(child, "to compile")
        else:
            (answer,) = decode_answers(answered)
        if isinstance(answer, NoMemory):
            limit = format_bytes(self._setup.limits.memory_bytes)
            answer = Fault(f"takes more than {limit} to compile", _SIMPLER)
        if isinstance(answer, Fault):
            child.end()
            raise UsageError(f"template {self.name} {answer.what}", remedy=answer.remedy)
        assert isinstance(answer, Compiled)
        self._used = answer.used
        return child

    def _explain_end(self, child: Child, doing: str) -> Answer:
        """The reason that the child ended without an answer."""
        code, said = child.end()
        if code == _ENDED_BY_TIME:
            seconds = self._setup.limits.cpu_seconds
            return Fault(f"takes more than {seconds:g} seconds of CPU time {doing}", _MEND)
        if ran_out_of_memory(code):
            return NoMemory()
        return Fault(f"ended its process with code {code}: {printable(said[-200:])}", _MEND)


def _messages(turns: Sequence[Turn]) -> Messages:
    return [turn.message or {"role": turn.role, "content": turn.content} for turn in turns]
