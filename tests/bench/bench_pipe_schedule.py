"""What a look at 1,000 schedules costs: when nothing is due, when one is, when the clock was set.

Against a plain loop, as many schedulers have it: at each tick parse each expression again with croniter, and reckon its
next time from the last one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

sys.path.insert(0, str(Path(__file__).parents[2]))

import structlog
from bench_stage import Row, interleaved, milliseconds, print_table, timed
from croniter import croniter

from supervisord_py.pipes.config import SchedulerLimits
from supervisord_py.pipes.scheduling.clock_watch import ClockWatch
from supervisord_py.pipes.scheduling.due import Progress
from supervisord_py.pipes.scheduling.grammar import parse_schedule
from supervisord_py.pipes.scheduling.scheduler import Candidate, Scheduler

if TYPE_CHECKING:
    from supervisord_py.pipes.scheduling.due import Due

PIPES = 1000
ROUNDS = 15
START = 1_795_262_400.0
ZONE = ZoneInfo("Europe/Berlin")


def expressions() -> list[str]:
    """Return hours, half hours, week days and months in about the mixture of real files."""
    chance = random.Random(7)
    forms = ("{m} * * * *", "*/30 {h}-23 * * *", "{m} {h} * * *", "{m} {h} * * 1-5", "{m} {h} 1 * *")
    return [chance.choice(forms).format(m=chance.randrange(60), h=chance.randrange(22)) for _ in range(PIPES)]


@dataclass
class Room:
    """A room of pipes whose clock the benchmark turns."""

    texts: list[str]
    wall: float = START
    boottime: float = 5000.0
    runs: int = 0
    pipes: dict[str, Candidate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for at, text in enumerate(self.texts):
            schedule = parse_schedule(text, timezone="Europe/Berlin").schedule
            self.pipes[f"p{at}"] = Candidate(f"p{at}", schedule, Progress(START))
        watch = ClockWatch(lambda: self.wall, lambda: self.boottime, lambda: self.boottime)
        limits = SchedulerLimits(stagger_seconds=0.0)
        self.scheduler = Scheduler(self.pipes.values, self.trigger, lambda _name, _note: None, limits, watch=watch)

    async def trigger(self, name: str, due: Due) -> None:
        self.runs += 1
        self.pipes[name] = Candidate(
            name, self.pipes[name].schedule, Progress(START, self.wall, due.at, self.runs, ever_ran=True)
        )

    def turn(self) -> None:
        asyncio.run(self.scheduler.turn())

    def quiet(self) -> float:
        """Look again; nothing has happened."""
        return timed(self.turn)

    def due(self) -> float:
        """Go on to the next due time, and look."""
        seconds = min(entry.deadline for entry in self.scheduler._agenda._entries.values()) - self.boottime + 0.01
        self.wall += seconds
        self.boottime += seconds
        before = self.runs
        taken = timed(self.turn)
        if self.runs == before:
            raise RuntimeError("nothing was due")
        return taken

    def stepped(self) -> float:
        """Set the clock by two seconds, and look: everything is decided anew."""
        self.wall -= 2.0
        return timed(self.turn)


def plain_tick(texts: list[str]) -> float:
    """Parse and reckon each, as a plain loop does at each tick."""

    def tick() -> None:
        for text in texts:
            croniter(text, START).get_next(float)

    return timed(tick)


def main() -> None:
    """Print the table."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    texts = expressions()
    room = Room(texts)
    first = timed(room.turn)
    acts = {
        "quiet": room.quiet,
        "due": room.due,
        "stepped": room.stepped,
        "plain": lambda: plain_tick(texts),
    }
    figures = interleaved(acts, ROUNDS)
    plain = figures["plain"]

    def row(what: str, name: str) -> Row:
        times = statistics.median(plain) / statistics.median(figures[name])
        return Row(what, milliseconds(figures[name]), milliseconds(plain), f"{times:.0f}x less")

    print_table(
        f"a look at {PIPES} schedules, against parsing and reckoning all of them with croniter",
        [
            Row("the first look", f"{1000 * first:.2f} ms"),
            row("nothing is due", "quiet"),
            row("the next one is due, and starts", "due"),
            row("the clock was set: everything anew", "stepped"),
        ],
    )


if __name__ == "__main__":
    main()
