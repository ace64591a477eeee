"""All benchmarks, one after the other; a whole run leaves `bench.json`, and `bench.svg` with a bar
for each ratio.

Nothing is asserted: a figure is to be read together with its neighbour.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ALL = ("bench_daemon", "bench_tools", "bench_kernels", "bench_pipes", "bench_peers")
WIDTH, LEFT, LINE = 960, 470, 20
LEAST, MOST = 1 / 32, 8.0  # ends of the axis, as ratios


def bars(machine: str, tables: list[dict[str, Any]]) -> str:
    """Draw the ratios on a logarithmic axis; what lies left of 1 takes less of it than the
    alternative.
    """

    def at(ratio: float) -> float:
        share = math.log(min(max(ratio, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
        return LEFT + share * (WIDTH - LEFT - 60)

    drawn, y = [f'<text x="8" y="20">{escape(machine)}</text>'], 30
    for table in tables:
        rows = [row for row in table["rows"] if row["ratio"]]
        if rows:
            y += LINE + 8
            drawn.append(f'<text x="8" y="{y}" font-weight="bold">{escape(table["title"])}</text>')
        for row in rows:
            y += LINE
            ratio = float(row["ratio"].rstrip("x"))
            left, right = sorted((at(1.0), at(ratio)))
            bar = f'x="{left:.1f}" y="{y - 12}" width="{right - left:.1f}" height="14"'
            drawn.append(
                f'<text x="24" y="{y}">{escape(row["what"])}</text><rect {bar} fill="#4a7ebb"/>'
            )
            drawn.append(f'<text x="{right + 4:.1f}" y="{y}">{ratio:g}</text>')
    axis = f'<line x1="{at(1.0):.1f}" x2="{at(1.0):.1f}" y1="34" y2="{y + 8}" stroke="#888"/>'
    font = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 16}" {font}>'
    return "\n".join(
        (head, '<rect width="100%" height="100%" fill="white"/>', axis, *drawn, "</svg>\n")
    )


def main(wanted: list[str]) -> int:
    """Run each in a process of its own; return the number of those that failed."""
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    about = f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    print(f"{about}, load {load}", flush=True)
    chosen = [
        name
        for name in ALL
        if not wanted or name.removeprefix("bench_") in wanted or name in wanted
    ]
    with tempfile.NamedTemporaryFile("r") as collected:
        env = os.environ | {"BENCH_ROWS": collected.name}
        done = {
            name: subprocess.run([sys.executable, HERE / f"{name}.py"], env=env, check=False)
            for name in chosen
        }
        tables = [json.loads(line) for line in collected]
    if not wanted:
        day = time.strftime("%Y-%m-%d")
        whole = {"machine": about, "day": day, "tables": tables}
        (HERE / "bench.json").write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
        (HERE / "bench.svg").write_text(
            bars(f"{day}, {about}; bars: times the alternative, 1 is the line", tables)
        )
    failed = [name for name, run in done.items() if run.returncode]
    for name in failed:
        print(f"\n{name} failed", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
