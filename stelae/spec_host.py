"""The actor that carries out what is put to ``/v1/cluster/spec``, and to ``/v1/servers``.

It outlives the HTTP front, which an apply may start anew. One operation changes the cluster at a
time, by the masters' word; a replacement without the turn only waits, and keeps no other out
(decisions §81). How far each is, is kept while the actor lives; what was asked for last is in
``spec.json``, and an apply that was interrupted, or cancelled at its next look, goes on when it is
put again.
Design §12; decisions §44. Started by `stelae.applying.spec_operations.RaySpecs`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import threading
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import ray

from stelae.applying.replacing import Replacing
from stelae.applying.run import apply
from stelae.applying.server_verbs import check_server, run_verb
from stelae.applying.spec_operations import Document
from stelae.cluster import connect
from stelae.core.errors import AlreadyRunning, InvalidArgument, RetryLater, StelaeError
from stelae.database.api import Database
from stelae.database.callers import Door, called_by
from stelae.database.progress import retiring_told
from stelae.deploy.asked import Kept, kept_spec
from stelae.deploy.cluster_files import home_of
from stelae.serve.bodies.problems import PreconditionFailed

logger = logging.getLogger(__name__)

OPERATIONS_KEPT = 50
LONGEST_S = 24 * 3600.0
RUNNING, DONE, FAILED, CANCELLED = "running", "done", "failed", "cancelled"


WAITING_AT_ONCE = 4
"""Maximum replacements that wait for a drain, or for copies, at the same time."""


class Cancelled(Exception):
    """Somebody wants no more of it."""


@dataclass(slots=True)
class Operation:
    """One apply, or one command on a server, as its resource shows it."""

    id: str
    by: str
    what: str = "apply"
    state: str = RUNNING
    steps_done: int = 0
    steps: int = 0
    text: str = ""
    error: str = ""
    cancelled_by: str = ""
    """Somebody, who wants it to end at its next look; or empty."""
    result: Document = field(default_factory=dict)
    """What has come of it, for programs, once it is done."""


@dataclass(slots=True)
class Place:
    """What an operation that runs keeps others from."""

    names: frozenset[str] = frozenset()
    """What its server is called; empty: it is an apply."""
    may_wait: bool = False
    """It changes servers in the cluster's turn alone, and may wait for hours between turns."""
    has_turn: bool = False

    @property
    def waits(self) -> bool:
        """Whether it only waits now, so that other operations may run."""
        return self.may_wait and not self.has_turn

    def note_turn(self, has_turn: bool) -> None:
        """The operation has taken, or has ended, a turn."""
        self.has_turn = has_turn


def etag_of(kept: Kept) -> str:
    """Which asking it is."""
    return hashlib.blake2b(repr(kept.stamp).encode(), digest_size=8).hexdigest()


class SpecHost:
    """The actor. Its methods block, each in a thread of its own."""

    def __init__(self, cluster: str, data_dir: str, watch_period_s: float | None = None) -> None:
        """``watch_period_s``: seconds between looks at machines that stay away; None: no looks."""
        self._cluster = cluster
        self._data_dir = data_dir
        self._lock = threading.Lock()
        self._operations: dict[str, Operation] = {}
        self._places: dict[str, Place] = {}
        """Of each operation, by id."""
        self._replacing = Replacing(data_dir)
        self._is_stopped = threading.Event()
        if watch_period_s is not None:
            threading.Thread(target=self._watch, args=(watch_period_s,), daemon=True).start()

    def stop(self) -> None:
        """The cluster is taken down: no server is started any more."""
        self._is_stopped.set()

    def away(self) -> Document:
        """Machines that are away, since when, which servers are there, and what becomes of those
        that may be replaced; see `Verdict`."""
        return {
            "since": dict(self._replacing.away_since),
            "there": dict(self._replacing.there),
            "servers": [asdict(each) for each in self._replacing.verdicts],
        }

    def _connect(self, by: str = "") -> Database:
        """``by``: who asked for what is done, for each row of it in the audit log (decisions §87);
        empty: nobody did."""
        with called_by(Door.APPLIER, f"by {by}" if by else ""):
            return connect(self._cluster)

    def _watch(self, period_s: float) -> None:
        """Replace servers of machines that stay away, until the cluster is taken down."""
        problem = ""
        while not self._is_stopped.wait(period_s * random.uniform(0.75, 1.25)):
            try:
                self._replacing.step(self._cluster, self._connect)
                problem = ""
            except Exception as error:  # whatever it was: another look comes, with another state
                if str(error) != problem:
                    is_foreseen = isinstance(error, StelaeError | ray.exceptions.RayError)
                    logger.warning(
                        "servers of machines that are away are not replaced now: %s",
                        *(error,),
                        exc_info=not is_foreseen,
                    )
                problem = str(error)

    def kept(self) -> Document:
        """What was asked for last. Raises RetryLater: the cluster is not up yet."""
        with home_of(self._cluster, (self._data_dir,)) as home:
            kept = kept_spec(home)
        if kept is None:
            raise RetryLater("nobody has written down yet what was asked of this cluster")
        found = {"spec": kept.spec, "by": kept.by, "at": kept.at_s, "done": kept.is_done}
        return {**found, "generation": kept.generation, "etag": etag_of(kept)}

    def plan(self, spec: Document) -> Document:
        """What would be done. Raises StelaeError."""
        return self._apply(spec, Operation("", ""), dry_run=True)

    def begin(self, spec: Document, by: str, etag: str) -> Document:
        """See `ClusterSpecs.begin`."""
        with self._lock:
            self._check_room()
            if etag and self.kept()["etag"] != etag:
                raise PreconditionFailed("something else was asked for meanwhile")
            shown = self.plan(spec)
            if shown["refused"]:
                reasons = "".join(f"\n  {reason}" for reason in shown["refused"])
                raise InvalidArgument(f"this cannot be applied:{reasons}")
            work = Operation(uuid.uuid4().hex[:12], by, steps=len(shown["steps"]))

            def carry_out() -> None:
                self._apply(spec, work, dry_run=False)

            return self._begun(work, Place(), carry_out)

    def begin_server(self, verb: str, server: str, options: Document, by: str) -> Document:
        """See `ClusterSpecs.begin_server`."""
        with self._lock:
            with self._connect() as database:
                names = check_server(database, verb, server)
            self._check_room(names, takes_back=verb == "retire" and options["cancel"])
            place = Place(names, may_wait=verb == "replace")
            if place.may_wait:
                self._check_waiting()
            work = Operation(uuid.uuid4().hex[:12], by, what=f"server {verb} {server}")

            def carry_out() -> None:
                with self._connect(work.by) as database:
                    database.told_of_turn = place.note_turn
                    tell = self._teller(work)
                    work.result = run_verb(
                        *(database, verb, server, options), tell, retiring_told, LONGEST_S
                    )

            return self._begun(work, place, carry_out)

    def _check_room(self, names: frozenset[str] = frozenset(), *, takes_back: bool = False) -> None:
        """Raise AlreadyRunning: an operation changes the cluster now, or is about this server.
        ``takes_back``: a drain of this server, which may pass next to what waits for it."""
        for found, place in self._running():
            is_same = bool(names & place.names)
            if (place.waits and not is_same) or (takes_back and is_same):
                continue
            does = "is about this server" if place.waits else "is changing this cluster"
            raise AlreadyRunning(f"operation {found.id} {does}: {found.what}, by {found.by}")

    def _check_waiting(self) -> None:
        """Raise RetryLater: as many replacements as may be wait already."""
        waiting = [found for found, place in self._running() if place.may_wait]
        if len(waiting) >= WAITING_AT_ONCE:
            named = ", ".join(f"{each.id} ({each.what})" for each in waiting)
            raise RetryLater(
                f"{len(waiting)} replacements are under way, and no more may be: {named}. Ask "
                "again once one has ended, or end one with DELETE /v1/cluster/operations/ID"
            )

    def _running(self) -> list[tuple[Operation, Place]]:
        found = [(each, self._places[key]) for key, each in self._operations.items()]
        return [(each, place) for each, place in found if each.state == RUNNING]

    def _begun(self, work: Operation, place: Place, carry_out: Callable[[], None]) -> Document:
        self._operations[work.id], self._places[work.id] = work, place
        ended = [key for key, each in self._operations.items() if each.state != RUNNING]
        for key in ended[: max(0, len(self._operations) - OPERATIONS_KEPT)]:
            del self._operations[key], self._places[key]
        threading.Thread(target=self._run, args=(work, carry_out), daemon=True).start()
        return asdict(work)

    def operation(self, operation_id: str) -> Document | None:
        """How far it is."""
        found = self._operations.get(operation_id)
        return None if found is None else asdict(found)

    def cancel(self, operation_id: str, by: str) -> Document | None:
        """See `ClusterSpecs.cancel`."""
        found = self._operations.get(operation_id)
        if found is None:
            return None
        if found.state == RUNNING:
            found.cancelled_by = found.cancelled_by or by
        return asdict(found)

    def _run(self, work: Operation, carry_out: Callable[[], None]) -> None:
        try:
            carry_out()
        except Cancelled:
            work.state = CANCELLED
        except Exception as error:  # whatever it was: somebody asks what has come of it
            work.error, work.state = str(error) or type(error).__name__, FAILED
        else:
            work.state = DONE

    def _apply(self, spec: Document, work: Operation, *, dry_run: bool) -> Document:
        if not os.path.isabs(str(spec.get("data_dir", ""))):  # as in a file that lies elsewhere
            spec = {**spec, "data_dir": self._data_dir}
        with self._connect(work.by) as database:
            found = apply(
                *(database, spec),
                dry_run=dry_run,
                progress=self._teller(work),
                timeout=LONGEST_S,
                by=work.by,
            )
        return found.document()

    def _teller(self, work: Operation) -> Callable[[int, int, str], None]:
        """What shows how far it is while it runs, and ends it once somebody wants that."""

        def tell(done: int, of: int, text: str) -> None:
            work.steps_done, work.steps, work.text = done, of, text
            if work.cancelled_by:
                raise Cancelled

        return tell
