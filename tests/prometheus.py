"""A private Prometheus for tests: Debian's binaries, a directory and a port of its own."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import httpx

from tests.services import need
from tests.until import until

START_TIMEOUT_S = 30.0


def needed_program(name: str = "prometheus") -> str:
    """Where Prometheus, or its ``promtool``, is; without it the test is skipped, or fails."""
    return need(
        shutil.which(name), f"{name} is not on the PATH (Debian: apt-get install prometheus)"
    )


class Prometheus:
    """One server that scrapes these targets each second."""

    def __init__(self, program: str, targets: list[dict[str, Any]]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="prom-", dir="/tmp"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        (self._folder / "targets.json").write_text(json.dumps(targets))
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [
                {"job_name": "ray", "file_sd_configs": [{"files": ["targets.json"]}]}
            ],
        }
        (self._folder / "prometheus.yml").write_text(json.dumps(config))  # YAML has JSON in it
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={self._folder}/prometheus.yml",
                f"--storage.tsdb.path={self._folder}/data",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                "--log.level=warn",
            ],
            cwd=self._folder,
        )
        try:
            self._wait_ready()
        except BaseException:
            self.remove()
            raise

    def _wait_ready(self) -> None:
        def is_ready() -> bool:
            assert self._process.poll() is None, "Prometheus has ended; see above"
            return httpx.get(f"{self.url}/-/ready", timeout=2.0).status_code == 200

        retried = (httpx.TransportError,)
        until(is_ready, START_TIMEOUT_S, "Prometheus is ready", poll_s=0.1, retried=retried)

    def query(self, text: str) -> list[tuple[dict[str, str], float]]:
        """The series of an instant query; a number is one without labels."""
        answer = httpx.post(f"{self.url}/api/v1/query", data={"query": text}, timeout=20.0).json()
        assert answer["status"] == "success", f"{text}: {answer}"
        data = answer["data"]
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def remove(self) -> None:
        self._process.kill()
        self._process.wait(20)
        shutil.rmtree(self._folder, ignore_errors=True)
