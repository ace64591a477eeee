"""All benchmarks, one after the other. Nothing is asserted: a figure is to be read together with its neighbour."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ALL = (
    "bench_spawn",
    "bench_client",
    "bench_control",
    "bench_cold_start",
    "bench_warm_call",
    "bench_output",
    "bench_kernels",
    "bench_pipes",
    "bench_idle",
)


def main(wanted: list[str]) -> int:
    """Run each in a process of its own; return the number of those that failed."""
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, load {load}")
    chosen = [name for name in ALL if not wanted or name.removeprefix("bench_") in wanted or name in wanted]
    failed = [name for name in chosen if subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode]
    for name in failed:
        print(f"\n{name} failed", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
