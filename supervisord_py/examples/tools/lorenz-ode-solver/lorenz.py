"""The Lorenz system and its integration: numbers in, numbers out.

Knows nothing of HTTP. `trajectory` is a generator, so that whoever asks can show progress or stop
in between.
"""

import numpy as np
from scipy.integrate import DOP853

# length of a block in the system's own time: short enough for smooth progress and a prompt cancel
BLOCK_SECONDS = 0.5


class IntegrationError(Exception):
    """The integrator gave up: the solution left what floating point can hold, or the tolerance
    is too small.
    """


def trajectory(*, sigma, rho, beta, initial, t_end, steps, rtol, atol):
    """Integrate, and yield rows [t, x, y, z] for the ends of the equal steps, block by block; the
    first is t = 0.

    The method is Dormand and Prince's of order 8. It takes the steps that the tolerances ask for;
    the states between them come from its interpolant of order 7, just as
    `scipy.integrate.solve_ivp(..., t_eval=...)` does it.
    """

    def slope(_time, state):
        x, y, z = state
        return sigma * (y - x), x * (rho - z) - y, x * y - beta * z

    times = np.linspace(0.0, t_end, int(steps) + 1)  # 10.0 is an integer, too, to JSON Schema
    solver = DOP853(slope, 0.0, initial, t_end, rtol=rtol, atol=atol)
    rows = [np.array([[0.0, *initial]])]
    done, block_end = 1, BLOCK_SECONDS
    while solver.status == "running":
        message = solver.step()
        if solver.status == "failed" or not np.isfinite(solver.y).all():
            raise IntegrationError(f"the integration failed at t = {solver.t:.6g}: "
                                   f"{message or 'a number overflowed'}")
        reached = int(np.searchsorted(times, solver.t, side="right"))
        if reached > done:
            inside = times[done:reached]
            rows.append(np.column_stack([inside, solver.dense_output()(inside).T]))
            done = reached
        if rows and (solver.t >= block_end or solver.status == "finished"):
            yield np.concatenate(rows)
            rows, block_end = [], solver.t + BLOCK_SECONDS


def summary(points):
    """Return what there is to say about a whole trajectory, as JSON values."""
    states = points[:, 1:]
    extent = {"minimum": states.min(axis=0).tolist(), "maximum": states.max(axis=0).tolist()}
    return {"final": states[-1].tolist(), **extent, "t_end": float(points[-1, 0]), "steps": len(points) - 1}
