"""A drain of an apply, against real servers over TCP in this process, without Ray."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

import stelae
from stelae.applying.run import _Apply
from stelae.coordinator.apply.plan import Act, Step
from stelae.core.config.spec_file import load_spec
from stelae.deploy.cluster_state import SECRET_FILE, ClusterState
from tests.cluster_fixture import CLUSTER, SECRET
from tests.served import served

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    ("kind", "name", "what"),
    [("tserver", "tserver-1", "tablets"), ("backup", "backup-1", "segments")],
)
def test_a_drain_under_a_turn_tells_how_far_it_is(
    kind: str, name: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told by the thread of the database, which a look at whose turn it is waits for."""
    told: list[str] = []
    with served(tmp_path, tservers=3, backups=3) as here, here.database() as database:
        table = database.create_table(
            "t", SCHEMA, key="id", partition=stelae.hash_partition("id", 3)
        )
        table.upsert([{"id": number} for number in range(100)])
        work = _Apply.__new__(_Apply)
        work._database, work.cluster, work.trace, work.home = database, CLUSTER, "", tmp_path
        work._spec = load_spec({"cluster": CLUSTER, "serve": None, "spark": None})
        work._progress = lambda done, of, text: told.append(text)
        work._deadline = time.monotonic() + 60.0
        ClusterState(CLUSTER, str(tmp_path), {"master-0": str(here.link.masters[0])}).save()
        (tmp_path / SECRET_FILE).write_bytes(SECRET)
        monkeypatch.setattr(_Apply, "_publish", lambda _: None)
        monkeypatch.setattr(_Apply, "_is_next", lambda *_: True)  # it looks at Ray's actors
        step = Step(Act.DRAIN, kind, name)
        with database.turn("apply", "ada") as work.sure:
            assert work._take(step, 0, 1)
            work.sure()
        assert table.count() == 100
    left = [text for text in told if f" {what} are left" in text]
    assert left[0].startswith(f"{step}: ")
    assert left[-1] == f"{step}: 0 {what} are left"
    assert len(left) > 1
