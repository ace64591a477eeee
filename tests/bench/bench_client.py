"""`pxctl status` as a whole process, against the least that a program with click can be."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys

from bench_stage import BIN, EXAMPLES, ROOT, Row, daemon, interleaved, milliseconds, print_table, ratio, timed


def measure(rounds: int = 25) -> list[Row]:
    """Return the rows against `import click` and against an interpreter that does nothing."""
    # As pip leaves an installed package: under PYTHONDONTWRITEBYTECODE each call would compile what was edited.
    compileall.compile_dir(ROOT / "cli", quiet=1)
    with daemon([EXAMPLES / "compound-interest"]) as held:
        env = os.environ | {"PX_HOME": str(held.home)}

        def process(*argv: object) -> float:
            return timed(lambda: subprocess.run([str(a) for a in argv], env=env, stdout=subprocess.DEVNULL, check=True))

        figures = interleaved(
            {
                "status": lambda: process(BIN / "pxctl", "status"),
                "click": lambda: process(sys.executable, "-c", "import click"),
                "nothing": lambda: process(sys.executable, "-c", ""),
            },
            rounds,
        )
    ours = figures["status"]
    return [
        Row("against import click", milliseconds(ours), milliseconds(figures["click"]), ratio(ours, figures["click"])),
        Row(
            "against python -c ''",
            milliseconds(ours),
            milliseconds(figures["nothing"]),
            ratio(ours, figures["nothing"]),
        ),
    ]


if __name__ == "__main__":
    print_table("pxctl status, whole process: it, the other, times as long (target: 1.4x import click)", measure())
