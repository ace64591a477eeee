"""`pxctl completion`: the script that makes a shell complete commands, options and live names."""

from __future__ import annotations

import click

from pxctl.commanding import READS, declare
from pxctl.completion_scripts import SHELLS, script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "completion",
    effect=READS,
    examples=[
        "pxctl completion bash > ~/.local/share/bash-completion/completions/pxctl",
        "pxctl completion zsh > ~/.zfunc/_pxctl    # a directory of $fpath",
        "pxctl completion fish > ~/.config/fish/completions/pxctl.fish",
        'eval "$(pxctl completion bash)"    # this shell only',
    ],
)
@click.argument("shell", type=click.Choice(SHELLS))
def command(invocation: Invocation, shell: str) -> None:
    """Print a completion script. Names of tools and units are asked of the running daemon, in at most 0.1 s."""
    invocation.write(script(shell, click.get_current_context().find_root().command))
