"""The argv of an execution. Pure. Long prompts never stand in it, keys never."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.pipes.agents.refusals import CannotRunError
from supervisord_py.pipes.agents.spec import PromptBy
from supervisord_py.pipes.agents.templates import fill, missing
from supervisord_py.pipes.execution import ErrorType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisord_py.pipes.agents.spec import AgentSpec, Piece
    from supervisord_py.pipes.agents.templates import Values

ARGUMENT_BYTES = 64 * 1024
"""Linux takes 128 KiB in one argument; what is so long is better in a file or on stdin long before."""


def command_line(spec: AgentSpec, values: Values, prompt: str, *, history: bool) -> tuple[str, ...]:
    """Return the argv, its program as the adapter names it.

    Raises:
        CannotRunError: `config_error`: a gap has no value, or the prompt does not fit into an argument.
    """
    session = spec.session_argv if history and spec.supports_history else spec.fresh_argv
    before = fill_pieces(spec.name, (*spec.argv, *session, *spec.extra_argv), values)
    if spec.prompt is PromptBy.ARG:
        check_argument(spec.name, prompt, guarded="--" in {word for piece in spec.prompt_argv for word in piece.words})
        values = {**values, "prompt": prompt}
    return (*before, *fill_pieces(spec.name, spec.prompt_argv, values))


def fill_pieces(agent: str, pieces: Iterable[Piece], values: Values) -> tuple[str, ...]:
    """Fill the gaps; an optional piece with a missing one is left out.

    Raises:
        CannotRunError: `config_error`: a piece that is not optional has a gap without a value.
    """
    words: list[str] = []
    for piece in pieces:
        filled = [fill(word, values) for word in piece.words]
        if None not in filled:
            words += [word for word in filled if word is not None]
        elif not piece.optional:
            raise needs(agent, next(gap for word in piece.words for gap in missing(word, values)))
    return tuple(words)


def needs(agent: str, gap: str) -> CannotRunError:
    """Return the error of an agent that cannot do without a value."""
    return CannotRunError(
        ErrorType.CONFIG_ERROR,
        f"the agent {agent!r} needs a {gap}, and neither the preset nor the pipe names one",
        hint=f'write {gap} = "…" into the preset, or {gap}: … into pipe.md',
    )


def check_argument(agent: str, prompt: str, *, guarded: bool) -> None:
    """Refuse a prompt that cannot be an argument.

    Raises:
        CannotRunError: `config_error`.
    """
    size = len(prompt.encode("utf-8", "surrogatepass"))
    if size > ARGUMENT_BYTES:
        why = f"is {size} bytes long, and an argument may have {ARGUMENT_BYTES}"
    elif not guarded and prompt.startswith(("-", "@")):
        why = f"begins with {prompt[0]!r} and would be read as an option or a file"
    elif "\0" in prompt:
        why = "holds a NUL"
    else:
        return
    raise CannotRunError(
        ErrorType.CONFIG_ERROR,
        f"the prompt {why}, and the agent {agent!r} takes it as an argument",
        hint='write prompt = "stdin" or prompt = "file" for the agent in agents.toml',
    )
