"""Tokens, conditions, problem documents and retries of HTTP, each by itself.

What travels: `tests.front.test_http_values`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import stat
import time
from pathlib import Path

import httpx
import pytest

from stelae.client.http.protocol import (
    error_of_problem,
    format_request_id,
    parse_request_id,
    wait_s_of,
)
from stelae.client.http.transport import HttpTransport, _error_of
from stelae.core import errors
from stelae.core.errors import InvalidArgument, StelaeError, Unauthorized
from stelae.core.ids import ClientId, RequestId
from stelae.core.records.tokens import Role
from stelae.serve.bodies.problems import (
    NotAuthenticated,
    NotPermitted,
    error_document,
    error_response,
    problem_type,
)
from stelae.serve.gateway.tokens import (
    ADMIN_TOKEN_FILE,
    TOKENS_FILE,
    TokenVerifier,
    make_admin_token,
    make_token,
    read_tokens,
    write_tokens,
)

# ---- tokens ---------------------------------------------------------------------------------


def test_a_token_is_known_by_its_text_alone() -> None:
    """The verifier finds name and role of a token, and refuses every other text."""
    token, entry = make_token("ci", Role.WRITE)
    verifier = TokenVerifier([make_token("other", Role.READ)[1], entry])
    assert verifier.verify(token).name == "ci"
    assert verifier.verify(token).role is Role.WRITE
    for wrong in ("", token[:-1], token + "x", entry.sha256, "é"):
        with pytest.raises(NotAuthenticated):
            verifier.verify(wrong)


def test_a_role_may_do_what_smaller_roles_may() -> None:
    """admin includes write, write includes read, never the other way."""
    for place, role in enumerate(Role):
        for other_place, other in enumerate(Role):
            assert role.includes(other) == (other_place <= place)
    principal = TokenVerifier([make_token("r", Role.READ)[1]])
    assert principal is not None


def test_token_files_hold_hashes_and_are_private(tmp_path: Path) -> None:
    """Neither file is readable by others; only the admin token's own file has it in clear."""
    token = make_admin_token(tmp_path)
    for name in (TOKENS_FILE, ADMIN_TOKEN_FILE):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert token not in (tmp_path / TOKENS_FILE).read_text()
    assert (tmp_path / ADMIN_TOKEN_FILE).read_text().strip() == token
    assert make_admin_token(tmp_path) == token
    assert TokenVerifier(read_tokens(tmp_path / TOKENS_FILE)).verify(token).role is Role.ADMIN


def test_an_admin_token_taken_out_of_the_file_is_made_anew(tmp_path: Path) -> None:
    """Revoking by deleting the entry holds: the old text is never let in again."""
    old = make_admin_token(tmp_path)
    _, other = make_token("reader", Role.READ)
    write_tokens(tmp_path / TOKENS_FILE, [other])
    new = make_admin_token(tmp_path)
    verifier = TokenVerifier(read_tokens(tmp_path / TOKENS_FILE))
    assert new != old
    assert verifier.verify(new).role is Role.ADMIN
    with pytest.raises(NotAuthenticated):
        verifier.verify(old)
    assert [e.name for e in read_tokens(tmp_path / TOKENS_FILE)] == ["reader", "admin"]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"tokens": [{"name": "x"}]}', b'{"tokens": [], "extra": 1}']
)
def test_a_broken_token_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """What is no token file is an error that names it, never an empty list."""
    path = tmp_path / TOKENS_FILE
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InvalidArgument, match=TOKENS_FILE):
        read_tokens(path)


def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """Mode 0644 is an error that says how to repair it."""
    make_admin_token(tmp_path)
    os.chmod(tmp_path / TOKENS_FILE, 0o644)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        read_tokens(tmp_path / TOKENS_FILE)


# ---- problems -------------------------------------------------------------------------------


def all_errors() -> list[type[StelaeError]]:
    return [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, StelaeError)
    ]


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_survives_the_way_through_a_problem_document(kind: type[StelaeError]) -> None:
    """Class, parameters, text and notes come back as they were."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    args = [
        7 if "int" in str(p.annotation) else 0.5 if "float" in str(p.annotation) else "text"
        for p in parameters
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ] or ["text"]
    error = kind(*args)
    error.add_note("1 of 2")
    response = error_response(error)
    back = error_of_problem(response.status_code, json.loads(bytes(response.body)))
    assert type(back) is kind
    assert back.args == error.args
    assert str(back) == str(error)
    assert back.__notes__ == ["1 of 2"]


def test_the_status_follows_from_the_family() -> None:
    """Rejected is 4xx, RetryLater and RetryElsewhere say Retry-After, OutcomeUnknown is 504. What
    is to be made anew with another schema is 409: the same request would be refused again."""
    for kind in all_errors():
        row = next(problem_type(kind.__new__(k)) for k in [kind])
        if issubclass(kind, errors.SchemaChanged):
            assert (row.status, row.retry_after_s) == (409, None)
        elif issubclass(kind, errors.RetryLater | errors.RetryElsewhere):
            assert row.status in (429, 503)
            assert row.retry_after_s
        elif issubclass(kind, errors.OutcomeUnknown):
            assert row.status == 504
        elif issubclass(kind, Unauthorized | errors.ProtocolMismatch):
            assert row.status == 502
        elif issubclass(kind, errors.Rejected):
            assert 400 <= row.status < 500


def test_retry_after_is_what_the_server_knows() -> None:
    """Seconds rounded up, where it is known when there is room; else the guess of its kind. A
    client reads the same."""
    known = errors.Overloaded("keys", 3, 41.2)
    response = error_response(known)
    assert response.headers["retry-after"] == "42"
    back = error_of_problem(response.status_code, json.loads(bytes(response.body)))
    assert wait_s_of(back) == 41.2
    for error in (errors.Overloaded("keys", 3), errors.NoQuorum("m")):
        assert error_response(error).headers["retry-after"] == "1"
        assert wait_s_of(error) == 0.0


async def test_a_client_gives_up_at_once_what_cannot_be_in_time() -> None:
    """And waits as long as it was told where there is time for it."""
    asked = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        if asked == 3:
            return httpx.Response(200)
        error = error_response(errors.Overloaded("keys", 3, 60.0 if asked == 1 else 0.2))
        return httpx.Response(429, headers=dict(error.headers), content=bytes(error.body))

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    transport = HttpTransport(
        "http://x", "token", client, rng=random.Random(1), monotonic=time.monotonic
    )
    call = {"what": "w", "timeout_s": 30.0, "repeatable": True}
    with pytest.raises(errors.Overloaded):
        await transport.call("GET", "/", **call)  # type: ignore[arg-type]
    assert asked == 1
    began = asyncio.get_running_loop().time()
    await transport.call("GET", "/", **call)  # type: ignore[arg-type]
    assert asked == 3
    assert asyncio.get_running_loop().time() >= began + 0.2
    await transport.close()


def test_a_condition_in_the_headers_makes_the_mismatch_a_412() -> None:
    """VersionMismatch is 409 by itself and 412 after If-Match."""
    error = errors.VersionMismatch("t", "(1,)", 3, 4)
    assert error_response(error).status_code == 409
    assert error_response(error, conditional=True).status_code == 412


def test_no_token_is_401_with_a_challenge_and_a_small_role_is_403() -> None:
    """Both are Unauthorized to a client."""
    response = error_response(NotAuthenticated("no"))
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert error_response(NotPermitted("no")).status_code == 403
    for error in (NotAuthenticated("no"), NotPermitted("no")):
        document = error_document(error, problem_type(error))
        assert type(error_of_problem(401, document)) is Unauthorized


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Unauthorized),
        (404, errors.TableNotFound),
        (429, errors.Overloaded),
        (502, errors.RetryLater),
        (503, errors.RetryLater),
        (504, errors.OutcomeUnknown),
        (400, errors.Rejected),
        (500, StelaeError),
    ],
)
def test_answers_of_strangers_become_errors_of_the_right_family(
    status: int, kind: type[StelaeError]
) -> None:
    """A proxy's answer without a problem document is told by its status."""
    assert isinstance(error_of_problem(status, {}), kind)
    assert isinstance(error_of_problem(status, {"error": "RowExists", "args": [1]}), kind)


def test_request_ids_are_read_back_and_nonsense_is_refused() -> None:
    """The header has one form."""
    request = RequestId(ClientId("ab12"), 7, 3)
    assert parse_request_id(format_request_id(request)) == request
    for text in ("", "a", "a.1", "a.b.c", "a.1.2", "a.-1.-1", "a.1.1.1", "é.1.1", "." * 9):
        with pytest.raises(InvalidArgument):
            parse_request_id(text)


@pytest.mark.parametrize("status", [429, 503])
async def test_what_nobody_took_is_surely_not_done_and_said_in_plain_words(status: int) -> None:
    """Ray Serve's own answers are plain text: no replica has seen the request."""
    answer = httpx.Response(status, text="Request dropped:\n  512 requests are queued.")
    error = _error_of(answer, "http://h", "GET /v1/tables", 1.0)
    assert isinstance(error, errors.RetryLater)
    assert str(error) == (
        f"nobody at http://h takes GET /v1/tables just now (HTTP status {status}: Request dropped: "
        "512 requests are queued.): it is surely not done"
    )


@pytest.mark.parametrize("status", [408, 500, 502, 504])
async def test_a_proxy_that_lost_its_server_leaves_the_outcome_unknown(status: int) -> None:
    """What may be repeated is sent again; anything else ends, and is never taken for not done."""
    answers = [httpx.Response(status, text="<h1>no</h1>"), httpx.Response(200, json={})]

    async def answer(request: httpx.Request) -> httpx.Response:
        return answers.pop(0)

    def transport() -> HttpTransport:
        client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        return HttpTransport(
            "http://stelae", "t", client, rng=random.Random(1), monotonic=time.monotonic
        )

    async def write(*, repeatable: bool) -> httpx.Response:
        return await transport().call(
            "POST", "/", what="write", timeout_s=5.0, repeatable=repeatable
        )

    found = await write(repeatable=True)
    assert found.status_code == 200
    answers[:] = [httpx.Response(status, text="<h1>no</h1>")]
    with pytest.raises(errors.OutcomeUnknown):
        await write(repeatable=False)


async def test_the_newline_at_the_end_of_a_token_file_is_no_part_of_the_token() -> None:
    """As text that was read from such a file has it; what lies within is refused."""
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["authorization"])
        return httpx.Response(200, json={})

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    for token in ("stelae_x\n", "stelae_x\r\n", "stelae_x"):
        transport = HttpTransport(
            "http://x", token, client, rng=random.Random(1), monotonic=time.monotonic
        )
        await transport.read("/", what="w", timeout_s=30.0)
    assert sent == ["Bearer stelae_x"] * 3
    for wrong in ("", "\n", "stelae_\nx"):
        with pytest.raises(InvalidArgument):
            HttpTransport("http://x", wrong, client, rng=random.Random(1), monotonic=time.monotonic)
