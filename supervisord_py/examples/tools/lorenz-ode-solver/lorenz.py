"""The Lorenz system and its integration: numbers in, numbers out.

Knows nothing of HTTP. `trajectory` is a generator, so that whoever asks can show progress or stop in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.integrate import DOP853

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

BLOCK_SECONDS = 0.5  # length of a block in the system's own time: short enough for smooth progress and a prompt cancel


class IntegrationError(Exception):
    """The integrator gave up: the solution left what floating point can hold, or the tolerance is too small."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An initial value problem, and how closely and where it is to be solved."""

    sigma: float
    rho: float
    beta: float
    initial: tuple[float, float, float]
    t_end: float
    steps: int
    rtol: float
    atol: float

    def slope(self, _time: float, state: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return (x', y', z')."""
        x, y, z = state
        return self.sigma * (y - x), x * (self.rho - z) - y, x * y - self.beta * z

    def fixed_points(self) -> list[list[float]]:
        """Return the states in which nothing moves."""
        if self.rho <= 1:
            return [[0.0, 0.0, 0.0]]
        distance = float(np.sqrt(self.beta * (self.rho - 1)))
        height = self.rho - 1
        return [[0.0, 0.0, 0.0], [distance, distance, height], [-distance, -distance, height]]


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of the trajectory: rows [t, x, y, z], and the evaluations spent on all pieces up to here."""

    points: NDArray[np.float64]
    evaluations: int


def trajectory(problem: Problem) -> Iterator[Block]:
    """Integrate, and yield the states at the ends of the equal steps, block by block; the first row is t = 0.

    The method is Dormand and Prince's of order 8. It takes the steps that the tolerances ask for; the states between
    them come from its interpolant of order 7, just as `scipy.integrate.solve_ivp(..., t_eval=...)` does it.
    """
    times = np.linspace(0.0, problem.t_end, problem.steps + 1)
    solver = DOP853(problem.slope, 0.0, problem.initial, problem.t_end, rtol=problem.rtol, atol=problem.atol)
    rows = [np.array([[0.0, *problem.initial]])]
    done, block_end = 1, BLOCK_SECONDS
    while solver.status == "running":
        message = solver.step()
        if solver.status == "failed" or not np.isfinite(solver.y).all():
            raise IntegrationError(f"the integration failed at t = {solver.t:.6g}: {message or 'a number overflowed'}")
        reached = int(np.searchsorted(times, solver.t, side="right"))
        if reached > done:
            inside = times[done:reached]
            rows.append(np.column_stack([inside, solver.dense_output()(inside).T]))
            done = reached
        if solver.t >= block_end or solver.status == "finished":
            if rows:
                yield Block(np.concatenate(rows), solver.nfev)
            rows, block_end = [], solver.t + BLOCK_SECONDS


def summary(problem: Problem, points: NDArray[np.float64], evaluations: int) -> dict[str, object]:
    """Return what there is to say about a whole trajectory, as JSON values."""
    states = points[:, 1:]
    sides = np.sign(states[:, 0])
    sides = sides[sides != 0]
    return {
        "final": states[-1].tolist(),
        "minimum": states.min(axis=0).tolist(),
        "maximum": states.max(axis=0).tolist(),
        "mean": states.mean(axis=0).tolist(),
        "fixed_points": problem.fixed_points(),
        "wing_changes": int(np.count_nonzero(np.diff(sides))),
        "t_end": problem.t_end,
        "steps": problem.steps,
        "evaluations": evaluations,
    }
