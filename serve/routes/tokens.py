"""Routes of access tokens: made, listed, revoked. Only admins may even list them."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from stelae.client.admin.tokens import launch_token_document, token_document
from stelae.core.errors import TokenExists
from stelae.core.records.tokens import (
    MAX_LIFETIME_S,
    MAX_NAME,
    MAX_TOKEN_TABLES,
    Role,
    hash_token,
)
from stelae.serve.bodies.models import Body
from stelae.serve.bodies.openapi import ORDER_PARAMETER, TIMEOUT_PARAMETER, json_body, problems
from stelae.serve.bodies.problems import TokenShown
from stelae.serve.gateway.gateway import gateway_of
from stelae.serve.gateway.guard import require
from stelae.serve.gateway.requests import ordering
from stelae.serve.gateway.tokens import TokenEntry, TokenVerifier, new_token
from stelae.serve.routes.tables import json_response

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])


class CreateTokenRequest(Body):
    name: str = Field(
        min_length=1,
        max_length=MAX_NAME,
        examples=["dashboard"],
        description="Printable, without /; the audit log tells by it who did what.",
    )
    role: Literal["read", "write", "admin"] = Field(examples=["read"])
    tables: list[str] = Field(
        default=[],
        max_length=MAX_TOKEN_TABLES,
        examples=[["flights"]],
        description="Names of the tables that it is good for; none: all. Not with the role admin.",
    )
    lifetime_s: float | None = Field(
        default=None,
        gt=0,
        le=MAX_LIFETIME_S,
        examples=[2592000.0],
        description="Seconds until it expires; null: never.",
    )


class TokenInfo(BaseModel):
    name: str = Field(examples=["dashboard"])
    role: Literal["read", "write", "admin"] = Field(examples=["read"])
    created_at: float | None = Field(
        examples=[1795651200.0], description="Seconds since 1970; null: at launch."
    )
    created_by: str = Field(examples=["token admin"])
    tables: list[str] | None = Field(
        examples=[["flights"]], description="What it is good for; null: all, and the cluster."
    )
    expires_at: float | None = Field(
        examples=[1798243200.0], description="Seconds since 1970; null: never."
    )


class NewToken(TokenInfo):
    token: str = Field(examples=["stelae_…"], description="Shown this once: only its hash is kept.")


class TokenListing(BaseModel):
    tokens: list[TokenInfo]


@router.get("", response_model=TokenListing, responses=problems(503))
async def list_tokens(request: Request) -> Response:
    """All tokens that were not revoked, by name; also those that have expired. Needs the role
    `admin`."""
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    database = await gateway.database()
    found = await database.access_tokens(timeout=gateway.timeout_s(request))
    assert found.tokens is not None, "no generation was given"
    verifier = _verifier(request)
    verifier.follow(found.tokens)
    listed = [token_document(token) for token in found.tokens.all]
    listed += [launch_token_document(entry.name, entry.role) for entry in verifier.of_file()]
    return json_response({"tokens": sorted(listed, key=lambda token: str(token["name"]))})


@router.post(
    "",
    response_model=NewToken,
    status_code=201,
    responses=problems(400, 404, 409, 413, 415, 422, 503, 504),
    openapi_extra=json_body(CreateTokenRequest, parameters=(ORDER_PARAMETER,)),
)
async def create_token(request: Request) -> Response:
    """Make a token, good in all replicas at once. Needs the role `admin`.

    If the answer is lost, so is the token: revoke it, and make another. With the same
    `Idempotency-Key` a token is made once; whoever comes again gets 409 `token-shown`.
    """
    principal = require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    wanted = await gateway.json_body(request, CreateTokenRequest, timeout_s)
    if _of_file(request, wanted.name) is not None:
        raise TokenExists(wanted.name)
    database = await ordering(request, b"create token", await gateway.body(request, timeout_s))
    by = f"token {principal.name}"
    token = new_token()
    sha256 = hash_token(token)
    await database.put_token(
        wanted.name,
        wanted.role,
        sha256,
        tables=wanted.tables,
        lifetime_s=wanted.lifetime_s,
        by=by,
        timeout=timeout_s,
    )
    found = (await database.access_tokens(timeout=timeout_s)).tokens
    assert found is not None, "no generation was given"
    made = next((each for each in found.all if each.sha256 == sha256), None)
    if made is None:  # it was made before, by a request with the same id
        raise TokenShown(wanted.name)
    response = json_response({**token_document(made), "token": token}, 201)
    response.headers["Cache-Control"] = "no-store"
    return response


@router.delete(
    "/{name}",
    status_code=204,
    responses=problems(400, 404, 503, 504),
    openapi_extra={"parameters": [TIMEOUT_PARAMETER]},
)
async def revoke_token(request: Request, name: str) -> Response:
    """Revoke a token, the one made at launch too. Needs the role `admin`.

    This replica refuses it from now on, others within two seconds; a replica that reaches no master
    goes by what it knew.
    """
    require(request, Role.ADMIN)
    gateway = gateway_of(request)
    timeout_s = gateway.timeout_s(request)
    database = await gateway.database()
    entry = _of_file(request, name)
    sha256 = "" if entry is None else entry.sha256
    await database.revoke_token(name, sha256=sha256, timeout=timeout_s)
    found = await database.access_tokens(timeout=timeout_s)
    if found.tokens is not None:
        _verifier(request).follow(found.tokens)
    return Response(status_code=204)


def _verifier(request: Request) -> TokenVerifier:
    verifier = request.app.state.tokens
    assert isinstance(verifier, TokenVerifier)
    return verifier


def _of_file(request: Request, name: str) -> TokenEntry | None:
    return next((entry for entry in _verifier(request).of_file() if entry.name == name), None)
