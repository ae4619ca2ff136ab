"""Requests made by schemathesis from the API's own description, and what their answers must be.

Statuses, media types and bodies are those of the description, and none is a fault of ours. Of
safekeepers and timelines half of the requests name one that is there.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import httpx


def ask_every_route(
    schema: Any,
    headers: Mapping[str, str],
    there: Mapping[str, object],
    *,
    calls_per_route: int,
    left_out: Collection[str] = (),
    seconds: float = float("inf"),
) -> dict[str, set[int]]:
    """Ask all routes but those ``left_out``, by their labels; the statuses of each.

    ``there``: path parameters that name what there is. ``seconds``: after so long each route that
    is left is asked once.
    """
    statuses: dict[str, set[int]] = {}
    until = time.monotonic() + seconds
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.label not in left_out:
            statuses[operation.label] = _ask(operation, headers, there, calls_per_route, until)
    return statuses


def _ask(
    operation: Any,
    headers: Mapping[str, str],
    there: Mapping[str, object],
    calls: int,
    until: float,
) -> set[int]:
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [
        no_unexpected_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]
    statuses: set[int] = set()

    @given(case=operation.as_strategy(), is_there=st.booleans())
    @settings(
        max_examples=calls,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any, is_there: bool) -> None:
        if statuses and time.monotonic() > until:
            return
        if is_there and operation.path.startswith("/control/"):
            for name in case.path_parameters:
                case.path_parameters[name] = there[name]
        answer = case.call_and_validate(headers=dict(headers), checks=checks)
        statuses.add(answer.status_code)

    check()
    return statuses


def check_control_routes(statuses: Mapping[str, set[int]]) -> None:
    """Those of safekeepers were asked, and what only reads found what there is."""
    control = {label: found for label, found in statuses.items() if "/control/" in label}
    unreached = [
        label for label in control if label.startswith("GET ") and 200 not in control[label]
    ]
    assert len(control) >= 11, sorted(control)
    assert not unreached, control


async def make_timeline(client: httpx.AsyncClient) -> dict[str, object]:
    """A table with a timeline; the path parameters that name them, and a safekeeper."""
    body = {
        "name": "timelines",
        "columns": [{"name": "id", "type": "int64", "nullable": False}],
        "key": ["id"],
        "durability": {"wal": 3, "segments": ["disk"]},
    }
    assert (await client.post("/v1/tables", json=body)).status_code == 201
    found = (await client.get("/v1/tables/timelines/tablets")).json()["tablets"]
    tablet = found[0]["tablet"]["tablet_id"]
    return {"tenant_id": "timelines", "timeline_id": tablet, "node_id": 1}


def no_unexpected_error(context: object, response: Any, case: object) -> None:
    """503 and 504 are answers (a deadline of a nanosecond gets them); 500 and 502 are not."""
    assert response.status_code not in (500, 502), response.text
