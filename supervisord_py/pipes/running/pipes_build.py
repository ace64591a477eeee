"""Puts the parts of the running pipes together, once for each room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.pipes.catalog import PipeCatalog
from supervisord_py.pipes.checks import PipeFaults
from supervisord_py.pipes.events import EventSources
from supervisord_py.pipes.models import PipeDefinition
from supervisord_py.pipes.running.admission import Admission
from supervisord_py.pipes.running.adoption import Adoption
from supervisord_py.pipes.running.agent_shelf import AgentShelf
from supervisord_py.pipes.running.by_hand import ByHand, Cancelling
from supervisord_py.pipes.running.conclusion import Conclusion
from supervisord_py.pipes.running.forgetting import Forgetting
from supervisord_py.pipes.running.intake import Intake
from supervisord_py.pipes.running.output_reading import OutputReading
from supervisord_py.pipes.running.performing import Performing
from supervisord_py.pipes.running.pipe_upkeep import PipeUpkeep
from supervisord_py.pipes.running.pipe_views import PipeViews
from supervisord_py.pipes.running.retrying import Retrying
from supervisord_py.pipes.running.running_house import RunningHouse
from supervisord_py.pipes.running.starting import Starting
from supervisord_py.pipes.running.triggering import Triggering
from supervisord_py.pipes.scheduler import Clocks, Timetable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from supervisord_py.ledger.store import Ledger
    from supervisord_py.pipes.config import PipesConfig
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.keeper_client import KeeperClient


class PipesBuild:
    """All parts, joined; what each does stands in its own file."""

    def __init__(
        self,
        placement: KeeperClient,
        ledger: Ledger,
        events: EventStream,
        config: PipesConfig,
        *,
        environ: Mapping[str, str],
        own: Mapping[str, str],
        clocks: Clocks | None = None,
    ) -> None:
        self.catalog = PipeCatalog(config.pipes_dir, config.file_bytes_max, default_agent=config.default_agent)
        shelf = AgentShelf(placement, lambda: self.house.config, environ)
        self.house = RunningHouse(
            placement, ledger, events, config, environ, own, self.catalog.get, shelf, clocks or Clocks()
        )
        house = self.house
        self.conclusion = Conclusion(house)
        self.starting = Starting(house)
        self.performing = Performing(house, self.starting, self.conclusion)
        self.admission = Admission(house, self.performing.perform)
        self.cancelling = Cancelling(house, self.admission, self.conclusion)
        self.intake = Intake(house, self.admission, self.conclusion)
        self.adoption = Adoption(house, self.admission, self.conclusion, self.performing.take_over)
        self.timetable = Timetable(house, self.usable)
        self.faults = PipeFaults(shelf, lambda: self.house.config, environ, house.clocks.boot)
        self.views = PipeViews(
            house, self.catalog, self.admission, self.timetable.now, self.timetable.decision_on, faults=self.faults
        )
        self.triggering = Triggering(house, self.intake, self.usable, self.views.interval)
        self.timetable.join(self.triggering.due, self.views.progress)
        self.sources = EventSources(house, self.triggering, self.usable)
        self.by_hand = ByHand(house, self.admission, self.intake, self.views.interval)
        self.upkeep = PipeUpkeep(house, self.catalog, self.cancelling, self.look_again)
        self.reading = OutputReading(house, self.admission.view)
        self.forgetting = Forgetting(house)
        self._join_ends()

    def _join_ends(self) -> None:
        retrying = Retrying(self.house, self.intake)
        aftermath = self.conclusion.aftermath
        aftermath.next_try, aftermath.try_again = retrying.decide, retrying.try_again
        aftermath.free = self.admission.ended
        aftermath.ended += [self.views.ended, self.triggering.ended, self.timetable.ended]

    def usable(self) -> Iterator[PipeDefinition]:
        """Yield every pipe whose file can be used."""
        for declared in self.catalog.all().values():
            if isinstance(declared, PipeDefinition):
                yield declared

    def look_again(self) -> None:
        """Have everything that depends on files and wishes look at them again."""
        self.faults.keep_only(self.catalog.all())
        self.timetable.wake()
        self.sources.look()
