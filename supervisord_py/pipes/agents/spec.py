"""What an adapter is: how one agent CLI is started, asked, read, judged and stopped. Frozen values; data, not code."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.judging.values import SuccessRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.pipes.agents.versions import Version, VersionRange

TERM = 15


class PromptBy(StrEnum):
    """How the agent is given the prompt."""

    STDIN = "stdin"
    FILE = "file"
    """Its argv names `{prompt_file}`."""
    ARG = "arg"
    """In its argv; short prompts only."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Arguments that stand or fall together: with `optional` they are left out when a gap has no value."""

    words: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable; set only where every gap in `value` and in `when` has a value."""

    name: str
    value: str
    when: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PrivateFile:
    """A file written for one execution, 0600, at `path` below the agent's directory. One of `json` and `text` is set.

    Attributes:
        when: Gaps that must have a value, else it is not written.
        needs: Gaps that must have a value if it is written; without, the execution is a `config_error`.
    """

    path: str
    json: Any = None
    text: str | None = None
    when: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ByVersion:
    """A text that depends on the agent's version; the first row that fits counts. `agent` None fits every version."""

    text: str
    agent: VersionRange | None = None


@dataclass(frozen=True, slots=True)
class VersionRule:
    """How an agent's version is found, and which versions will do.

    Attributes:
        argv: Prints it, on either stream; empty = nobody asks.
        want: Others are `agent_incompatible`.
        tested: Others are warned about.
        cure: What to do about a wrong version.
    """

    argv: tuple[str, ...] = ()
    want: VersionRange | None = None
    tested: VersionRange | None = None
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class StopRule:
    """How the agent is ended. None takes the daemon's setting.

    Attributes:
        signal: First.
        grace_seconds: From the signal to KILL.
        settle_seconds: From "I am done" to the signal.
    """

    signal: int = TERM
    grace_seconds: float | None = None
    settle_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Ceilings of one execution; None takes the daemon's."""

    turns: int | None = None
    tokens: int | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class AuthCheck:
    """A command that says, by exit code 0, whether a provider's credentials are there; from a version on."""

    argv: tuple[Piece, ...]
    since: VersionRange | None = None


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One adapter.

    Attributes:
        argv: The command line; the first word is the program. Empty for `command`, whose argv is the pipe's own.
        fresh_argv, session_argv: Added without and with `history`; no `session_argv` = sessions are not supported.
        extra_argv: Added after those: for users.
        prompt_argv: Last.
        parser: Name of the output format.
        pass_env: Variables that pass from the daemon's environment; a last `*` is a prefix.
        key_variable: Is given the preset's key; by provider where `provider_keys` names one and there is no url.
        provider_keys: Variables that hold a provider's key; they pass where the preset names no key.
        no_key: Stands for the key where a provider with a url has none; None for nothing.
        provider_urls: Where a provider is, for presets that do not say.
        key_reference: How the agent's own files name `key_variable`.
    """

    name: str
    argv: tuple[Piece, ...]
    prompt: PromptBy = PromptBy.STDIN
    parser: str = "text"
    fresh_argv: tuple[Piece, ...] = ()
    session_argv: tuple[Piece, ...] = ()
    extra_argv: tuple[Piece, ...] = ()
    prompt_argv: tuple[Piece, ...] = ()
    env: tuple[Variable, ...] = ()
    pass_env: tuple[str, ...] = ()
    key_variable: str | None = None
    provider_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    no_key: str | None = None
    provider_urls: Mapping[str, str] = field(default_factory=dict)
    key_reference: tuple[ByVersion, ...] = ()
    files: tuple[PrivateFile, ...] = ()
    version: VersionRule = VersionRule()
    success: SuccessRule = field(default_factory=SuccessRule)
    stop: StopRule = StopRule()
    limits: AgentLimits = AgentLimits()
    auth_check: AuthCheck | None = None

    @property
    def supports_history(self) -> bool:
        """Whether it can go on with an earlier session."""
        return bool(self.session_argv)

    def reference(self, version: Version | None) -> str | None:
        """Return how the agent's files name the key; an unknown version counts as the newest, which stands last."""
        for row in self.key_reference:
            if row.agent is None or (version is not None and version in row.agent):
                return row.text
        return self.key_reference[-1].text if self.key_reference else None
