"""How long the keeper takes to answer a spawn: fork, session, limits, exec confirmed; against Popen of the same."""

from __future__ import annotations

import shutil
import subprocess

from bench_stage import Row, compared, print_table, resident_mib, timed

from keeper.keeper_rig import PLAIN_ARGV, Rig

SPAWNS = 300
TRUE = shutil.which("true") or "/bin/true"


def measure() -> list[Row]:
    """Spawn, and Popen, turn about, as the control plane of a keeper of our own."""
    ours, theirs = [], []
    with Rig() as rig:
        rig.argv = PLAIN_ARGV
        link = rig.up()
        for _ in range(SPAWNS + 20):
            order = rig.spec([TRUE])
            ours.append(timed(lambda order=order: link.call("spawn", **order)))  # type: ignore[misc]
            theirs.append(timed(lambda: subprocess.Popen([TRUE], start_new_session=True, pipesize=-1).wait()))
            link.event("gone", key=order["key"])
            link.call("release", key=order["key"])
            link.events.clear()
        memory = resident_mib(rig.pid)
    return [
        compared("spawn, exec confirmed", ours[20:], theirs[20:]),
        Row("fastest", f"{1000 * min(ours):.2f} ms", f"{1000 * min(theirs):.2f} ms"),
        Row("keeper, resident", f"{memory:.1f} MiB", "target: 14 MiB"),
    ]


if __name__ == "__main__":
    print_table("spawn: keeper's answer, Popen and wait of the same program (target: 3 ms)", measure())
