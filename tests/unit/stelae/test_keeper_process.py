"""`stelae.keeper_process`: a keeper that has ended counts as ended, whoever its parent is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stelae import keeper_process
from stelae.core.config.spec import ClusterSpec
from stelae.keeper_process import end_keeper, start_keeper
from tests.until import until

LONG_S = 60.0
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
sys.stdin.read()
"""
KEEPER = """
import json, os, signal, sys
json.load(sys.stdin)
with open(int(sys.argv[1]), "w", encoding="utf-8") as channel:
    up = {"cluster": "demo", "data_dir": "d", "http": "", "pid": os.getpid()}
    channel.write(json.dumps({"up": up}) + "\\n")
signal.pause()
"""


@pytest.fixture
def unreaped() -> Iterator[int]:
    """A process whose parent, which is not this process, never waits for it."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            yield pid
        finally:
            psutil.Process(pid).kill()  # a zombie by now, unless the test has failed


def test_a_keeper_that_nobody_waits_for_has_ended(
    unreaped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent is the kernel that launched with ``detach=True``: the zombie stays until then."""
    monkeypatch.setattr(keeper_process, "LEFT_TIMEOUT_S", 1.0)
    monkeypatch.setattr(keeper_process, "DOWN_TIMEOUT_S", 10.0)
    end_keeper(unreaped)
    assert psutil.Process(unreaped).status() == psutil.STATUS_ZOMBIE


def test_who_starts_a_keeper_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the background, once the cluster is up: no zombie stays in a kernel that runs on."""
    (tmp_path / "brief_keeper.py").write_text(KEEPER, encoding="utf-8")
    monkeypatch.setattr(keeper_process, "MODULE", "brief_keeper")
    up = start_keeper(ClusterSpec(data_dir=str(tmp_path)), lambda text: None)
    psutil.Process(up.pid).terminate()
    until(lambda: not psutil.pid_exists(up.pid), LONG_S, "the keeper is waited for")
