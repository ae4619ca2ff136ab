"""A follower's turn that begins where its leader's message arrived, and not in a task.

What the leader waits for is done there and then, if the disk is quick: entries are made durable,
and what is to be said of them goes back with the reply. What comes after that, and what needs a
wait, is for the replica's loop (`stelae.actors.raft.loop`), in the same order as ever:
durable, then sent, then applied. Until it has done so, nothing else steps the core. Design §8, §13.
"""

from __future__ import annotations

from stelae.actors.raft.links import ReplicaLinks
from stelae.actors.raft.storage import ReplicaStorage
from stelae.consensus.raft.messages import Message
from stelae.consensus.raft.raft import Raft
from stelae.consensus.raft.ready import Ready
from stelae.core.ids import ServerUuid


class BegunTurn:
    """At most one at a time, of one replica."""

    def __init__(self, storage: ReplicaStorage, links: ReplicaLinks) -> None:
        self._storage = storage
        self._links = links
        self._ready: Ready | None = None
        self._is_sent = False
        self._failure: OSError | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the disk failed here; `take` raises that."""
        return self._failure is not None

    def begin(self, core: Raft, source: ServerUuid) -> tuple[Message, ...] | None:
        """Begin the turn of a plain follower that was just stepped; None if there is none.

        Returns what is to be said to ``source`` at once: nothing before it is durable, and nothing
        any more once the disk has failed.
        """
        assert self._ready is None, "a turn is begun already"
        ready = core.take_ready()
        if not ready:
            return None
        self._ready, self._is_sent = ready, False
        self._links.learn(core.configuration)
        try:
            if ready.entries and not self._storage.save_at_once(ready.entries):
                return ()
        except OSError as error:
            self._failure = error
            return ()
        self._is_sent = True
        self._links.send([m for m in ready.messages if m.destination != source])
        return tuple([m for m in ready.messages if m.destination == source])

    def take(self) -> tuple[Ready | None, bool]:
        """What the loop is to go on with, and whether that is durable and sent.

        Raises OSError: nothing is known of the disk any more.
        """
        if self._failure is not None:
            raise self._failure
        ready, self._ready = self._ready, None
        return ready, self._is_sent
