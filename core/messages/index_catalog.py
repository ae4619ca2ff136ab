"""Messages of clients to masters about indexes: made, dropped, listed with how far they are."""

from __future__ import annotations

from typing import Any

from stelae.core.ids import RequestId, TableId
from stelae.core.messages.catalog import TableReply
from stelae.core.messages.indexes import IndexletProgress
from stelae.core.rpc import ANY_MASTER, Body, Method
from stelae.core.schema.indexes import IndexId, IndexletRecord, IndexletState


class CreateIndex(Body, frozen=True):
    """Make an index of a column, in one catalog entry; once per request id.

    Answered when it is in the catalog; tablets learn of it, and it is filled, while all goes on
    (`LIST_INDEXES`). Refused: ColumnNotFound, IndexExists, InvalidArgument.
    """

    request: RequestId
    table_id: TableId
    table: str
    """What the caller calls it."""
    column: str
    is_unique: bool = False
    """Refused, in words that say why."""


class DropIndex(Body, frozen=True):
    """Drop the index of a column; once per request id. Refused: ColumnNotFound, IndexNotFound."""

    request: RequestId
    table_id: TableId
    table: str
    column: str


class ListIndexes(Body, frozen=True):
    """The indexes of a table, oldest first. Linearizable: the leader answers."""

    table_id: TableId
    table: str


class IndexletView(Body, frozen=True):
    """One indexlet as the leader master sees it."""

    indexlet: IndexletRecord
    server: str
    """Its owner's name."""
    address: str
    """Empty if that is not live."""
    progress: IndexletProgress | None = None
    """What the owner says; None: nothing yet. What it has said before the catalog put it into
    service, for which it was waiting, is not shown after that."""
    problem: str = ""
    entry_count: int = 0
    memory_bytes: int = 0
    tablets_filled: int = 0
    tablets: int = 0
    successors: int = 0
    """It makes way for so many."""
    copied_entries: int = 0


class IndexView(Body, frozen=True):
    index_id: IndexId
    column: str
    indexlets: tuple[IndexletView, ...]
    """Those that are found, in the order of their ranges."""

    @property
    def state(self) -> IndexletState:
        """SERVING once all of it can be looked up."""
        states = [view.indexlet.state for view in self.indexlets]
        serving = all(state is IndexletState.SERVING for state in states)
        return IndexletState.SERVING if serving else IndexletState.FILLING

    @property
    def entry_count(self) -> int:
        return sum(view.entry_count for view in self.indexlets)

    @property
    def filled(self) -> float:
        """Which part of it is filled, 0 to 1, by the tablets that have given what they have."""
        parts = [
            1.0
            if view.indexlet.state is IndexletState.SERVING
            else view.tablets_filled / view.tablets
            if view.tablets
            else 0.0
            for view in self.indexlets
        ]
        return sum(parts) / len(parts) if parts else 0.0

    @property
    def waits_for(self) -> str:
        """What it is not SERVING for; empty if nothing is known, or it is."""
        for view in self.indexlets:
            if view.indexlet.state is not IndexletState.SERVING and view.problem:
                return view.problem
        return ""


def describe_index(table: str, view: IndexView) -> dict[str, Any]:
    """An index as status documents and programs have it."""
    return {
        "id": view.index_id,
        "table": table,
        "column": view.column,
        "state": view.state.value,
        "filled": round(view.filled, 3),
        "entries": view.entry_count,
        "problem": view.waits_for,
        "indexlets": [_describe_indexlet(each) for each in view.indexlets],
    }


def _describe_indexlet(view: IndexletView) -> dict[str, Any]:
    indexlet = view.indexlet
    return {
        "id": indexlet.indexlet_id,
        "state": indexlet.state.value,
        "term": indexlet.term,
        "low": indexlet.low.hex(),
        "high": indexlet.high.hex(),
        "server": view.server,
        "address": view.address,
        "progress": "" if view.progress is None else view.progress.value,
        "entries": view.entry_count,
        "memory_bytes": view.memory_bytes,
        "tablets_filled": view.tablets_filled,
        "tablets": view.tablets,
        "successors": view.successors,
        "copied_entries": view.copied_entries,
        "problem": view.problem,
    }


class IndexList(Body, frozen=True):
    indexes: tuple[IndexView, ...]


CREATE_INDEX = Method("master.create_index", CreateIndex, TableReply, ANY_MASTER)
DROP_INDEX = Method("master.drop_index", DropIndex, TableReply, ANY_MASTER)
LIST_INDEXES = Method("master.list_indexes", ListIndexes, IndexList, ANY_MASTER)
