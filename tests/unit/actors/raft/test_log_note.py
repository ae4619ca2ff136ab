"""The note beside a log: what it names is durable, at each moment of a crash."""

from __future__ import annotations

import asyncio

import pytest

from stelae.actors.raft.durable_mark import REST_S, LogNote
from stelae.actors.raft.storage import ReplicaStorage
from stelae.core.ids import TabletId
from stelae.core.records.replication import Entry, EntryKind, TermAndVote, first_configuration
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks
from stelae.simulation import Options, World
from stelae.simulation.world.node import SimulationFailure
from stelae.storage.files.raft_log import NOTE_SLOT_BYTES, Note, decode_notes, encode_note

GROUP = TabletId("t")
MEMBERS = first_configuration({})


class Keeper:
    """Appends a few entries, cuts some, appends others, for as long as it lives."""

    def __init__(self, runtime: Runtime, kept: list[int]) -> None:
        """``kept`` says last up to which entry the log must be there."""
        self.tasks = Tasks()
        self._runtime = runtime
        self._kept = kept
        self._storage = ReplicaStorage(runtime.disk, "", GROUP, log_file_bytes=300)

    async def start(self) -> None:
        loaded = await self._storage.load(MEMBERS)
        last = loaded.entries[-1].index if loaded.entries else 0
        assert last >= self._kept[-1], "an acknowledged entry is missing"
        self._kept.append(last)  # it will be vouched for
        self.tasks.spawn(self._storage.note_for_ever(self._runtime.clock), "notes")
        self.tasks.spawn(self._work(last, loaded.term_and_vote.term + 1), "work")

    async def _work(self, last: int, term: int) -> None:
        rng, storage = self._runtime.rng, self._storage
        await storage.save(TermAndVote(term, None), None, ())
        while True:
            first = last + 1
            if last > 2 and rng.random() < 0.3:
                first = last - rng.randrange(2)
                self._kept.append(first - 1)  # a leader says that the rest never was
            last = first + rng.randrange(3)
            entries = [
                Entry(term, i, EntryKind.COMMAND, b"x" * rng.randrange(90))
                for i in range(first, last + 1)
            ]
            await storage.save(None, None, entries)
            self._kept.append(last)
            await asyncio.sleep(rng.choice([0.0, 0.0, 0.01, 0.2, REST_S + 0.2]))

    async def stop(self) -> None:
        await self.tasks.close()


def live(seed: int) -> int:
    """Many lives of one log; how many entries it had in the end."""
    world = World(seed, Options(keep_unsynced_rate=(0.0, 0.3, 1.0)[seed % 3]))
    kept = [0]

    async def story() -> int:
        rng = world.rng("story")
        world.start("keeper", lambda runtime: Keeper(runtime, kept))
        for _ in range(40):
            await world.wait_ready("keeper")
            await asyncio.sleep(rng.choice([0.02, 0.5, 4.0]))
            world.crash("keeper", restart=False)
            world.restart("keeper")
        await world.wait_ready("keeper")
        return kept[-1]

    return world.run(story(), limit_s=1000.0)


def live_all(seeds: int) -> None:
    for seed in range(seeds):
        live(seed)


@pytest.mark.parametrize("seed", range(12))
def test_no_crash_makes_a_log_look_damaged_or_shorter_than_it_was(seed: int) -> None:
    """In the midst of appends, of cuts, and of the notes themselves."""
    assert live(seed) > 20


def test_this_would_see_a_note_that_is_not_lowered_before_a_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then a crash after the cut leaves a log that seems to lack what was durable."""

    async def later(note: LogNote, index: int) -> None:
        return None

    monkeypatch.setattr(LogNote, "lower", later)
    with pytest.raises(SimulationFailure, match="was durable to"):
        live_all(30)


def test_slots_are_checked_and_of_one_tablet() -> None:
    """A torn slot is void, and the other one tells; another tablet's note tells nothing."""
    older, newer = encode_note(GROUP, Note(1, 5)), encode_note(GROUP, Note(2, 9))
    data = newer.ljust(NOTE_SLOT_BYTES, b"\0") + older
    assert decode_notes(GROUP, data) == [Note(2, 9), Note(1, 5)]
    torn = newer[:-1] + b"\1"
    assert decode_notes(GROUP, torn.ljust(NOTE_SLOT_BYTES, b"\0") + older) == [Note(1, 5)]
    assert decode_notes(GROUP, newer) == [Note(2, 9)]
    assert decode_notes(GROUP, newer[:10]) == []
    assert decode_notes(TabletId("other"), data) == []
