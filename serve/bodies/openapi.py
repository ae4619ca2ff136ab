"""What OpenAPI says of bodies and answers that the routes read and write themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from stelae.client.http.protocol import (
    ARROW_TYPE,
    IDEMPOTENCY_HEADER,
    JSON_TYPE,
    NDJSON_TYPE,
    PROBLEM_TYPE,
    TIMEOUT_HEADER,
)
from stelae.serve.bodies.examples import add_examples
from stelae.serve.bodies.models import Problem

_TITLES = {
    400: "The request is not valid.",
    401: "A token is needed.",
    403: "The token's role is too small.",
    404: "It is not there.",
    409: "It contradicts what is there.",
    410: "The scan's pages are kept no more: begin it anew.",
    412: "`If-Match` or `If-None-Match` does not hold.",
    413: "The request is too large.",
    415: "The media type is not taken.",
    422: "The request does not fit the schema.",
    429: "Too much at once; see `Retry-After`.",
    500: "Something went wrong, or data is damaged.",
    503: "Surely not done; repeat after `Retry-After`.",
    504: "Done or not: repeat only with the same `Idempotency-Key`.",
}
_EVERYWHERE = (400, 401, 403, 413, 429, 500)
_WITH_BODY = (415, 422)
TIMED_OUT = "408"
_PLAIN = {"text/plain": {"schema": {"type": "string"}}}
_TOO_BUSY = "In plain text it is Ray Serve's own: no replica takes it now, and it is not done."
_PROBLEM_SCHEMA = {"$ref": "#/components/schemas/Problem"}
_TOO_SLOW = {
    "description": "The body came too slowly, and nothing was done (of a stream: but for what "
    "`notes` say). In plain text it is Ray Serve's own, if the request has "
    "`X-Request-Timeout-Seconds`, a header of Serve's, and as 504: done or not.",
    "content": {PROBLEM_TYPE: {"schema": _PROBLEM_SCHEMA}, **_PLAIN},
}
"""Serve's own is sent while ours is cancelled: no text of ours can take its place."""
ARROW_SCHEMA = {"type": "string", "format": "binary", "description": "An Arrow IPC stream."}

TIMEOUT_PARAMETER = {
    "name": TIMEOUT_HEADER,
    "in": "header",
    "required": False,
    "description": "Seconds that the call may take, at most `serve.limits.timeout_max` of "
    "`cluster.yaml`. If absent `serve.limits.timeout` (30), and the longest for scans.",
    "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 600},
}
ENCODING_PARAMETER = {
    "name": "Content-Encoding",
    "in": "header",
    "required": False,
    "description": "`gzip`: the body is packed so. It counts as long as it is unpacked.",
    "schema": {"type": "string", "enum": ["gzip", "identity"]},
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
IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": "ETags, one of which it must have, or `*`: it must be there; otherwise 412. A "
    "weak one (`W/`) names nothing.",
    "schema": {"type": "string"},
    "example": '"7"',
}
IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "ETags, none of which it may have, or `*`: it may not be there; otherwise 304 "
    "of a read, 412 of others.",
    "schema": {"type": "string"},
    "example": "*",
}
NOT_MODIFIED = {"description": "It has an ETag that `If-None-Match` names."}
IDEMPOTENCY_PARAMETER = {
    "name": IDEMPOTENCY_HEADER,
    "in": "header",
    "required": False,
    "description": "1 to 255 visible ASCII characters, another for each write. The same write "
    "sent again with the same key (within an hour, with the same token) is not done again, and "
    "gets the first answer. Without it a write of which no answer came (504, or a connection "
    "that broke) may have been done: to repeat it is safe for upsert, update and delete "
    "without conditions if nobody else writes these rows; insert and conditions then refuse it. "
    "A tablet remembers 20,000 keys of the last hour; writes with further keys get 429, others "
    "go on.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}

ORDER_PARAMETER = {
    **IDEMPOTENCY_PARAMETER,
    "description": "1 to 255 visible ASCII characters, another for each request. The same request "
    "(its body byte for byte, with the same token) sent again with the same key does nothing "
    "again, and is answered as the first one was; 422 `key-reused` if the key came with another "
    "request before. The masters remember the last 1,000 keys and clients that changed anything.",
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
    content: dict[str, Any] = {JSON_TYPE: {"schema": schema, "example": example_of(model)}}
    if arrow:
        content[ARROW_TYPE] = {"schema": ARROW_SCHEMA}
    return {
        "requestBody": {"required": True, "content": content},
        "parameters": [TIMEOUT_PARAMETER, ENCODING_PARAMETER, *parameters],
    }


def example_of(model: type[BaseModel]) -> Any:
    """A body as somebody would send it: the model's own, or one of its fields' examples."""
    extra = model.model_config.get("json_schema_extra")
    examples = extra.get("examples") if isinstance(extra, dict) else None
    if isinstance(examples, list):
        return examples[0]
    fields = model.model_fields.items()
    return {field.alias or name: field.examples[0] for name, field in fields if field.examples}


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
            if "requestBody" in operation:
                for status in _WITH_BODY:
                    answer = {"description": _TITLES[status]}
                    operation["responses"].setdefault(str(status), answer)
            _only_problems(operation)
            operation["responses"][TIMED_OUT] = _TOO_SLOW
            add_examples(operation, schemas)
            if path == "/healthz":
                operation["security"] = []
    return document


def _only_problems(operation: dict[str, Any]) -> None:
    """Errors of ours are problem documents, and nothing else."""
    for status, response in operation["responses"].items():
        if status[0] in "45":
            response["content"] = {PROBLEM_TYPE: {"schema": _PROBLEM_SCHEMA}}
            if status in ("429", "503"):
                response["content"] |= _PLAIN
                response["description"] += f" {_TOO_BUSY}"
                response["headers"] = {
                    "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}
                }
