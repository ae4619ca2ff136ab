"""What newer versions of Stelae wrote is refused by name, left as it is, and never taken for damage
that may be repaired. (docs/formats.md)"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from stelae.actors.backup import fences
from stelae.actors.cas_store import files as cas_files
from stelae.actors.cas_store import sqlite as cas_sqlite
from stelae.actors.cas_store.backends import Row
from stelae.actors.master import peers
from stelae.actors.server import instance, master_list
from stelae.coordinator.catalog import catalog as catalogs
from stelae.core.errors import CorruptData, UnknownFormat
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.records.replication import Entry as LogEntry
from stelae.core.records.replication import EntryKind
from stelae.runtime.files import LocalDisk
from stelae.storage.entries import entry as entries
from stelae.storage.files import consensus_metadata, log_records, raft_log, sealed
from stelae.storage.replicated import commands, manifest
from stelae.storage.segments import image
from stelae.storage.segments.image import IMAGE_TRAILER_BYTES
from tests.unit.actors.backup.backup_world import SEGMENT, Owner, Rows, make_image, run

TABLET = TabletId("a" * 32)
NOBODY = ServerUuid("0" * 32)


class Format(NamedTuple):
    """How something is written and read, and what in ``module`` says its version."""

    module: Any
    version: str
    newer: Any
    write: Callable[[], bytes]
    read: Callable[[bytes], object]


def _instance() -> bytes:
    return instance.encode_instance(instance.Instance(NOBODY, "c", "master", "m", 0.0, 1))


def _snapshot() -> bytes:
    return catalogs._ENCODER.encode(catalogs._Snapshot(catalogs.SNAPSHOT_VERSION, [], [], []))


def _certified(data: bytes) -> object:
    return entries.certify_entries(entries.CertificateBuilder().certificate, data, "a segment")


def _manifest() -> bytes:
    nothing = manifest.Manifest(TABLET, OpId(0, 0), None, 1, 0.0, (), 1, ())
    return manifest.encode_manifest(nothing)


FORMATS = {
    "instance": Format(instance, "_MAGIC", b"STELINS2", _instance, instance.decode_instance),
    "master-list": Format(
        master_list,
        "_MAGIC",
        b"STELMLS2",
        lambda: master_list._encode([Address("a:1")]),
        master_list._decode,
    ),
    "masters": Format(
        peers, "_MAGIC", b"STELMST2", lambda: peers._encode({"m": NOBODY}), peers._decode
    ),
    "configurations": Format(
        cas_files,
        "_MAGIC",
        b"STELCAS2",
        lambda: cas_files._encode([Row("k", 1, 1, b"value", 0.0, "w", "n")]),
        lambda data: cas_files._decode(data, "a file"),
    ),
    "sealed files": Format(
        sealed,
        "FORMAT_VERSION",
        2,
        lambda: consensus_metadata.encode_consensus_metadata(consensus_metadata.pristine(TABLET)),
        lambda data: consensus_metadata.decode_consensus_metadata("a file", TABLET, data),
    ),
    "records of logs": Format(
        log_records,
        "FORMAT_VERSION",
        2,
        lambda: log_records.encode_record(LogEntry(1, 1, EntryKind.NO_OP, b""), 0),
        lambda data: log_records._read_record("a file", data, 0),
    ),
    "beginnings of logs": Format(
        log_records,
        "FORMAT_VERSION",
        2,
        lambda: raft_log._HEADER.encode(TABLET, 1),
        lambda data: raft_log._HEADER.end("a file", data, TABLET, 1),
    ),
    "entries of segments": Format(entries, "FORMAT_VERSION", 3, lambda: Rows().data, _certified),
    "images": Format(
        image,
        "FORMAT_VERSION",
        5,
        make_image,
        lambda data: image.summary_range(data[-IMAGE_TRAILER_BYTES:], len(data), "a segment"),
    ),
    "manifests": Format(
        manifest,
        "FORMAT_VERSION",
        2,
        _manifest,
        lambda data: manifest.decode_manifest("a file", TABLET, data),
    ),
    "commands": Format(
        commands,
        "FORMAT_VERSION",
        2,
        lambda: commands._joined(commands.CommandKind.MARK, msgspec.msgpack.encode([1, 2])),
        commands.decode_command,
    ),
    "catalog": Format(
        catalogs,
        "SNAPSHOT_VERSION",
        catalogs.SNAPSHOT_VERSION + 1,
        _snapshot,
        lambda data: catalogs.Catalog().restore(data),
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_newer_format_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which versions are read here, and the way out."""
    known = FORMATS[name]
    with monkeypatch.context() as newer:
        newer.setattr(known.module, known.version, known.newer)
        data = known.write()
    with pytest.raises(UnknownFormat, match="start the version that wrote it, or a later one"):
        known.read(data)


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"catalog", "commands"}))
def test_damage_is_not_taken_for_a_newer_format(name: str) -> None:
    """A format without a checksum of its own (the two left out) lies in a file that has one."""
    known = FORMATS[name]
    data = bytearray(known.write())
    data[-1] ^= 0xFF
    if name in ("records of logs", "beginnings of logs"):
        assert known.read(bytes(data)) is None, "it counts as torn"
        return
    with pytest.raises(CorruptData) as caught:
        known.read(bytes(data))
    assert not isinstance(caught.value, UnknownFormat)


def test_an_operation_of_a_newer_version_stops_a_master() -> None:
    """To leave it out would make this master's catalog another one than that of the others."""
    unknown = msgspec.msgpack.encode({"tables": "of another shape"})
    with pytest.raises(UnknownFormat, match="entry 7 of the masters' log"):
        catalogs.Catalog().apply(7, 1, unknown)


def test_promises_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    """A backup without them would accept writes that it has promised to refuse."""

    async def load() -> None:
        disk = LocalDisk(tmp_path)
        await disk.replace(fences.FENCES_FILE, b"STELFNC3" + bytes(20))
        await fences.Fences(disk).load()

    with pytest.raises(UnknownFormat, match=r"format 3, and this version of Stelae reads 1, 2"):
        asyncio.run(load())


def test_a_configuration_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """Its database is left as it is."""

    async def at_once(work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    path = tmp_path / "cas.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE newer (key TEXT)")
        connection.execute(f"PRAGMA application_id = {cas_sqlite.APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {cas_sqlite.FORMAT + 1}")
    with pytest.raises(UnknownFormat, match=r"cas\.db has format 2"):
        asyncio.run(cas_sqlite.SqliteBackend(path, at_once).open())
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("newer",)]


def test_a_backup_frees_nothing_that_a_newer_version_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Code that knows older formats only does not start on the disk, nor change it."""
    disks, written = [], []

    async def scenario(owner: Owner) -> None:
        await owner.write(Rows())
        await owner.seal(make_image())
        await owner.restart()
        assert [info.segment_id for info in await owner.inventory()] == [SEGMENT]
        node = owner.world.nodes["b1"]
        node.auto_restart = False
        owner.world.crash("b1")
        disks.append(node.disk)
        written.append(bytes(node.disk._files["disk/frames"].live))
        monkeypatch.setattr(image, "_READ_VERSIONS", (2, 3))
        owner.world.restart("b1")
        await owner.world.wait_ready()

    with pytest.raises(Exception, match="UnknownFormat: frame file of medium 'disk' of b1"):
        run(scenario)
    assert [bytes(disk._files["disk/frames"].live) for disk in disks] == written
