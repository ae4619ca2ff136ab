"""A cluster on a real Ray is given other files while it is written: it grows, changes, shrinks."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import stelae
from stelae import Table
from stelae.core.errors import AlreadyRunning, InvalidArgument, SpecChanged
from stelae.deploy import cluster_state
from stelae.deploy.asked import kept_spec
from tests.until import until

pytestmark = [pytest.mark.ray, pytest.mark.soak]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])


@contextmanager
def written_all_the_while(*tables: Table) -> Iterator[list[int]]:
    """Row after row into each; yields the ids that are acknowledged."""
    stop, written = threading.Event(), list[int]()

    def write() -> None:
        while not stop.is_set():
            number = len(written)
            for table in tables:
                table.upsert({"id": number, "n": 2 * number}, timeout=60.0)
            written.append(number)
            time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        stop.set()
        writer.join()


def test_it_grows_changes_and_shrinks_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    """Adds, refusals, a drained server and backups started anew, while each row written is kept."""
    spec = {
        "cluster": "applied",
        "data_dir": str(tmp_path),
        "ray": {"address": "local", "num_cpus": 2},
        "masters": {"count": 1},
        "tservers": {"count": 3, "memory": "128MiB"},
        "backups": {"count": 2},
        "serve": None,
        "spark": None,
    }
    with stelae.launch(spec) as database:
        table = database.create_table("rows", SCHEMA, key="id", durability=stelae.replicas(3))
        owned = database.create_table(
            "owned", SCHEMA, key="id", durability=stelae.segments("disk", "disk")
        )
        with written_all_the_while(table, owned) as written:
            more = {**spec, "tservers": {"count": 4, "memory": "128MiB"}, "backups": {"count": 3}}
            shown = database.apply(more, dry_run=True)
            assert [str(step) for step in shown.steps] == ["add backup-3", "add tserver-4"]
            assert len(database.tservers()) == 3, "a dry run changes nothing"
            with pytest.raises(SpecChanged, match="was to be of 99"):
                database.apply(more, if_generation=99)
            applied = database.apply(more, if_generation=shown.generation)
            assert applied.is_done
            assert applied.generation == shown.generation + 1
            assert len(database.tservers()) == 4
            assert database.apply(more).steps == (), "again does nothing"

            with pytest.raises(InvalidArgument, match="replicas\\(3\\) needs 3") as refused:
                database.apply({**spec, "tservers": {"count": 2, "memory": "128MiB"}})
            assert "replicas(3) needs 3" in str(refused.value)
            with (
                stelae.connect(str(tmp_path)) as another,
                another.turn("apply", "ada"),
                pytest.raises(AlreadyRunning, match=r"^ada is changing this cluster \(apply\)"),
            ):
                database.apply({**more, "tservers": {"count": 3, "memory": "128MiB"}})

            fewer = {**more, "tservers": {"count": 3, "memory": "128MiB"}}
            assert [step.act for step in database.apply(fewer).steps] == ["drain", "remove"]
            kept = kept_spec(tmp_path)
            assert kept is not None
            assert kept.is_done
            assert kept.spec["tservers"]["count"] == 3

            slower = {**fewer, "safekeepers": {"count": 1}, "media": {"disk": {"path": "disk"}}}
            done = database.apply(slower).steps
            assert [str(step).split(" (")[0] for step in done] == [
                "add safekeeper-1", "restart backup-1", "restart backup-2", "restart backup-3",
            ]  # fmt: skip
            two = {**slower, "backups": {"count": 2}}
            taken = [str(step) for step in database.apply(two).steps]
            assert taken == ["drain backup-3", "remove backup-3"]
            with pytest.raises(InvalidArgument, match=r"table 'owned' .* needs 2"):
                database.apply({**slower, "backups": {"count": 1}})
        assert table.count() == owned.count() == len(written)
        assert database.check(wait=20.0).is_well


class Interrupted(Exception):
    """An operator's Ctrl-C."""


def test_other_values_by_starting_anew_one_after_the_other_interrupted_and_given_again(
    tmp_path: Path,
) -> None:
    """What the first operator has done is not done again, and calls are answered all the time."""
    spec = {
        "cluster": "renewed",
        "data_dir": str(tmp_path),
        "ray": {"address": "local", "num_cpus": 2},
        "masters": {"count": 3},
        "tservers": {"count": 3, "memory": "128MiB"},
        "backups": {"count": 2},
        "serve": None,
        "spark": None,
    }

    def interrupt(done: int, of: int, text: str) -> None:
        if done == 1:
            raise Interrupted

    with stelae.launch(spec) as database:
        table = database.create_table("rows", SCHEMA, key="id", durability=stelae.replicas(3))
        owned = database.create_table("owned", SCHEMA, key="id")
        written = 0
        changed = {
            **spec,
            "tservers": {"count": 3, "memory": "160MiB"},
            "recovery": {"split_above_rows": 1_000_000},
        }
        with pytest.raises(Interrupted):
            database.apply(changed, progress=interrupt)

        def progress(done: int, of: int, text: str) -> None:
            nonlocal written
            for each in (table, owned):
                each.upsert({"id": written, "n": done}, timeout=60.0)
            written += 1

        with stelae.connect(str(tmp_path)) as another:  # another operator goes on with it
            done = another.apply(changed, progress=progress)
        assert done.is_done
        assert [step.name for step in done.steps[:2]] == ["tserver-2", "tserver-3"]
        assert sorted(step.name for step in done.steps[2:]) == ["master-1", "master-2", "master-3"]
        assert {s["memory_limit_bytes"] for s in database.tservers()} != {128 << 20}
        assert table.count() == owned.count() == written
        assert database.check(wait=20.0).is_well


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def grow_by_http(base: str, token: str) -> dict[str, Any]:
    """Put a spec with one backup more, and follow what is done for it. The spec that was put."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=base, headers=headers, timeout=60.0) as client:
        kept = client.get("/v1/cluster/spec")
        assert kept.json()["done"], kept.text
        more = {**kept.json()["spec"], "backups": {"count": 2}}
        match = {"If-Match": kept.headers["etag"]}
        shown = client.put("/v1/cluster/spec?dry_run=true", json=more, headers=match).json()
        assert [step["name"] for step in shown["steps"]] == ["backup-2"]
        begun = client.put("/v1/cluster/spec", json=more, headers=match)
        assert begun.status_code == 202, begun.text

        def ended() -> dict[str, Any]:
            found: dict[str, Any] = client.get(begun.headers["location"]).json()
            return found if found["state"] != "running" else {}

        told = until(ended, 60.0, "the order is carried out", poll_s=0.2)
        assert (told["state"], told["error"]) == ("done", "")
        assert client.put("/v1/cluster/spec", json=more, headers=match).status_code == 412
    return more


def test_the_front_comes_and_moves_and_it_grows_by_what_is_put_to_it(
    tmp_path: Path,
) -> None:
    """A port that is taken is refused first; a server is added over HTTP, and seen as it goes."""
    spec: dict[str, Any] = {
        "cluster": "fronted",
        "data_dir": str(tmp_path),
        "ray": {"address": "local", "num_cpus": 2},
        "masters": {"count": 1},
        "tservers": {"count": 1, "memory": "128MiB"},
        "backups": {"count": 1},
        "serve": None,
        "spark": None,
    }
    first, second = free_port(), free_port()
    with stelae.launch(spec) as database:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", first))
            taken.listen()
            with pytest.raises(InvalidArgument, match=f"serve.port {first}"):
                database.apply({**spec, "serve": {"port": first}})
        for port in (first, second):
            done = database.apply({**spec, "serve": {"port": port}})
            assert [step.act for step in done.steps] == ["change"]
            assert cluster_state.load_state(tmp_path).http == f"http://127.0.0.1:{port}"
        bounded = {"port": second, "limits": {"body": "1KiB"}}
        done = database.apply({**spec, "serve": bounded})
        assert [step.act for step in done.steps] == ["change"]
        assert database.apply({**spec, "serve": bounded}).steps == ()
        token = (tmp_path / cluster_state.ADMIN_TOKEN_FILE).read_text().strip()
        answer = httpx.post(
            f"http://127.0.0.1:{second}/v1/tables",
            content=b"x" * 2000,
            headers={"Authorization": f"Bearer {token}"},
        )
        assert answer.status_code == 413, answer.text
        database.apply({**spec, "serve": {"port": second}})
        token = (tmp_path / cluster_state.ADMIN_TOKEN_FILE).read_text().strip()
        base = f"http://127.0.0.1:{second}"
        more = grow_by_http(base, token)
        backups = [s for s in database.status()["servers"] if s["kind"] == "backup"]
        assert len(backups) == 2
        assert database.apply({**more, "serve": None}).is_done
        with pytest.raises(httpx.ConnectError):
            httpx.get(base)
