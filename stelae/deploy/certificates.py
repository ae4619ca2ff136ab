"""A new certificate for the HTTP front, while it serves: Serve's proxies read their files again.

All files are looked at on all nodes first, so that none that is no good changes anything anywhere.
Then one proxy after the other changes over, and is seen from its own node to show the new
certificate and to answer over it. Decisions §15.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.serve._private.constants import SERVE_NAMESPACE

from stelae.core.errors import InvalidArgument, RetryLater, StelaeError, Unavailable
from stelae.deploy import nodes, ray_session
from stelae.deploy.changed import ChangedCluster
from stelae.deploy.machines import NODE_ID
from stelae.serve.certificates import (
    SOON_S,
    Certificate,
    Looked,
    await_served,
    look,
    take,
    what_is_served,
)
from stelae.serve.deployment import Proxy, proxies_of, serve_address

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shown:
    """What a proxy shows to new connections, and what its files have."""

    node: str
    """The address of its node."""
    served: Certificate | None
    files: Certificate | None
    problem: str = ""
    """Why one of them cannot be told, or is no good."""

    @property
    def is_same(self) -> bool:
        """A renewal would change nothing."""
        return self.served is not None and self.served == self.files

    def ends_soon(self, now_s: float) -> bool:
        """Or has ended, or nobody knows."""
        return self.served is None or self.served.ends_at - now_s < SOON_S


def renew_certificate(
    database: ChangedCluster, *, progress: Callable[[int, int, str], None], timeout: float
) -> list[Shown]:
    """See `Database.renew_certificate`."""
    deadline = time.monotonic() + timeout
    proxies, prefix = _proxies(database)
    with database.turn("certificate renew") as sure:
        progress(0, len(proxies), "looks at the files")
        looked = _looked(proxies, timeout)
        if problems := [
            f"on {node}: {each.problem}" for node, each in looked.items() if each.problem
        ]:
            raise InvalidArgument(
                f"the certificate is not renewed, and nothing has changed: {'; '.join(problems)}"
            )
        done = []
        for number, proxy in enumerate(proxies):
            sure()
            progress(number, len(proxies), f"the proxy on {proxy.address} reads the files")
            left_s = max(1.0, deadline - time.monotonic())
            certificate = _in_proxies(take, [proxy], left_s)[proxy.address]
            at = looked[proxy.address]
            _see(
                proxy,
                (at.host, at.port, f"{prefix.rstrip('/')}/healthz", certificate.sha256),
                left_s,
            )
            done.append(Shown(proxy.address, certificate, certificate))
        progress(len(proxies), len(proxies), "")
    return done


def certificates(database: ChangedCluster, *, timeout: float) -> list[Shown]:
    """See `Database.certificates`."""
    proxies, _ = _proxies(database)
    looked = _looked(proxies, timeout)
    selectors = {proxy.address: {NODE_ID: proxy.node_id} for proxy in proxies}
    places = {node: (each.host, each.port, timeout) for node, each in looked.items()}
    told = nodes.ask(what_is_served, selectors, places, timeout)
    return [_shown(proxy.address, looked, told.answers, told.silent) for proxy in proxies]


def _shown(
    node: str,
    looked: Mapping[str, Looked],
    answers: Mapping[str, Certificate | str],
    silent: Mapping[str, str],
) -> Shown:
    served = answers.get(node, silent.get(node, ""))
    problems = [served] if isinstance(served, str) else []
    problems += [looked[node].problem] if looked[node].problem else []
    shown = served if isinstance(served, Certificate) else None
    return Shown(node, shown, looked[node].certificate, "; ".join(problems))


def _proxies(database: ChangedCluster) -> tuple[Sequence[Proxy], str]:
    if not ray.is_initialized():
        ray_session.join_ray(database.ray_address)
    proxies, prefix = proxies_of(database.cluster)
    if not prefix:
        raise InvalidArgument(f"cluster {database.cluster!r} has no HTTP front (serve)")
    if not (serve_address() or "").startswith("https://"):
        raise InvalidArgument(
            f"the HTTP front of cluster {database.cluster!r} has no certificate (serve.tls): "
            "whatever stands before it with one renews it"
        )
    if not proxies:
        raise RetryLater("Serve has no proxy just now; the next one reads the files by itself")
    return proxies, prefix


def _looked(proxies: Sequence[Proxy], timeout_s: float) -> dict[str, Looked]:
    return _in_proxies(look, proxies, timeout_s)


def _in_proxies(
    work: Callable[[Any], T], proxies: Sequence[Proxy], timeout_s: float
) -> dict[str, T]:
    """Call ``work`` in the processes of these proxies, each with its actor; by their nodes."""
    asked: dict[str, Any] = {}
    for proxy in proxies:
        try:
            actor = ray.get_actor(proxy.actor, namespace=SERVE_NAMESPACE)
        except ValueError as error:
            raise _gone(proxy, "it is not there") from error
        asked[proxy.address] = actor.__ray_call__.remote(work)
    found: dict[str, T] = {}
    for proxy in proxies:
        try:
            found[proxy.address] = ray.get(asked[proxy.address], timeout=timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise _gone(proxy, f"no answer within {timeout_s:g} s") from error
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, StelaeError) else error) from None
        except ray.exceptions.RayActorError as error:
            raise _gone(proxy, "its process ended") from error
    return found


def _gone(proxy: Proxy, why: str) -> Unavailable:
    return Unavailable(
        f"Serve's proxy on {proxy.address}",
        f"{why}; Serve makes it anew within a minute, and a new one reads the files by itself",
    )


def _see(proxy: Proxy, what: tuple[str, int, str, str], timeout_s: float) -> None:
    """On its node: who may connect from elsewhere is the operator's matter."""
    selectors = {proxy.address: {NODE_ID: proxy.node_id}}
    told = nodes.ask(
        await_served,
        selectors,
        {proxy.address: (*what, timeout_s)},
        timeout_s + nodes.ANSWER_TIMEOUT_S,
    )
    for why in told.silent.values():
        raise RetryLater(f"the proxy on {proxy.address} has the files, and was not seen: {why}")
