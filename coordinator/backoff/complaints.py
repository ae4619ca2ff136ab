"""Which servers an owner alone does not reach, by what all live tservers report. Pure.

Masters see their own connections only. A server that they hear may answer no tserver at all: its
disk failed, it hangs, or it is cut off from all of them. Another owner would wait for it as well,
and would not even answer reads, as it could not open the tablet.

Rules:

1. An owner waits in vain only for a server that masters hear, and only if there is another live
   tserver.
2. A server that the owners of tablets on another tserver do not reach either (`unreached`) is at
   fault itself. The same holds for a backup that is shunned, if another tserver avoids it.
3. A tablet that answers reads has more to lose: for its owner a server counts as reached only if
   no other tserver complains at all, and if it is not shunned. Of two tservers, of which one avoids
   a backup, nobody can say which one is at fault.
4. The owner of such a tablet waits in vain only if it misses `MISSED_WHILE_SERVED` servers that
   others reach. A backup that hangs is missed first by the only tserver that writes to it, so
   nobody else complains: each owner would be given up in turn, and reads would stop with it. That
   two servers hang for one tserver alone is its own fault.

Source: decisions §62.
"""

from __future__ import annotations

from collections.abc import Iterable

from stelae.coordinator.catalog.catalog import Catalog
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.liveness.shunned_backups import shunned_backups
from stelae.coordinator.liveness.standing import standing_of
from stelae.core.ids import ServerUuid
from stelae.core.records.records import ServerKind

MISSED_WHILE_SERVED = 2
"""Number of servers, reached by others, without which the owner of a served tablet is given up."""


class Complaints:
    """What live tservers report in one round of the leader. A look costs as much as there are
    tablets that are not settled."""

    def __init__(self, catalog: Catalog, liveness: Liveness, now: float) -> None:
        self._liveness = liveness
        self._now = now
        self._unreached: dict[ServerUuid, set[ServerUuid]] = {}
        """Of each server: tservers whose tablets wait for it."""
        self._avoided: dict[ServerUuid, set[ServerUuid]] = {}
        """Of each backup: tservers that avoid it."""
        self._tservers = frozenset(s.server.uuid for s in liveness.live(ServerKind.TSERVER, now))
        self._shunned = frozenset(shunned_backups(liveness, now))
        for seen in liveness.live(ServerKind.TSERVER, now):
            uuid = seen.server.uuid
            for backup in seen.heartbeat.avoids:
                self._avoided.setdefault(backup, set()).add(uuid)
            # A tablet with an unreached server is never settled.
            is_exact = seen.picture.is_exact
            told = standing_of(catalog, seen).unsettled if is_exact else seen.reports
            for tablet_id in told:
                report = seen.reports.get(tablet_id)
                for server in () if report is None else report.unreached:
                    self._unreached.setdefault(server, set()).add(uuid)

    def waits_in_vain(
        self, unreached: Iterable[ServerUuid], owner: ServerUuid, *, serves: bool
    ) -> bool:
        """Whether another tserver would get on where ``owner`` waits for the servers ``unreached``,
        as far as the leader can know. ``serves``: the owner may be answering reads of the tablet.
        """
        missed = sum(self._reached_by_others(each, owner, serves) for each in set(unreached))
        return missed >= (MISSED_WHILE_SERVED if serves else 1)  # rule 4

    def _reached_by_others(self, server: ServerUuid, owner: ServerUuid, serves: bool) -> bool:
        """Whether ``server``, for which ``owner`` waits, is used by other tservers."""
        if self._liveness.live_server(server, self._now) is None or not self._tservers - {owner}:
            return False
        wait = bool(self._unreached.get(server, set()) - {owner})
        avoid = bool(self._avoided.get(server, set()) - {owner})
        if serves:  # rule 3
            return not wait and not avoid and server not in self._shunned
        return not wait and not (avoid and server in self._shunned)  # rule 2
