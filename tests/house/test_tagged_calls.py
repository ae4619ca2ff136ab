"""A call names the server that it is for, or its method says why it need not.

An address outlives its server: ports are given again, and servers move. What reaches another server
there must be refused. The real servers refuse such calls, and simulated ones never send any; this
looks at the code of all callers.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import stelae.consensus.wal
import stelae.core
from stelae.core.rpc import ANY_MASTER, ANY_STORE, BY_TABLET, Method

ROOT = Path(__file__).parents[2]
ROOMS = ("actors", "client", "coordinator", "core", "recovery", "runtime", "serve", "stelae")
FORWARDED = {
    "actors/cas_store/server.py": "methods of the configuration store alone",
    "client/routing/masters.py": "methods of masters alone",
}
"""Modules that call whatever method they are given, and of which kind these are."""
LEAST = 60
"""Number of calls below which the search must have gone wrong."""


class Sent(NamedTuple):
    """A call of some server in the code."""

    place: str
    method: str
    """How the code names it."""
    has_destination: bool


def sent_in(path: Path) -> Iterator[Sent]:
    """The calls that a module makes by `Peers.call`, `Peers.post` or `MastersClient.call`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        through = ast.unparse(node.func.value).rpartition(".")[2].lstrip("_")
        if node.func.attr not in ("call", "post") or through not in ("peers", "masters"):
            continue
        method = ast.unparse(node.args[0 if through == "masters" else 1])
        named = any(each.arg == "destination" for each in node.keywords)
        yield Sent(f"{path.relative_to(ROOT)}:{node.lineno}", method, named)


def all_sent() -> list[Sent]:
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return [sent for path in paths for sent in sent_in(path)]


def methods() -> dict[str, Method[Any, Any]]:
    """All methods, by the names of their constants."""
    found: dict[str, Method[Any, Any]] = {}
    for package in (stelae.core, stelae.consensus.wal):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            found |= {name: each for name, each in vars(module).items() if isinstance(each, Method)}
    return found


def test_every_call_names_its_server_or_its_method_says_why_not() -> None:
    """Also the calls of masters, of which any one is asked."""
    known, checked = methods(), 0
    for sent in all_sent():
        checked += 1
        if sent.has_destination or sent.place.partition(":")[0] in FORWARDED:
            continue
        if sent.method == "method":  # given by a caller that is looked at
            continue
        assert sent.method in known, f"{sent.place}: which method is {sent.method}?"
        assert known[sent.method].untagged, f"{sent.place}: {sent.method} names no destination"
    assert checked > LEAST


def test_methods_that_go_without_have_a_known_reason() -> None:
    """Masters and the configuration store; what clients ask of a tablet; answers to proposers.
    Orders, replicas, logs, indexlets and timelines are never another server's."""
    for name, method in methods().items():
        kind = method.name.partition(".")[0]
        expected = {"master": ANY_MASTER, "cas_store": ANY_STORE}.get(kind, "")
        if kind == "tserver" and method.untagged:
            expected = BY_TABLET
        assert method.untagged == expected or name == "WAL_TO_PROPOSER", name
