"""All that one tserver does with tablet copies: gives them, takes them, and has them taken."""

from __future__ import annotations

from stelae.actors.tserver.replicated_tablet.manager import TabletReplicas
from stelae.actors.tserver.tablet_copy.receiver import CopyJobs
from stelae.actors.tserver.tablet_copy.source import CopySources
from stelae.actors.tserver.tablet_copy.starter import CopyStarter
from stelae.core.config.settings import Settings
from stelae.core.rpc import Handlers
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks


class ServerCopies:
    """Copies from and to the replicas of one server. Made once they are loaded."""

    def __init__(
        self, runtime: Runtime, settings: Settings, tasks: Tasks, replicas: TabletReplicas
    ) -> None:
        store = replicas.store
        self._sources = CopySources(runtime, settings, tasks, store, replicas, replicas.failed)
        self._jobs = CopyJobs(runtime, settings, tasks, store, replicas)
        starter = CopyStarter(runtime, settings, tasks, replicas)
        replicas.copy_needed = starter.needed
        replicas.copy_progress = self._jobs.progress
        replicas.copy_source = self._jobs.source
        replicas.copies_wanted = starter.wanted
        replicas.copy_problem = lambda tablet_id: self._jobs.problems.get(tablet_id, "")
        replicas.cancel_copy = self._jobs.cancel

    def handlers(self) -> Handlers:
        """What leaders, sources and receivers of copies call."""
        return {**self._sources.handlers(), **self._jobs.handlers()}
