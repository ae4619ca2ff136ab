"""Requests to one Stelae HTTP endpoint: their token, deadline and repetition, and what answers are.

Errors are those of `stelae.core.errors`, rebuilt from problem documents. (design §12)
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from stelae.client.http.direct import Answer, DirectGets
from stelae.client.http.protocol import PROBLEM_TYPE, TIMEOUT_HEADER, error_of_problem, wait_s_of
from stelae.client.http.records import json_of
from stelae.core.backoff import Backoff
from stelae.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    NoSpace,
    OutcomeUnknown,
    OutOfMemory,
    RetryElsewhere,
    RetryLater,
    SchemaChanged,
    StelaeError,
    Unavailable,
)

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
SHORTEST_S = 0.001
"""Of the time that a server is told to have: less is written as nothing, which it refuses."""
GRACE_S = 2.0
GRACE_SHARE = 0.1
"""How much less time than this end the server is told to have: `GRACE_S`, and at most this share of
the time. Its answer says more than this end's giving up."""
CONNECT_TIMEOUT_S = 10.0
REPEAT_S = 120.0
"""Time after which a write of unknown outcome is not repeated: less than tablets remember ids
(`stelae.storage.entries.client_results.GATEWAY_LEAST_S`)."""
MAX_SAID = 200
LOST_STATUSES = (408, 500, 502, 504)
"""Of proxies. (Their 503 says that there was nobody to send the request to.)"""


class HttpTransport:
    """Requests to one Stelae HTTP endpoint: token, deadline, repetition."""

    def __init__(
        self,
        url: str,
        token: str,
        client: httpx.AsyncClient | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        *,
        rng: random.Random,
        monotonic: Callable[[], float],
        has_answered: bool = False,
    ) -> None:
        """``rng``: source of the jitter of pauses between attempts. ``monotonic``: clock, for what
        is not on an event loop. ``has_answered``: the front is
        known to exist, so that one which refuses connections is waited for."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query:
            raise InvalidArgument(f"{url!r} is not an http:// or https:// address")
        token = token.strip()  # a token file ends with a newline
        if not token or not token.isascii() or not token.isprintable():
            raise InvalidArgument("token= is needed for HTTP: see the cluster's admin-token file")
        self.url = url.rstrip("/")
        self.rng = rng
        self._token = token
        self.has_answered = has_answered
        context = _believed(ca_file) if parts.scheme == "https" else None
        self._direct = DirectGets(self.url, context, monotonic) if client is None else None
        self._client = client or httpx.AsyncClient(
            verify=True if context is None else context,
            limits=httpx.Limits(max_connections=100),
            follow_redirects=False,
            trust_env=False,
        )

    async def call(
        self,
        method: str,
        path: str,
        *,
        what: str,
        timeout_s: float,
        repeatable: bool,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request, again where that is safe, until it is answered well or time is up.

        ``repeatable``: it may be sent again after its outcome was lost.

        Raises:
            OutcomeUnknown: it may have been carried out.
            StelaeError: what the server answered.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + timeout_s
        backoff = Backoff(self.rng, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        last: StelaeError | None = None
        unknown: OutcomeUnknown | None = None
        while True:
            wait_s = 0.0
            left_s = deadline - loop.time()
            if left_s < SHORTEST_S:
                raise unknown or last or DeadlineExpired(what)
            if unknown is not None and method != "GET" and loop.time() - began > REPEAT_S:
                raise unknown  # servers may have forgotten its id, and would carry it out again
            try:
                return await self._attempt(method, path, what, left_s, content, headers)
            except SchemaChanged:
                raise  # repeating the same call helps nothing
            except (OutOfMemory, NoSpace) as error:
                raise unknown or error from None
            except OutcomeUnknown as error:
                if not repeatable:
                    raise
                unknown = error
            except (RetryLater, RetryElsewhere) as error:
                if isinstance(error, Unavailable) and not self._may_come(error):
                    raise unknown or error from None
                last, wait_s = error, wait_s_of(error)
                if wait_s > deadline - loop.time():
                    raise unknown or error from None  # before that it is refused again
            pause_s = max(backoff.next_s(), wait_s)
            await asyncio.sleep(min(pause_s, max(deadline - loop.time(), 0.0)))

    async def read(self, path: str, *, what: str, timeout_s: float) -> dict[str, Any]:
        """The JSON document that is at ``path``. Raises as `call`."""
        response = await self.call("GET", path, what=what, timeout_s=timeout_s, repeatable=True)
        return json_of(response)

    def get_directly(
        self, path: str, timeout_s: float, headers: Mapping[str, str]
    ) -> Answer | None:
        """Send a GET once from the caller's thread, which blocks. None: `call` is the way."""
        if self._direct is None:
            return None
        answer = self._direct.get(path, {**self._headers(timeout_s), **headers}, timeout_s)
        if answer is not None:
            self.has_answered = True
        return answer

    def _headers(self, left_s: float) -> dict[str, str]:
        told_s = left_s - min(GRACE_S, left_s * GRACE_SHARE)
        return {
            "Authorization": f"Bearer {self._token}",
            TIMEOUT_HEADER: f"{min(max(told_s, SHORTEST_S), 600.0):.3f}",
        }

    async def _attempt(
        self,
        method: str,
        path: str,
        what: str,
        left_s: float,
        content: bytes,
        headers: Mapping[str, str] | None,
    ) -> httpx.Response:
        told_s = left_s - min(GRACE_S, left_s * GRACE_SHARE)
        all_headers = {**self._headers(left_s), **(headers or {})}
        # Without a connection nothing was sent: these limits end before the one of all.
        limit = httpx.Timeout(left_s, connect=min(CONNECT_TIMEOUT_S, told_s), pool=told_s)
        try:
            async with asyncio.timeout(left_s):
                response = await self._client.request(
                    method, self.url + path, content=content, headers=all_headers, timeout=limit
                )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unavailable(self.url, self._why_not(error)) from error
        except (httpx.TransportError, TimeoutError) as error:
            raise OutcomeUnknown(self.url, what, left_s) from error
        self.has_answered = True
        if response.status_code >= 300:
            raise _error_of(response, self.url, what, left_s)
        return response

    def _may_come(self, error: Unavailable) -> bool:
        """Whether to try again. A front that has answered before is being restarted; one that never
        has is a mistake in the URL, or is not up."""
        return self.has_answered or not _nobody_listens(error)

    def _why_not(self, error: httpx.TransportError) -> str:
        if not _nobody_listens(error):
            return str(error) or type(error).__name__
        if self.has_answered:
            return "nobody listens there any more; the HTTP front may be restarting"
        return (
            "nobody listens there; check host and port (cluster.json in the cluster's data_dir has "
            "the URL), and that the cluster is up and has `serve:` in its cluster.yaml"
        )

    async def close(self) -> None:
        if self._direct is not None:
            self._direct.close()
        await self._client.aclose()


def _nobody_listens(error: BaseException) -> bool:
    """Whether the connection was refused."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return True
        if isinstance(cause, BaseExceptionGroup):  # of a name with several addresses
            return all(isinstance(each, ConnectionRefusedError) for each in cause.exceptions)
        cause = cause.__cause__ or cause.__context__
    return False


def _believed(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """Raises InvalidArgument."""
    if ca_file is None:
        return httpx.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # (SSLError is one, too)
        raise InvalidArgument(f"ca_file {os.fspath(ca_file)!r}: {error}") from error


def _error_of(response: httpx.Response, url: str, what: str, left_s: float) -> StelaeError:
    """What an answer that is no success stands for. One that Stelae did not write is of a proxy
    that lost its server, perhaps after the request was carried out."""
    problem: Any = {}
    if response.headers.get("content-type", "").startswith(PROBLEM_TYPE):
        try:
            problem = msgspec.json.decode(response.content)
        except msgspec.MsgspecError:
            problem = {"detail": f"HTTP status {response.status_code}, with a damaged document"}
    elif response.status_code in LOST_STATUSES:
        return OutcomeUnknown(url, what, left_s)
    elif response.status_code in (429, 503):  # Ray Serve's own, or a proxy's
        said = " ".join(response.text[:MAX_SAID].split())
        return RetryLater(
            f"nobody at {url} takes {what} just now (HTTP status {response.status_code}"
            f"{': ' if said else ''}{said}): it is surely not done"
        )
    if not isinstance(problem, dict):
        problem = {}
    return error_of_problem(response.status_code, problem)
