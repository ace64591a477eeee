"""What a run came to, said in one go by the thread that has read the last of its output. Blocking.

Law: said once everything that will be known is known: the tree is gone or its survivors are named, and the files are
as they will stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from supervisord_py.pipes.judging.outcome import judge
from supervisord_py.pipes.running.stopping import ending_of, told_with_survivors
from supervisord_py.pipes.running.watching import output_of

if TYPE_CHECKING:
    from supervisord_py.ledger.pipe_executions import Output
    from supervisord_py.pipes.execution import Outcome
    from supervisord_py.pipes.running.following import Following
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.run_terms import RunTerms


@dataclass(frozen=True, slots=True)
class Closed:
    """How it ended, fit to be stored, and what its row is to say of its output."""

    outcome: Outcome
    output: Output


def close(live: LiveRun, terms: RunTerms, following: Following, row_bytes: int) -> Closed:
    """Judge a run whose process is gone, from all that it has left.

    Args:
        live: Which.
        terms: How it is judged.
        following: Its output, read to the end.
        row_bytes: Of each stream in its row.
    """
    ending = ending_of(live, following)
    outcome = judge(ending, following.summary, terms.success, allow_empty=terms.allow_empty)
    outcome = told_with_survivors(live, outcome)
    message = following.transcript.veil(outcome.error_message)
    return Closed(replace(outcome, error_message=message), output_of(following, row_bytes))
