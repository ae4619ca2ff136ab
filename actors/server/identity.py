"""How every server starts: it takes its identity from disk, listens, and can say who it is."""

from __future__ import annotations

import msgspec

from stelae.actors.server.instance import Instance, load_or_create_instance
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.rpc import Handlers
from stelae.core.runtime import Runtime


async def take_identity(runtime: Runtime, cluster: str, kind: ServerKind, name: str) -> Instance:
    """The instance of the server's data directory, one start further.

    Raises:
        InvalidArgument, CorruptData: see `load_or_create_instance`.
    """
    return await load_or_create_instance(
        runtime.disk, runtime.rng, runtime.clock, cluster, kind.value, name
    )


async def listen_as(
    runtime: Runtime, instance: Instance, handlers: Handlers, media: tuple[str, ...] = ()
) -> ServerInfo:
    """Listen for calls on this instance, and return what others are told of it."""
    await runtime.peers.listen(instance.server_uuid, handlers)
    return ServerInfo(
        kind=ServerKind(instance.kind),
        name=instance.name,
        uuid=instance.server_uuid,
        incarnation=instance.incarnation,
        address=runtime.peers.address,
        process=runtime.identity,
        media=media,
        rack=runtime.rack or msgspec.UNSET,
    )
