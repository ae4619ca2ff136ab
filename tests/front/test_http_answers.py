"""What OpenAPI says of answers: each has a type and an example, and is so in fact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from stelae.serve.app import make_app
from stelae.serve.gateway.tokens import TokenVerifier
from tests.front.http_flights import make_flights
from tests.front.http_world import PROBLEM, World

JSON = "application/json"
FREE_FORM = {("GET", f"/v1/tables/{{table}}/rows{key}") for key in ("", "/{key}")}
"""Rows are what their table is."""
OTHER = {("GET", "/")}
"""A page for people."""


def no_database() -> Any:
    raise AssertionError("nothing is asked of it")


def described() -> dict[str, Any]:
    document: dict[str, Any] = make_app(no_database, TokenVerifier()).openapi()
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield (method.upper(), path), operation


def resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def whole(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "components": document["components"]}


def test_every_answer_has_a_type_and_an_example_that_is_of_it() -> None:
    """On all routes: members by name, or lists of such; 204 and 304 have nothing."""
    document = described()
    routes = dict(operations(document))
    assert len(routes) > 40
    for route, operation in routes.items():
        if route in OTHER:
            continue
        good = {s: r for s, r in operation["responses"].items() if s[0] == "2"}
        assert good, route
        for status, response in good.items():
            if status == "204":
                assert "content" not in response, route
                continue
            content = response["content"][JSON]
            schema = resolved(content["schema"], document)
            if schema.get("type") == "array":
                schema = resolved(schema["items"], document)
            assert route in FREE_FORM or schema.get("properties"), (route, schema)
            jsonschema.validate(content["example"], whole(content["schema"], document))
            assert content["example"], route


def test_every_error_is_a_problem_document() -> None:
    """On all routes, and nothing else; 401, 403 and 500 are named everywhere. 408, 429 and 503 are
    sometimes Ray Serve's own, which knows no problem documents."""
    for route, operation in operations(described()):
        for status, response in operation["responses"].items():
            if status[0] in "45":
                kind, *others = response["content"]
                is_also_of_serve = status in ("408", "429", "503")
                assert others == (["text/plain"] if is_also_of_serve else []), route
                assert kind == PROBLEM, (route, status)
                assert response["content"][kind]["schema"]["$ref"].endswith("/Problem")
        if route[1] != "/healthz":
            assert {"401", "403", "408", "429", "500"} <= set(operation["responses"]), route


@pytest.mark.asyncio(loop_scope="module")
async def test_answers_are_as_they_are_described(world: World, http: httpx.AsyncClient) -> None:
    """Of every route that reads, and the main ones that write, on a cluster with a table."""
    await make_flights(world, http, 3)
    document = (await http.get("/openapi.json")).json()
    status = (await http.get("/v1/cluster")).json()
    tablet = status["tablets"][0]["id"]
    names = {"table": "flights", "key": "1", "tablet_id": tablet, "slug": "row-exists"}
    names |= {"tenant_id": "flights", "timeline_id": tablet, "node_id": "1"}
    bodies = {
        "rows:write": {"rows": [{"id": 1}]},
        "rows:get": {"keys": [1]},
        "rows:scan": {"page_rows": 1},
        "indexes": {"column": "dest"},
        "rows:find": {"column": "dest", "value": "LAX"},
    }
    seen = 0
    for (method, path), operation in sorted(operations(document), reverse=True):
        body = bodies.get(path.rpartition("/")[2])
        if path == "/v1/tservers/{server}:retire":
            body = {}
        if method != "GET" and (method != "POST" or body is None):
            continue
        server = next(s["id"] for s in status["servers"] if s["kind"] == "tserver")
        url = path.format(**names, operation_id="none", server=server)
        url += f"?id={tablet}" if path == "/v1/tablets" else ""
        answer = await http.request(method, url, json=body)
        described = operation["responses"][str(answer.status_code)]
        schema = described["content"][answer.headers["content-type"].partition(";")[0]]["schema"]
        if path != "/":
            jsonschema.validate(answer.json(), whole(schema, document))
        seen += answer.status_code < 300
    assert seen >= 22
