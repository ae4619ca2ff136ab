"""Media with a path of their own: another disk of the machine, with a folder for each backup."""

from __future__ import annotations

from pathlib import Path

from stelae.actors.backup.disk_opening import open_frame_medium
from stelae.actors.backup.frames import MediumSpec
from stelae.core.ids import ServerUuid
from stelae.runtime.files import LocalDisk
from stelae.runtime.real import RealRuntime
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers


async def test_a_medium_with_an_absolute_path_is_made_there_and_opened_again(
    tmp_path: Path,
) -> None:
    """Its file lies in the server's folder on that disk, and not below the data_dir."""
    spec = MediumSpec(name="nvme", path=str(tmp_path / "nvme"))
    for _ in range(2):
        disk = LocalDisk(tmp_path / "nvme" / "backup-1")
        peers = TcpPeers(Credentials("demo", bytes(32)), on_failure=lambda error: None)
        data = LocalDisk(tmp_path / "data")
        runtime = RealRuntime(peers, data)
        medium, replicas = await open_frame_medium(
            spec,
            runtime,
            disk,
            server=ServerUuid("a" * 32),
            server_name="backup-1",
            cluster="demo",
            segment_bytes=1 << 16,
            unsynced_bytes_max=1 << 20,
        )
        assert (medium.name, replicas) == ("nvme", [])
        assert (tmp_path / "nvme" / "backup-1" / "frames").exists()
        await runtime.close()
        disk.close()
        data.close()
