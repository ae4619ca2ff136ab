"""The fence of a server whose name another one takes over on another machine. Pure.

A server is its UUID. One that is started elsewhere under the same name has an empty folder, and so
another UUID. Rules:

- R1: the former UUID is fenced in the catalog before the new process is started. From that entry on
  no master grants it a lease, lists it as live, or gives it anything, and its process ends at its
  next heartbeat (`HeartbeatReply.replaced`). So there are never two of a name.
- R2: a server that the leader hears is not fenced, whatever Ray says of its machine.
- R3: a fence is never taken back: what the former server has on its disk may be stale from then on.
- R4: a fenced server is nobody's successor. One that was cut off may be heard after its own
  successor was fenced, too.
- R5: the entry says whether only an operator's mark named the server. After it nobody can tell, as
  the registers forget a fenced server by and by.

Decisions §69.
"""

from __future__ import annotations

import msgspec

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.liveness.unheard import named_in
from stelae.core.errors import InvalidArgument, RetryLater
from stelae.core.messages.operators import ReplaceServer
from stelae.core.records.records import ServerInfo


def draft_replace(
    catalog: Catalog, liveness: Liveness, order: ReplaceServer, now: float
) -> CatalogBatch | None:
    """The fence; None: this request was carried out before. Raises InvalidArgument, RetryLater."""
    if catalog.result_of(order.request) is not None:
        return None
    mark = catalog.mark(order.uuid)
    if mark.replaced:
        if order.goes_on or not mark.replacing:
            return CatalogBatch(request=order.request)
        over = msgspec.structs.replace(mark, replacing=False, generation=mark.generation + 1)
        return CatalogBatch(marks=(over,), request=order.request)
    if liveness.may_hear(now):
        raise RetryLater("the leader master has just begun to hear the servers: ask again")
    seen, known = liveness.newest(order.uuid), named_in(catalog).get(order.uuid)
    if seen is not None:
        kind, name = seen.server.kind, seen.server.name
    elif known is not None:  # nobody has heard it since all masters were started anew
        kind, name = known.kind, known.name
        mark = msgspec.structs.replace(mark, marked_only=known.is_marked_only)  # R5
    else:
        raise InvalidArgument(f"no server with the UUID {order.uuid} is known")
    # R2: Ray may have lost a machine that the masters still hear.
    if liveness.live_server(order.uuid, now) is not None:
        raise InvalidArgument(f"{name} lives: only a server that is away is replaced")
    if mark.maintenance:
        raise InvalidArgument(f"{name} is in maintenance: end it first (`stelae server`)")
    fenced = msgspec.structs.replace(mark, name=name, kind=kind, replaced=True)
    fenced = msgspec.structs.replace(
        fenced, replacing=order.goes_on, generation=mark.generation + 1
    )
    return CatalogBatch(marks=(fenced,), request=order.request)


def draft_successor(catalog: Catalog, server: ServerInfo) -> CatalogBatch | None:
    """Note who has the name of a server that was replaced; None: nobody is to be noted.

    Until then a replacement is half done, and whoever carries it on may start the server anew.
    """
    if catalog.mark(server.uuid).replaced:  # R4: its heartbeat ends it
        return None
    found = [
        msgspec.structs.replace(mark, successor=server.uuid, generation=mark.generation + 1)
        for mark in catalog.marks.values()
        if mark.replaced
        and not mark.successor
        and (mark.kind, mark.name) == (server.kind, server.name)
    ]
    return CatalogBatch(marks=tuple(found)) if found else None
