"""Who writes over HTTP is told apart from the cluster's own clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from stelae.client.routing.session import Session
from stelae.core.ids import is_keyed, is_of_gateway
from stelae.core.records.tokens import Role
from stelae.serve.gateway.requests import numbered, ordered
from stelae.serve.gateway.tokens import Principal


def asked(query: str = "", **headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    path = {"path": "/v1/tables/t/rows", "query_string": query.encode(), "headers": pairs}
    state = {"principal": Principal("ada", Role.ADMIN)}
    return Request({"type": "http", "method": "PUT", "state": state, **path})


def client_of(session: Session) -> str:
    with session.request() as request:
        return request.client_id


def writer_of(request: Request, body: bytes = b"{}") -> str:
    """The client that a write of rows is numbered by."""
    record = SimpleNamespace(table_id="T")
    table: Any = SimpleNamespace(record=record, with_session=client_of)
    found: str = numbered(request, table, b"put", body)  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("name", ["a", "key-a", "http-a", "job1"])
def test_a_client_over_http_is_one_of_the_gateway_whatever_it_calls_itself(name: str) -> None:
    """For rows and for the catalog: so servers bound all such clients together."""
    request = asked(stelae_request_id=f"{name.replace('-', '')}.1.1")
    assert is_of_gateway(writer_of(request))
    session = ordered(request, b"create table", b"{}")
    assert session is not None
    assert is_of_gateway(client_of(session))


def test_a_key_is_one_of_the_keys() -> None:
    """Of one write: another row by the query is another write, as by the path."""
    first = writer_of(asked("key=a", idempotency_key="k"))
    assert is_keyed(first)
    assert writer_of(asked("key=a&columns=x", idempotency_key="k")) == first
    for other in ("key=b", "key=a&key=b", "", "column=a"):
        assert writer_of(asked(other, idempotency_key="k")) != first
