"""Ray nodes with addresses of their own on one machine: a network namespace for each, and a bridge.

The head runs in the namespace of the tests, at the bridge's address. Each other node has a
namespace with one interface. A node is killed whole; an interface goes down; and what one node
sends to another vanishes, as a neighbour's wrong hardware address makes it do: neither of the two
is told. With a delay, the link of each node goes through a `tests.nodes.delay_line`. Needs root,
and ``ip`` of iproute2.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from stelae.runtime.free_ports import free_port
from tests.nodes.delay_line import READY, TUN
from tests.until import until

SUBNET = "198.18.77"
"""Of the range that RFC 2544 sets aside for tests of networks."""
HEAD = f"{SUBNET}.254"
NOBODY = "02:00:00:00:00:99"
"""Hardware address that no interface has."""
START_TIMEOUT_S = 120.0
STARTS = 3
"""Tries of a node: ``ray start`` gives up after 30 s, which a machine that is busy may need."""
STARTED = b"This command will now block"
"""What ``ray start --block`` says once the node runs."""
END_TIMEOUT_S = 60.0
OBJECT_STORE_BYTES = 100 << 20
LINE_MTU = 60_000
"""Bytes of a frame on a line with a delay, of which each costs the line some microseconds."""


def why_not() -> str:
    """Why namespaces cannot be made here; empty: they can."""
    if os.geteuid() != 0:
        return "network namespaces are for root"
    if shutil.which("ip") is None:
        return "there is no `ip` (Debian package iproute2)"
    name = f"st-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespace can be made: {made.stderr.strip()}"
    _ip("netns", "del", name)
    return ""


def why_no_delay() -> str:
    """Why links with a delay cannot be made here; empty: they can."""
    return why_not() or ("" if os.access(TUN, os.W_OK) else f"{TUN} cannot be opened")


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def _remove_left() -> None:
    """Take away what a run that was killed has left: its bridge has the addresses of the next."""
    for line in _ip("netns", "list").splitlines():
        namespace = line.split()[0]
        if (found := re.fullmatch(r"st-(\d+)-\d+", namespace)) and _has_ended(found[1]):
            _empty(namespace)
            _ip("netns", "del", namespace)
    for line in _ip("-brief", "link", "show", "type", "bridge").splitlines():
        bridge = line.split()[0]
        if (found := re.fullmatch(r"st(\d+)", bridge)) and _has_ended(found[1]):
            _ip("link", "del", bridge)


def _has_ended(pid: str) -> bool:
    return not psutil.pid_exists(int(pid))


def _empty(namespace: str, reap: Callable[[], None] = lambda: None) -> None:
    """Kill all processes of a namespace. ``reap``: collects those that this process started."""

    def is_empty() -> bool:
        pids = [int(pid) for pid in _ip("netns", "pids", namespace).split()]
        for pid in pids:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        reap()
        return not pids

    until(is_empty, END_TIMEOUT_S, f"no process is left in {namespace}")


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node that is not the head."""

    number: int
    namespace: str
    outer: str
    """Name of the bridge's end of its link."""
    inner: str = "eth0"
    """Name of its own end, within the namespace."""

    @property
    def address(self) -> str:
        return f"{SUBNET}.{self.number}"


class NodeNetwork:
    """A Ray of a head and some nodes. `end` takes all of it away."""

    def __init__(
        self,
        folder: Path,
        count: int,
        racks: Sequence[str] = (),
        *,
        delay_s: float = 0.0,
        loss: float = 0.0,
        object_store_bytes: int = OBJECT_STORE_BYTES,
    ) -> None:
        """``racks``: of the head and of each node; empty: it has no label of racks.

        ``delay_s``: between two nodes, one way; half of it between the head and a node. ``loss``:
        the share of frames that each of the two links on the way loses.
        """
        self._folder = folder
        self._delay_s, self._loss = delay_s, loss
        self._object_store_bytes = object_store_bytes
        self._lines: list[subprocess.Popen[bytes]] = []
        addresses = [HEAD, *(f"{SUBNET}.{n}" for n in range(1, count + 1))]
        self.racks = {a: rack for a, rack in zip(addresses, racks, strict=False) if rack}
        self._bridge = f"st{os.getpid()}"
        self.nodes = [
            RayNode(n, f"st-{os.getpid()}-{n}", f"st{os.getpid()}v{n}") for n in range(1, count + 1)
        ]
        self._head_port = 0
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def ray_address(self) -> str:
        return f"{HEAD}:{self._head_port}"

    def node_at(self, address: str) -> RayNode:
        """The node with an address, which may have a port."""
        (found,) = [node for node in self.nodes if node.address == address.partition(":")[0]]
        return found

    def address_of(self, pid: int) -> str:
        """The address of the node that a process runs on."""
        namespace = _ip("netns", "identify", str(pid)).strip()
        return next((each.address for each in self.nodes if each.namespace == namespace), HEAD)

    # ---- making it ---------------------------------------------------------------------------

    def start(self) -> None:
        """Make the network, and start Ray on each of its nodes."""
        self.connect()
        self._head_port = free_port(HEAD)
        self._head = self._ray_start(
            [], "--head", f"--port={self._head_port}", "--include-dashboard=false", address=HEAD
        )
        for node in self.nodes:
            self.start_ray(node)

    def connect(self) -> None:
        """Make the network."""
        _remove_left()
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{HEAD}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for node in self.nodes:
            self._connect(node)

    def _connect(self, node: RayNode) -> None:
        inside = ("-n", node.namespace)
        _ip("netns", "add", node.namespace)
        if self._delay_s or self._loss:
            self._lay_line(node)
        else:
            _ip(
                *("link", "add", node.outer, "type", "veth"),
                *("peer", "name", node.inner, "netns", node.namespace),
            )
        _ip("link", "set", node.outer, "master", self._bridge, "up")
        _ip(*inside, "addr", "add", f"{node.address}/24", "dev", node.inner)
        _ip(*inside, "link", "set", node.inner, "up")
        _ip(*inside, "link", "set", "lo", "up")

    def _lay_line(self, node: RayNode) -> None:
        """Connect a node by a line with a delay. Large frames keep it from costing much time."""
        made = f"{node.outer}i"
        arguments = (made, node.outer, str(self._delay_s / 2), str(self._loss), str(node.number))
        line = subprocess.Popen(
            [sys.executable, "-m", "tests.nodes.delay_line", *arguments], stdout=subprocess.PIPE
        )
        self._lines.append(line)
        assert line.stdout is not None
        assert line.stdout.readline().strip().decode() == READY, f"no line to {node.address}"
        for end in (made, node.outer):
            _ip("link", "set", end, "mtu", str(LINE_MTU))
        _ip("link", "set", made, "netns", node.namespace, "name", node.inner)

    def start_ray(self, node: RayNode) -> None:
        """Start a raylet on a node that has none."""
        within = ["ip", "netns", "exec", node.namespace]
        self._ray_start(within, f"--address={self.ray_address}", address=node.address)

    def _ray_start(
        self, within: list[str], *arguments: str, address: str
    ) -> subprocess.Popen[bytes]:
        command = [
            *within,
            str(Path(sys.executable).with_name("ray")),
            "start",
            *arguments,
            f"--node-ip-address={address}",
            "--num-cpus=1",
            f"--object-store-memory={self._object_store_bytes}",
            *([f"--labels=rack={self.racks[address]}"] if address in self.racks else []),
            "--disable-usage-stats",
            "--block",
        ]
        log = self._folder / f"ray-{address}.log"
        for _ in range(STARTS):
            if self._has_started(command, log):
                return self._started[-1]
        raise AssertionError(log.read_text(errors="replace")[-2000:])

    def _has_started(self, command: list[str], log: Path) -> bool:
        """Run ``ray start --block`` until the node runs, or it has failed."""
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        self._started.append(process)

        def is_over() -> bool:
            return STARTED in log.read_bytes() or process.poll() is not None

        until(is_over, START_TIMEOUT_S, f"{' '.join(command)} has started a node, or failed")
        return process.poll() is None

    # ---- faults ------------------------------------------------------------------------------

    def kill(self, node: RayNode) -> None:
        """Kill all of a node's processes at once, as a power cut does; its disk stays."""
        _empty(node.namespace, self._reap)

    @contextmanager
    def deaf(self, sender: RayNode, receiver: RayNode) -> Iterator[None]:
        """What ``sender`` sends to ``receiver`` vanishes meanwhile; the other way all arrives."""
        place = (receiver.address, "dev", sender.inner)
        inside = ("-n", sender.namespace)
        _ip(*inside, "neigh", "replace", *place, "lladdr", NOBODY, "nud", "permanent")
        try:
            yield
        finally:
            _ip(*inside, "neigh", "del", *place)

    @contextmanager
    def apart(self, node: RayNode) -> Iterator[None]:
        """The node's interface is down meanwhile."""
        _ip("link", "set", node.outer, "down")
        try:
            yield
        finally:
            _ip("link", "set", node.outer, "up")

    @contextmanager
    def head_away(self) -> Iterator[None]:
        """All processes of the head hang meanwhile: its GCS, its raylet, and its servers.

        The process of the test, which is at the head's address, goes on.
        """
        head = psutil.Process(self._head.pid)
        stopped = [head, *head.children(recursive=True)]
        for process in stopped:
            process.suspend()
        try:
            yield
        finally:
            for process in stopped:
                process.resume()

    @contextmanager
    def lost(self, address: str) -> Iterator[None]:
        """The node with an address is killed, and comes back afterwards; the head hangs instead."""
        if address == HEAD:
            with self.head_away():
                yield
            return
        node = self.node_at(address)
        self.kill(node)
        try:
            yield
        finally:
            self.start_ray(node)

    # ---- the end -----------------------------------------------------------------------------

    def end(self) -> None:
        """End all processes, and take the network away."""
        started = [process for process in self._started if process.poll() is None]
        below = [
            child for each in started for child in psutil.Process(each.pid).children(recursive=True)
        ]
        for process in started:
            process.kill()
        for child in below:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue  # it ended with its parent
        made = {line.split()[0] for line in _ip("netns", "list").splitlines()}
        for node in self.nodes:
            if node.namespace in made:
                self.kill(node)
                _ip("netns", "del", node.namespace)  # its link goes with it
        psutil.wait_procs(below, END_TIMEOUT_S)
        self._reap()
        for line in self._lines:
            line.kill()
            line.wait(END_TIMEOUT_S)
        if self._bridge in _ip("-brief", "link", "show", "type", "bridge"):
            _ip("link", "del", self._bridge)

    def _reap(self) -> None:
        self._started = [process for process in self._started if process.poll() is None]
