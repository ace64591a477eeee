"""What the room of pipes is told: its settings, and the places that it works in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.config.settings import PipesSettings

if TYPE_CHECKING:
    from pathlib import Path

TOKEN_FILE_VARIABLE = "PX_API_TOKEN_FILE"  # noqa: S105 - the name of a variable


class PipesConfig(PipesSettings, frozen=True, kw_only=True):
    """The settings of pipes; and what is none."""

    pipes_dir: Path  # folders of pipes
    examples_dir: Path  # pipes that ship with the package
    presets_file: Path  # beside the settings, as is the next; both may be absent
    agents_file: Path
    executions_dir: Path  # `<executions_dir>/<id>/` holds output files (0600) and private agent files of one execution
    socket: str  # path of the control socket
    api_host: str = "127.0.0.1"  # loopback address of the TCP listener, its port, and where its token lies, absolute
    api_port: int | None = None
    api_token_file: str | None = None
    preflight_seconds: float = 5.0  # so long providers are asked before a spawn; 0 for not at all
    row_bytes: int = 256 * 1024  # of each stream as text in the row (head and tail)

    @property
    def api(self) -> str:
        """Where agents find the API: the TCP port where there is a listener, else the control socket.

        The port asks for a token. The agent is told in which file it lies; the token itself is in no prompt.
        """
        if self.api_port is None:
            return f"unix socket {self.socket}"
        host = f"[{self.api_host}]" if ":" in self.api_host else self.api_host
        return f"http://{host}:{self.api_port} (bearer token in the file ${TOKEN_FILE_VARIABLE})"
