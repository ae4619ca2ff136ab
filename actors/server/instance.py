"""Who a server is: the ``instance`` file of its data directory.

Written once, when the directory is first used, and again at each start with ``incarnation`` one
higher. Works over any `Disk`. Invariant: a server never starts on a directory of another cluster or
of another kind of server, nor on an instance file that does not match its checksum. (design.md §8:
UUIDs go with every call)
"""

from __future__ import annotations

import random
import struct

import msgspec
from crc32c import crc32c

from stelae.core.errors import CorruptData, InvalidArgument
from stelae.core.ids import ServerUuid, make_uuid
from stelae.core.runtime import Clock, Disk
from stelae.storage.files.sealed import refuse_other_format

INSTANCE_FILE = "instance"

_MAGIC = b"STELINS1"
_HEAD = struct.Struct("<8sI")  # magic, CRC-32C of the rest


class Instance(msgspec.Struct, frozen=True):
    """The content of the instance file."""

    server_uuid: ServerUuid
    cluster: str
    kind: str
    """``master``, ``tserver``, ``safekeeper``, ``backup`` or ``cas_store``."""
    name: str
    created: float
    """Wall clock at the first start, in seconds since 1970; for people to read."""
    incarnation: int
    """Starts so far, this one included."""


_decoder = msgspec.msgpack.Decoder(Instance)


def encode_instance(instance: Instance) -> bytes:
    body = msgspec.msgpack.encode(instance)
    return _HEAD.pack(_MAGIC, crc32c(body)) + body


def decode_instance(data: bytes) -> Instance:
    """Raises CorruptData, UnknownFormat."""
    if len(data) < _HEAD.size:
        raise CorruptData(INSTANCE_FILE, len(data), "the file is too short")
    magic, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    refuse_other_format(INSTANCE_FILE, data, _MAGIC)
    if magic != _MAGIC:
        raise CorruptData(INSTANCE_FILE, 0, "this is no instance file")
    if crc32c(body) != crc:
        raise CorruptData(INSTANCE_FILE, _HEAD.size, "the content does not match its checksum")
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptData(INSTANCE_FILE, _HEAD.size, str(error)) from error


async def load_or_create_instance(
    disk: Disk, rng: random.Random, clock: Clock, cluster: str, kind: str, name: str
) -> Instance:
    """Read the directory's instance, or make it; count this start, durably.

    The name may change between starts; the UUID, the cluster and the kind may not.

    Raises:
        InvalidArgument: the directory belongs to another cluster, or another kind of server.
        CorruptData: the instance file is damaged.
    """
    # Rule: nothing is told to others that a loss of power could still take back. Every server takes
    # its identity before it listens.
    await disk.settle()
    try:
        data = await disk.read(INSTANCE_FILE)
    except FileNotFoundError:
        instance = Instance(
            ServerUuid(make_uuid(rng)), cluster, kind, name, created=clock.now(), incarnation=1
        )
    else:
        found = decode_instance(data)
        for what, is_, wanted in (
            ("cluster", found.cluster, cluster),
            ("kind", found.kind, kind),
        ):
            if is_ != wanted:
                raise InvalidArgument(
                    f"this data directory belongs to {what} {is_!r} (server {found.name!r}, "
                    f"{found.server_uuid}), not to {wanted!r}; give {name!r} another data_dir"
                )
        instance = msgspec.structs.replace(found, name=name, incarnation=found.incarnation + 1)
    await disk.replace(INSTANCE_FILE, encode_instance(instance))
    return instance
