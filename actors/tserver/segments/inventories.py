"""Asking backups what they hold of logs."""

from __future__ import annotations

from collections.abc import Sequence

from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.messages.backups import INVENTORY, Inventory, LogInventory
from stelae.core.records.records import ServerInfo
from stelae.core.runtime import Runtime


async def inventory_of(
    runtime: Runtime, settings: Settings, backup: ServerInfo, logs: Sequence[TabletId]
) -> tuple[LogInventory, ...] | None:
    """What a backup holds of these logs; None: it does not say, and may hold anything."""
    try:
        reply = await runtime.peers.call(
            backup.address,
            INVENTORY,
            Inventory(tuple(logs)),
            timeout_s=settings.call_timeout_s,
            destination=backup.uuid,
        )
    except StelaeError:
        runtime.metrics.count("inventories_failed")
        return None
    return reply.body.logs
