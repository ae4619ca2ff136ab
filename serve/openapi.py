"""What OpenAPI says of bodies and answers that the routes read and write themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from stelae.client.http_protocol import (
    ARROW_TYPE,
    IDEMPOTENCY_HEADER,
    JSON_TYPE,
    NDJSON_TYPE,
    PROBLEM_TYPE,
    TIMEOUT_HEADER,
)
from stelae.serve.models import Problem

_TITLES = {
    400: "The request is not valid.",
    401: "A token is needed.",
    403: "The token's role is too small.",
    404: "It is not there.",
    409: "It contradicts what is there.",
    412: "The version is another one.",
    413: "The request is too large.",
    415: "The media type is not taken.",
    422: "The request does not fit the schema.",
    429: "Too much at once; see `Retry-After`.",
    500: "Something went wrong, or data is damaged.",
    503: "Surely not done; repeat after `Retry-After`.",
    504: "Done or not: repeat only with the same `Idempotency-Key`.",
}
_EVERYWHERE = (400, 401, 403, 429, 500)
_PROBLEM_SCHEMA = {"$ref": "#/components/schemas/Problem"}
ARROW_SCHEMA = {"type": "string", "format": "binary", "description": "An Arrow IPC stream."}

TIMEOUT_PARAMETER = {
    "name": TIMEOUT_HEADER,
    "in": "header",
    "required": False,
    "description": "Seconds that the call may take; 30 if absent, 600 for scans.",
    "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 600},
}
STALENESS_PARAMETER = {
    "name": "max_staleness",
    "in": "query",
    "required": False,
    "description": "Seconds. Any replica of a table with `replicas` may answer whose state is "
    "provably no older, so that reads go on without a leader (503 `too-stale` if there is none in "
    "time). Absent: what is read holds every write acknowledged before. Other tables answer as if "
    "it were absent.",
    "schema": {"type": "number", "minimum": 0},
}
IDEMPOTENCY_PARAMETER = {
    "name": IDEMPOTENCY_HEADER,
    "in": "header",
    "required": False,
    "description": "1 to 255 visible ASCII characters, another for each write. The same write "
    "sent again with the same key (within an hour, with the same token) is not done again, and "
    "gets the first answer. Without it a write of which no answer came (504, or a connection "
    "that broke) may have been done: to repeat it is safe for upsert, update and delete "
    "without conditions if nobody else writes these rows; insert and conditions then refuse it. "
    "A tablet remembers 10,000 keys of the last hour; writes with further keys get 429, others "
    "go on.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route: these problems, and those that any route may answer with."""
    return {
        status: {
            "description": _TITLES[status],
            "model": Problem,
            "content": {PROBLEM_TYPE: {"schema": _PROBLEM_SCHEMA}},
        }
        for status in sorted({*_EVERYWHERE, *statuses})
    }


def json_body(
    model: type[BaseModel], *, arrow: bool = False, parameters: tuple[dict[str, Any], ...] = ()
) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that reads a JSON body of ``model`` (or an Arrow one)."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    content: dict[str, Any] = {JSON_TYPE: {"schema": schema}}
    if arrow:
        content[ARROW_TYPE] = {"schema": ARROW_SCHEMA}
    return {
        "requestBody": {"required": True, "content": content},
        "parameters": [TIMEOUT_PARAMETER, *parameters],
    }


def row_answers(
    model: type[BaseModel], statuses: tuple[int, ...], *, ndjson: bool = False
) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that answers with rows as JSON, Arrow, or JSON lines."""
    content: dict[str, Any] = {ARROW_TYPE: {"schema": ARROW_SCHEMA}}
    if ndjson:
        content[NDJSON_TYPE] = {"schema": {"type": "string", "description": "A row on each line."}}
    return {200: {"model": model, "content": content}, **problems(*statuses)}


def finish(document: dict[str, Any], models: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    """Add what FastAPI cannot know: the token, the models of bodies read by hand."""
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for model in models:
        found = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(found.pop("$defs", {}))
        schemas[model.__name__] = found
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _only_problems(operation)
            if path == "/healthz":
                operation["security"] = []
    return document


def _only_problems(operation: dict[str, Any]) -> None:
    """Errors are problem documents, and nothing else."""
    for status, response in operation["responses"].items():
        if status[0] in "45":
            response["content"] = {PROBLEM_TYPE: {"schema": _PROBLEM_SCHEMA}}
            if status in ("429", "503"):
                response["headers"] = {
                    "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}
                }
