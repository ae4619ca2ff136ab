"""One client under load, checked: from the checkout or from an older tree.

    python -m tests.upgrade.workload PLAN.json

Each key has one writer, which knows after each answer what the row is: a read that follows must
show it, with the version that the write returned, and so must a look-up in the index. What is
found otherwise, or a call that is not answered in time, ends the process with an error. SIGTERM
ends it after the calls under way; then it prints what each row is.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.core.config.settings import Settings
from stelae.core.ids import Address
from tests.upgrade.server import runtime_of

CALL_S = 120.0
PAUSE_S = 0.5
WRITERS = 1
"""For each table."""
LABELS = 5


class Writer:
    """The writer of one key, and what it has seen."""

    def __init__(self, table: AsyncTable, key: int) -> None:
        self.table = table
        self.key = key
        self.value = 0
        self.version = 0
        self.slowest_s = 0.0

    def row(self) -> dict[str, Any]:
        label = f"{self.key}-{self.value % LABELS}"
        return {"id": self.key, "value": self.value, "label": label}

    async def step(self) -> None:
        """One write, and whether it is seen."""
        began = time.monotonic()
        self.value += 1
        given = self.row()
        [version] = await self.table.upsert(given, if_version=self.version, timeout=CALL_S)
        assert version > self.version, (self.table.name, given, version, self.version)
        self.version = int(version)
        found = await self.table.get(self.key, with_version=True, timeout=CALL_S)
        assert found == {**given, "_version": self.version}, (self.table.name, given, found)
        by_label = await self.table.find("label", given["label"], timeout=CALL_S)
        assert by_label.to_pylist() == [given], (self.table.name, given, by_label)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    async def run(self, told: asyncio.Event) -> None:
        while not told.is_set():
            await self.step()
            await asyncio.sleep(PAUSE_S)


async def work(plan: dict[str, Any]) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    runtime = runtime_of(plan["cluster"], Path(plan["folder"]))
    masters = [Address(address) for address in plan["masters"].values()]
    database = AsyncDatabase(runtime, masters, Settings(**plan["settings"]))
    writers = []
    for name in plan["tables"]:
        table = await database.table(name)
        writers += [Writer(table, plan["first_key"] + n) for n in range(WRITERS)]
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.run(told))
    rows = [(writer.table.name, writer.row(), writer.version) for writer in writers]
    slowest_s = max(writer.slowest_s for writer in writers)
    print(json.dumps({"rows": rows, "slowest_s": slowest_s}))
    await runtime.close()


if __name__ == "__main__":
    asyncio.run(work(json.loads(Path(sys.argv[1]).read_text())))
