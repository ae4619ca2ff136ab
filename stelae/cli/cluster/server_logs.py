"""The log of one server, from whichever of Ray's nodes have it, also once the server has died.

Each node reads its own files (`read_log`), by the links that servers make there
(`stelae.actors.ray_host.own_log`): this process those of its own node, a short task those of each
other one. A server that was started several times has several files, and all are read, oldest
first. Nodes of one machine share a folder, which is told once. Memory is bounded by the number of
lines that are asked for.
"""

from __future__ import annotations

import datetime
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import ray

from stelae.actors.ray_host.own_log import PREFIX, SUFFIX, link_name, logs_folder
from stelae.core.errors import InvalidArgument
from stelae.deploy import nodes
from stelae.deploy.machines import NODE_ID
from stelae.runtime.processes import boot_id

FOLLOW_PAUSE_S = 1.0
"""Between looks for new lines."""
PIECE_BYTES = 4 << 20
"""Maximum bytes of new lines of a file in one look."""
LINE_BYTES = 1 << 20
"""What is longer is cut into several lines."""
_OF_RAY = (":actor_name:", ":job_id:", ":task_name:")
"""Lines in which Ray notes whose a file is."""
_TIME = re.compile(r'(?:\{"time":")?(\d{4}-\d\d-\d\dT[0-9:.]+[+-]\d\d:\d\d)')


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines of which server's log."""

    cluster: str
    server: str
    lines: int
    """Maximum, the last ones."""
    since: float = 0.0
    """Seconds since 1970."""
    text: str = ""
    """A part that each line has."""
    read: Mapping[str, int] = field(default_factory=dict)
    """How many bytes of each file were read before; the others are new."""
    is_first: bool = True
    """Whether the node was not read before: files are read to their ends then."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one node has."""

    lines: tuple[str, ...] = ()
    read: Mapping[str, int] = field(default_factory=dict)
    """See `Wanted.read`. Empty: the node has no log of this server."""
    servers: tuple[str, ...] = ()
    """Of this cluster, those whose logs it has."""
    place: str = ""
    """Which folder of which machine was read; empty: one that no other node has."""


# ---- on each node ---------------------------------------------------------------------------


def read_log_here(wanted: Wanted) -> Found:
    """Runs on a node: what Ray's session there has."""
    folder = logs_folder()
    return replace(read_log(folder, wanted), place=place_of(folder))


def place_of(folder: Path) -> str:
    """Names a folder among those of all machines. Its path is the same on each of Ray's machines,
    and machines and containers may have the same name."""
    found = folder.stat()
    return f"{boot_id()} {found.st_dev}:{found.st_ino}"


def read_log(folder: Path, wanted: Wanted) -> Found:
    """The lines that are wanted of the files in a folder."""
    kept: deque[str] = deque(maxlen=wanted.lines)
    read: dict[str, int] = {}
    for path in _files_of(folder, wanted):
        log = path.resolve()
        if path.name not in wanted.read:
            for older in _rotated(log):
                _read_lines(older, 0, wanted, kept)
        start = wanted.read.get(path.name, 0)
        if start > log.stat().st_size:
            start = 0  # Ray has begun a new file under this name
        read[path.name] = _read_lines(log, start, wanted, kept)
    return Found(tuple(kept), read, _servers(folder, wanted.cluster))


def _files_of(folder: Path, wanted: Wanted) -> list[Path]:
    """The links to this server's logs whose files are still there, oldest first."""
    links = folder.glob(link_name(wanted.cluster, wanted.server, "*"))
    there = [each for each in links if each.exists()]
    return sorted(there, key=lambda each: (each.lstat().st_mtime_ns, each.name))


def _rotated(log: Path) -> list[Path]:
    """Older parts of a file, oldest first: Ray numbers them from the newest."""
    parts = [each for each in log.parent.glob(f"{log.name}.*") if each.suffix[1:].isdecimal()]
    return sorted(parts, key=lambda each: -int(each.suffix[1:]))


def _servers(folder: Path, cluster: str) -> tuple[str, ...]:
    found = folder.glob(link_name(cluster, "*", "*"))
    names = [each.name.removeprefix(f"{PREFIX}{cluster}_") for each in found]
    return tuple(sorted({name.removesuffix(SUFFIX).rpartition("_")[0] for name in names}))


def _read_lines(log: Path, start: int, wanted: Wanted, kept: deque[str]) -> int:
    """Keep the lines that are wanted, from a byte on; returns up to where was read. A line without
    its end is left for later, unless it is the first look: then a server may have died in it."""
    end = start + PIECE_BYTES
    last_s = 0.0
    with log.open("rb") as file:
        file.seek(start)
        while wanted.is_first or start < end:
            data = file.readline(LINE_BYTES)
            if not data or not (data.endswith(b"\n") or len(data) == LINE_BYTES or wanted.is_first):
                break
            start += len(data)
            line = data.decode("utf-8", "replace").rstrip("\r\n")
            last_s = time_of(line) or last_s  # lines of a traceback have the time of its first one
            if last_s >= wanted.since and wanted.text in line and not line.startswith(_OF_RAY):
                kept.append(line)
    return start


def time_of(line: str) -> float | None:
    """When a line was written, in seconds since 1970, if it says so."""
    found = _TIME.match(line)
    try:
        return None if found is None else datetime.datetime.fromisoformat(found[1]).timestamp()
    except (ValueError, OverflowError):  # it only begins like a time, as the 30th of February
        return None


# ---- from where the command is given --------------------------------------------------------

Read = Callable[[Mapping[str, Wanted]], nodes.Told[Found]]
"""Asks nodes, by their ids, for what they have."""


def read_on_nodes(wanted: Mapping[str, Wanted]) -> nodes.Told[Found]:
    """Ask Ray's nodes; this process's own without a task. Needs a connection to Ray."""
    here = ray.get_runtime_context().get_node_id()
    others = {node: each for node, each in wanted.items() if node != here}
    selectors = {node: {NODE_ID: node} for node in others}
    told = nodes.ask(read_log_here, selectors, {node: (each,) for node, each in others.items()})
    mine = {here: read_log_here(wanted[here])} if here in wanted else {}
    return nodes.Told({**told.answers, **mine}, told.silent)


def live_nodes() -> list[str]:
    """The ids of Ray's nodes. Needs a connection to Ray."""
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])


@dataclass(frozen=True, slots=True)
class NewLines:
    """What a look has brought."""

    lines: tuple[str, ...]
    silent: Mapping[str, str]
    """Nodes that did not answer, and why."""


def server_log(
    wanted: Wanted,
    *,
    follow: bool,
    read: Read = read_on_nodes,
    nodes_now: Callable[[], list[str]] = live_nodes,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[NewLines]:
    """The last lines of a server's log and, to ``follow``, those that are written from then on.

    Raises:
        InvalidArgument: no node that answered has a log of such a server.
    """
    first = nodes_now()
    told = read(dict.fromkeys(first, wanted))
    answers = list(_by_place(told.answers).values())
    if not any(each.read for each in answers):
        names = sorted({name for each in answers for name in each.servers})
        known = f"those that have one are {', '.join(names)}" if names else "no server has one"
        raise InvalidArgument(f"no log of a server {wanted.server!r} is there; {known}")
    lines = [line for each in answers for line in each.lines]
    if sum(bool(each.lines) for each in answers) > 1:  # it was on several machines
        lines = _in_order(lines)
    yield NewLines(tuple(lines[max(0, len(lines) - wanted.lines) :]), told.silent)
    if not follow:
        return
    places = {node: each.place or node for node, each in told.answers.items()}
    read_to = {place: each.read for place, each in _by_place(told.answers).items()}
    later = replace(wanted, lines=PIECE_BYTES, is_first=False)
    # All that a node has which joins later is new; one that was silent at first has older lines.
    unheard = dict.fromkeys(set(first) - set(places), wanted)
    while True:
        pause(FOLLOW_PAUSE_S)
        told = read(
            {
                node: replace(later, read=read_to[places[node]])
                if node in places
                else unheard.get(node, later)
                for node in nodes_now()
            }
        )
        # The lines of a node that is new in a place that is followed were shown before.
        follows = {n: a for n, a in told.answers.items() if places.get(n) or a.place not in read_to}
        found = _by_place(follows)
        places.update({node: each.place or node for node, each in told.answers.items()})
        read_to.update({place: each.read for place, each in found.items()})
        yield NewLines(tuple([line for a in found.values() for line in a.lines]), told.silent)


def _by_place(answers: Mapping[str, Found]) -> dict[str, Found]:
    """One answer of each place, in the order of the nodes: those that share it read the same."""
    found: dict[str, Found] = {}
    for node in sorted(answers):
        found.setdefault(answers[node].place or node, answers[node])
    return found


def _in_order(lines: list[str]) -> list[str]:
    """By time; a line that has none stays behind the one before it."""
    timed: list[tuple[float, str]] = []
    last_s = 0.0
    for line in lines:
        last_s = time_of(line) or last_s
        timed.append((last_s, line))
    return [line for _, line in sorted(timed, key=lambda each: each[0])]
