"""What a planned restart waits for."""

from __future__ import annotations

from typing import Any

import pytest

from stelae.core.errors import InvalidArgument
from stelae.restarts import find_server, what_is_missing


def replica(role: str = "follower", **changes: Any) -> dict[str, Any]:
    return {"uuid": "u1", "member": "voter", "role": role, **changes}


def status(
    incarnation: int = 3, state: str = "live", tablets: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    server = {"uuid": "u1", "incarnation": incarnation, "state": state}
    return {"servers": [{**server, "incarnation": 2, "state": "dead"}, server], "tablets": tablets}


def tablet(*replicas: dict[str, Any], state: str = "running") -> dict[str, Any]:
    return {"state": state, "replicas": list(replicas)} if replicas else {"state": state}


@pytest.mark.parametrize(
    ("document", "missing"),
    [
        (status(2, tablets=[]), "does not live"),
        (status(3, "dead", tablets=[]), "does not live"),
        (status(tablets=[]), ""),
        (status(tablets=[tablet(replica("leader")), tablet()]), ""),
        (status(tablets=[tablet(replica("")), tablet(replica("candidate"))]), "2 of its replicas"),
        (status(tablets=[tablet(replica(heard=False))]), "1 of its replicas"),
        (status(tablets=[tablet(replica("", uuid="u2"))]), ""),
        (status(tablets=[tablet(replica("tombstone", member="none"))]), ""),
        (status(tablets=[tablet(state="recovering")]), "1 tablets are being recovered"),
    ],
)
def test_a_server_is_back_when_it_takes_part_with_all_its_replicas(
    document: dict[str, Any], missing: str
) -> None:
    """In a new run, in every group it is a member of; and nothing is being recovered."""
    found = what_is_missing(document, "u1", 2)
    assert missing in found
    assert bool(found) == bool(missing)


def test_tservers_masters_and_safekeepers_are_restarted_and_nobody_else() -> None:
    """By name or UUID, if they live: a backup is restarted by whoever runs it."""
    kinds = {"t": "tserver", "m": "master", "s": "safekeeper", "b": "backup", "d": "tserver"}
    servers = [
        {"kind": kind, "id": name, "uuid": f"u-{name}", "state": "dead" if name == "d" else "live"}
        for name, kind in kinds.items()
    ]
    assert find_server({"servers": servers}, "t")["uuid"] == "u-t"
    assert find_server({"servers": servers}, "u-m")["id"] == "m"
    assert find_server({"servers": servers}, "s")["kind"] == "safekeeper"
    for wrong in ("b", "d", "nobody"):
        with pytest.raises(InvalidArgument, match="no tserver, master or safekeeper that lives"):
            find_server({"servers": servers}, wrong)
