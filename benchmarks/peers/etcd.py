"""A three-node etcd on loopback, for comparison: put by gRPC, and under load by wrk over JSON.

Debian has no load client for etcd, so that many writers go through its JSON gateway: a lower limit
of what it can do, as is said beside the figure.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

PACKAGES = ("etcd-server", "etcd-client", "wrk")
START_TIMEOUT_S = 30.0
VALUE_BYTES = 100
_LUA = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local value = string.rep("eHh4", 33) .. "eA=="
local n = 0
function request()
  n = n + 1
  local digits = string.format("%08d", n % 10000 + math.random(0, 9) * 10000)
  return wrk.format(nil, "/v3/kv/put", nil, '{"key":"' .. digits .. '","value":"' .. value .. '"}')
end
"""


class Missing(Exception):
    """What is compared with is not on this machine; the text says what is missing."""


def have(commands: tuple[str, ...], packages: tuple[str, ...]) -> None:
    """See that ``commands`` are there, installing Debian packages where this process may.

    Raises:
        Missing: they are not, and cannot be installed.
    """
    absent = [command for command in commands if shutil.which(command) is None]
    if not absent:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=300,
        )
        absent = [command for command in commands if shutil.which(command) is None]
    if absent:
        names = " ".join(packages)
        raise Missing(f"no {', '.join(absent)} here: apt-get install {names}")


class Etcd:
    """The cluster, as one client of its leader."""

    def __init__(self, leader: str, lua: Path) -> None:
        self._leader = leader
        self._lua = lua
        self._channel = grpc.insecure_channel(leader)
        self._put = self._channel.unary_unary("/etcdserverpb.KV/Put")
        self._count = 0

    def put(self) -> None:
        """Store one value of 100 bytes; durable on a majority when it returns."""
        self._count += 1
        self._put(_field(1, b"k%09d" % self._count) + _field(2, b"x" * VALUE_BYTES))

    def put_rate(self, connections: int, duration_s: float) -> float:
        """Puts a second over so many connections."""
        done = subprocess.run(
            [
                "wrk",
                "-t1",
                f"-c{connections}",
                f"-d{duration_s:.0f}s",
                "-s",
                str(self._lua),
                f"http://{self._leader}",
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=duration_s + 30,
        )
        if "Non-2xx" in done.stdout:
            raise RuntimeError(f"etcd refused puts: {done.stdout}")
        found = re.search(r"Requests/sec:\s*([\d.]+)", done.stdout)
        assert found is not None, done.stdout
        return float(found[1])

    def close(self) -> None:
        self._channel.close()


def _field(number: int, data: bytes) -> bytes:
    """One length-delimited protobuf field of less than 128 bytes."""
    return bytes([number << 3 | 2, len(data)]) + data


@contextmanager
def etcd_cluster() -> Iterator[Etcd]:
    """Three nodes in a folder that goes with them. Raises `Missing`."""
    have(("etcd", "etcdctl", "wrk"), PACKAGES)
    folder = Path(tempfile.mkdtemp(prefix="stelae-bench-etcd-", dir="/var/tmp"))
    clients, peers = _free_ports(3), _free_ports(3)
    members = ",".join(f"n{i}=http://127.0.0.1:{port}" for i, port in enumerate(peers))
    processes = []
    try:
        for i, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            with (folder / f"{i}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(_command(i, client, peer, members, folder), stderr=log)
                )
        lua = folder / "put.lua"
        lua.write_text(_LUA)
        etcd = Etcd(_leader(clients), lua)
        try:
            yield etcd
        finally:
            etcd.close()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def _command(number: int, client: int, peer: int, members: str, folder: Path) -> list[str]:
    return [
        "etcd",
        *("--name", f"n{number}"),
        *("--data-dir", str(folder / f"n{number}")),
        *("--listen-client-urls", f"http://127.0.0.1:{client}"),
        *("--advertise-client-urls", f"http://127.0.0.1:{client}"),
        *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
        *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
        *("--initial-cluster", members),
        *("--log-level", "error"),
    ]


def _leader(ports: list[int]) -> str:
    """The address of the member that leads, once there is one."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        for port in ports:
            done = subprocess.run(
                ["etcdctl", "--endpoints", f"127.0.0.1:{port}", "endpoint", "status"],
                check=False,
                capture_output=True,
                text=True,
                env={**os.environ, "ETCDCTL_API": "3"},
            )
            fields = done.stdout.split(",")
            if done.returncode == 0 and len(fields) > 4 and fields[4].strip() == "true":
                return f"127.0.0.1:{port}"
        time.sleep(0.2)
    raise Missing(f"etcd has no leader after {START_TIMEOUT_S:.0f} s")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports
