"""`stelae up` in a terminal, and in a Ray that runs already: real processes and their signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from stelae.deploy.cluster_state import load_state
from stelae.deploy.locks import lock_holder
from tests.until import until

pytestmark = pytest.mark.ray

STELAE = (sys.executable, "-c", "from stelae.cli.app import main; main()")
UP_TIMEOUT_S = 300.0
END_TIMEOUT_S = 180.0
Spec = Callable[..., dict[str, Any]]


def _file(folder: Path, spec: dict[str, Any]) -> str:
    """A ``cluster.yaml`` of its own folder, and data beside it."""
    folder.mkdir()
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "stelae/v1", "kind": "Cluster", **spec}))
    return str(path)


def _stelae(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*STELAE, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=UP_TIMEOUT_S,
        check=False,
    )


class Terminal:
    """A command in the foreground: Ctrl-C reaches it and all that it started in its group."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [*STELAE, *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._seen: dict[int, psutil.Process] = {}

    def document(self) -> dict[str, Any]:
        """What it prints once it is up: one JSON document."""
        assert self.process.stdout is not None
        text = ""
        for line in self.process.stdout:
            text += line
            if line.rstrip() == "}":
                return dict(json.loads(text))
        raise AssertionError(f"it ended: {self.process.stderr and self.process.stderr.read()}")

    def look(self) -> list[str]:
        """The names of all processes below it so far."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            self._seen[process.pid] = process
        return [process.name() for process in self._seen.values() if process.is_running()]

    def wait_for(self, name: str) -> None:
        """Wait until such a process is below it."""
        until(lambda: any(name in each for each in self.look()), UP_TIMEOUT_S, f"process {name}")

    def ctrl_c(self) -> int:
        """Interrupt the group as a terminal does; the exit code."""
        self.look()
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(END_TIMEOUT_S)

    def left(self) -> list[str]:
        """What still runs of all that was ever seen below it."""
        _, alive = psutil.wait_procs(list(self._seen.values()), END_TIMEOUT_S)
        return [f"{process.pid} {' '.join(process.cmdline()[:3])}" for process in alive]

    def end(self) -> None:
        """Leave nothing behind, whatever the test found."""
        if self.process.poll() is None:
            self.look()
            self.process.kill()
            self.process.wait()
        for process in self._seen.values():
            if process.is_running():
                process.kill()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """``terminal(*arguments)``: a command in the foreground, ended with the test."""
    opened: list[Terminal] = []

    def open_terminal(*arguments: str, **environment: str) -> Terminal:
        opened.append(Terminal(*arguments, **environment))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.end()


def _is_at_rest(folder: Path) -> bool:
    """Whether nobody holds a cluster, and its state says that it does not run."""
    state = load_state(folder)
    return not lock_holder(folder) and not state.keeper_pid and not state.ray_address


# ---- a Ray of its own ------------------------------------------------------------------------


def test_ctrl_c_on_up_in_the_foreground_leaves_nothing_behind(
    ray_folder: Path, small_spec: Spec, terminal: Callable[..., Terminal]
) -> None:
    """No process of the cluster or of its Ray; it can be had again, and SIGTERM is the same."""
    data = ray_folder / "foreground-data"
    spec = _file(ray_folder / "foreground", small_spec(data))
    up = terminal("up", spec, "--foreground", "--json")
    document = up.document()
    assert document["pid"] == up.process.pid == lock_holder(data)
    assert any("raylet" in name for name in up.look())
    assert _stelae("status", spec).returncode == 0
    assert up.ctrl_c() == 0
    assert not up.left()
    assert _is_at_rest(data)
    again = terminal("up", spec, "--foreground", "--json")
    assert again.document()["cluster"] == "test"
    again.look()
    again.process.terminate()
    assert again.process.wait(END_TIMEOUT_S) == 0
    assert not again.left()


def test_ctrl_c_while_the_cluster_starts_leaves_nothing_behind(
    ray_folder: Path, small_spec: Spec, terminal: Callable[..., Terminal]
) -> None:
    """In the midst of the launch: Ray runs, servers are being made."""
    data = ray_folder / "early-data"
    spec = _file(ray_folder / "early", small_spec(data))
    up = terminal("up", spec, "--foreground")
    up.wait_for("raylet")
    assert up.ctrl_c() != 0
    assert not up.left()
    assert _is_at_rest(data)


# ---- a Ray that runs already -----------------------------------------------------------------


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture
def head(ray_folder: Path) -> Iterator[dict[str, str]]:
    """A Ray of somebody else's: started by ``ray start``, ended whatever happens.

    The environment in which ``auto`` finds it.
    """
    options = (
        "port",
        "ray-client-server-port",
        "dashboard-agent-listen-port",
        "dashboard-agent-grpc-port",
        "metrics-export-port",
        "node-manager-port",
        "object-manager-port",
    )
    ports = dict(zip(options, _free_ports(len(options)), strict=True))
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block"]
    command += ["--include-dashboard=false", "--num-cpus=2", "--node-ip-address=127.0.0.1"]
    command += ["--disable-usage-stats", f"--temp-dir={ray_folder / 'head'}"]
    command += [f"--{name}={port}" for name, port in ports.items()]
    address = f"127.0.0.1:{ports['port']}"
    log = ray_folder / "head.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    below: list[psutil.Process] = []
    try:
        started = "Ray runtime started"
        until(lambda: started in log.read_text(), UP_TIMEOUT_S, log.read_text, poll_s=0.1)
        yield {"RAY_ADDRESS": address}
        assert process.poll() is None, "Ray was ended by whom it does not belong to"
    finally:
        if process.poll() is None:
            below = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
        _, alive = psutil.wait_procs([psutil.Popen(["true"]), *below], 20.0)
        for each in alive:
            each.kill()
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_cluster_in_a_ray_that_runs_already_stays_until_it_is_taken_down(
    ray_folder: Path, small_spec: Spec, head: dict[str, str], terminal: Callable[..., Terminal]
) -> None:
    """``address: auto``: `up` returns, others find it, `down` ends the cluster and not the Ray."""
    data = ray_folder / "joined-data"
    spec = _file(ray_folder / "joined", small_spec(data, ray={"address": "auto"}))
    made = _stelae("up", spec, "--json", **head)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["pid"] == 0
    state = load_state(data)
    assert state.ray_address.rpartition(":")[2] == head["RAY_ADDRESS"].rpartition(":")[2]
    # It outlives the process that launched it, and is found by data_dir and by name.
    status = json.loads(_stelae("status", spec, "--json").stdout)
    pids = [server["pid"] for server in status["servers"] if server["state"] == "live"]
    assert len(pids) == 9
    program = "import stelae; db = stelae.connect('test'); print(db.tables()); db.close()"
    found = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **head}, capture_output=True, text=True
    )
    assert found.stdout.strip() == "[]", found.stderr
    # There is one of it.
    again = _stelae("up", spec, **head)
    assert again.returncode == 1
    assert "of cluster 'test' (process " in again.stderr
    assert "runs on it" in again.stderr
    assert all(map(psutil.pid_exists, pids)), "a launch that was refused ended the cluster"
    # Down finds its Ray by itself, and leaves that.
    down = _stelae("down", spec, "--json")
    assert json.loads(down.stdout)["was_up"], down.stderr
    until(
        lambda: not any(map(psutil.pid_exists, pids)),
        UP_TIMEOUT_S,
        (data / "cluster.json").read_text,
        poll_s=0.1,
    )
    assert _is_at_rest(data)
    # In the foreground: Ctrl-C ends the cluster alone.
    up = terminal("up", spec, "--foreground", "--json", **head)
    assert up.document()["cluster"] == "test"
    assert up.ctrl_c() == 0
    assert _is_at_rest(data)
    assert not json.loads(_stelae("down", spec, "--json").stdout)["was_up"]


def test_auto_without_a_ray_says_what_to_do(ray_folder: Path, small_spec: Spec) -> None:
    """One sentence on how to start one, or to have one of the cluster's own."""
    data = ray_folder / "alone-data"
    spec = _file(ray_folder / "alone", small_spec(data, ray={"address": "auto"}))
    refused = _stelae("up", spec)
    assert refused.returncode == 1
    assert "ray start --head" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not lock_holder(data)
