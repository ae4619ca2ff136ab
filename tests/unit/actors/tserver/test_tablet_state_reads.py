"""Reads of a replicated tablet are those of every tablet: one code, over the state machine."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from stelae.actors.tserver.tablet.input import read_rows
from stelae.actors.tserver.tablet.reads import TabletReads
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.rows import Get, GetMany, Scan, Write, WriteOp
from stelae.core.records.succession import Succession
from stelae.core.rpc import Call
from stelae.core.runtime import Runtime
from stelae.core.schema.values import batch_to_rows, rows_to_batch
from stelae.simulation import Options, World
from stelae.storage.entries.entry import encode_batch
from stelae.storage.entries.outcomes import answer
from stelae.storage.replicated.commands import encode_write
from stelae.storage.replicated.state_machine import TabletStateMachine
from tests.unit.storage.replicated.group_model import TABLET, Group
from tests.unit.storage.replicated.tablet_commands import FOREVER, NARROW


class Reads(TabletReads):
    """What a host adds: everything that a state machine has executed is committed."""

    def __init__(self, runtime: Runtime, machine: TabletStateMachine) -> None:
        self.tablet_id = machine.tablet_id
        self._runtime = runtime
        self._schemas = machine.schemas
        self._memory = machine.memory
        self._machine = machine

    @property
    def succession(self) -> Succession:
        return self._machine.succession

    async def _committed(self, index: int, timeout_s: float) -> None:
        assert index <= self._memory.last_index


def test_rows_are_read_as_from_any_tablet() -> None:
    """get, get_many and scan, with the present schema and an earlier one, also after a restart."""
    world = World(1, Options())
    group = Group(NARROW)
    group.write(WriteOp.UPSERT, [("x", n, n * 2) for n in range(4)], ["a", "id", "b"])
    group.alter(rename={"b": "twice"})
    group.replicas[0].begin_flush()
    group.replicas[0].end_flush()
    group.write(WriteOp.UPDATE, [(3, 7)], ["id", "twice"])
    group.replicas[0].restart()
    group.replicas[0].catch_up(group.log, group.outcomes, len(group.log))

    async def read() -> None:
        reads = Reads(world.client("reader"), group.replicas[0].machine)
        keys = ((3,), (9,))
        got = await reads.get(Call(Get(TABLET, keys), (), 1.0))
        assert got.body.rows == ((("x", 3, 7), 5), None)
        got = await reads.get(Call(Get(TABLET, keys, ("b",), 1), (), 1.0))
        assert got.body.rows == (((7,), 5), None)
        blob = memoryview(encode_batch(rows_to_batch(keys, NARROW.key_schema)))
        many = await reads.get_many(Call(GetMany(TABLET, ("twice",)), (blob,), 1.0))
        assert many.body.row_count == 1
        where: Any = ((("b", ">", 2),),)
        scan = Scan(TABLET, "", ("id", "b"), where, schema_version=1)
        schema, batches = await reads.scan(scan, 1.0)
        assert schema.names == ["id", "b"]
        assert sorted(row for batch in batches for row in batch_to_rows(batch)) == [(2, 4), (3, 7)]

    world.run(read())


def test_a_call_becomes_a_command_as_a_host_makes_it() -> None:
    """Rows of a call are read, checked and proposed by the same steps as for other tablets."""
    world = World(1, Options())
    group = Group(NARROW)
    machine = group.replicas[0].machine

    async def write() -> None:
        runtime = world.client("leader")
        batch = pa.record_batch({"id": [5, 6], "a": ["x", "y"]})  # b is left out
        stream = memoryview(encode_batch(batch))
        request = RequestId(ClientId("c"), 1, 1)
        call = Call(Write(TABLET, 0, WriteOp.UPSERT, request, (), ("id", "a")), (stream,), 1.0)
        rows = await read_rows(runtime, machine.schemas, machine.known, call)
        machine.check_write(call.body, rows)
        version = call.body.schema_version or machine.schemas.present.version
        command = encode_write(call.body, rows, stream, schema_version=version, stamp=FOREVER)
        reply = answer(machine.apply(2, 1, command))  # type: ignore[arg-type]
        assert (reply.first_version, reply.row_count) == (1, 2)
        assert machine.known(request) is not None
        found = machine.memory.get((6,))
        assert found is not None
        assert found.row == ("y", 6, None)

    world.run(write())
