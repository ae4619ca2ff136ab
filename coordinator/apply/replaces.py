"""Which step comes next when a server is replaced by a new, empty one of its name. Pure.

The new server has another UUID, and the masters restore what the former one had from what they have
elsewhere. So the former disk is given up, by a fence that is permanent
(`stelae.coordinator.ddl.replacement`). Rules R3 to R6 hold for `stelae.coordinator.apply.away` too:

- R1: nothing is judged before the leader master has heard all servers (``heard_all``). A leader
  that has just begun knows of nothing that lacks.
- R2: a server that the masters hear is not fenced. One that lives is drained, or else nothing may
  lack without it, and its process is ended first. A server whose UUID they do not know cannot be.
- R3: a configuration store with SQLite stays, as its rows are in its folder.
- R4: each log has a live majority of its members, old and new, without the safekeeper.
- R5: each tablet with replicas has a live majority of its voters without the tablet server.
- R6: nothing may need the backup: all tablets run, their rows are loaded, no part of a split tablet
  reads the log that it inherits, each segment is on a live backup, and no segment lacks a replica,
  unless the other backups are too few for that. Then a new backup is the cure. Evicted ends of logs
  have copies on other backups.
- R7: what a server that just died had is known only once the owners have seen its death: R4 to R6
  are believed after ``quiet_s`` of silence.
- R8: a server that was drained, and has taken nothing since, needs no proof by R4 to R6.
- R9: the replacement is whole once the new server lives, no tablet lacks anything, and no log names
  the former safekeeper.
- R10: a server that nobody has heard and that the catalog does not name has nothing that anybody
  needs: all that may be on a disk is registered in the catalog first. It is replaced without a
  fence, as there is no UUID for one, where its machine is there: then its process is ended and its
  folder is set aside first, so that no process of its UUID starts again. The same holds where only
  operators' marks name UUIDs: these may be of earlier servers of the name, which left long ago.

Which UUIDs are replaced is the caller's to remember: `former_of` chooses them at the beginning.
Every step may be taken again. Decisions §81.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stelae.coordinator.apply.majorities import (
    named,
    without_log_majority,
    without_replica_majority,
)
from stelae.coordinator.apply.plan import TableIs
from stelae.coordinator.apply.stops import refusals_of_stop
from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import media_of
from stelae.core.schema.own_tables import is_own_table

QUIET_S = 10.0
"""Least seconds of silence after which a death is known to all owners."""
BEATS = 4
"""Heartbeats until the owners have learned of a death and have said what they lack."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a cluster keeps of everything, by its tables and its spec."""

    copies: int
    """Most replicas that a segment of any table is to have."""
    store_moves: bool = False
    """The configuration store keeps its rows in a database elsewhere."""
    has_lone_blobs: bool = False
    """Evicted ends of logs are on one backup each."""


# ---- who needs the disk of a server that is dead (R3 to R6) -------------------------------------


def kind_of(name: str) -> str:
    """``backup`` of ``backup-2``."""
    return name.rpartition("-")[0]


def known_as(status: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """All that the masters know under a name, and that is not fenced: one for each disk it had."""
    return [each for each in status["servers"] if each["id"] == name]


def leaves(server: Mapping[str, Any]) -> bool:
    """Whether a server is to leave, by its mark."""
    return bool(server.get("retiring")) or server.get("status") == "decommissioned"


def who_needs_disk(
    kind: str,
    uuids: Collection[str],
    status: Mapping[str, Any],
    kept: Kept,
    away: Collection[str] = (),
) -> str:
    """Return why the disk of dead servers of one name may be needed; empty: nothing needs it.

    ``away``: UUIDs of servers on machines that are away. They count for nothing, also where the
    masters still count them as live.
    """
    match kind:
        case ServerKind.CAS_STORE.value:
            return "" if kept.store_moves else "its rows are in its folder on that machine"
        case ServerKind.BACKUP.value:
            return _needs_backup(status, kept, away)
        case ServerKind.SAFEKEEPER.value:
            return _needs_safekeeper(status, away)
        case _:
            return _needs_tserver(status, {*uuids, *away})


def _needs_backup(status: Mapping[str, Any], kept: Kept, away: Collection[str]) -> str:
    """What may be on the backup alone, which is not live (R2). R6."""
    for tablet in status["tablets"]:
        what = f"tablet {tablet['number']} of {tablet['table']!r}"
        if tablet["state"] != "running":
            return f"{what} is not served: what is on the disk there may be needed"
        if not tablet["reported"]:
            return f"it is not known yet what {what} lacks"
        if tablet["loaded"] < 1.0:
            return f"rows of {what} are still loaded from backups"
        if tablet.get("inherits"):
            return f"{what} still reads the log of the tablet that it was split from"
        if tablet["segments_lacking"]:
            return f"segments of {what} are on no backup that lives"
    backups = [
        each
        for each in status["servers"]
        if each["kind"] == ServerKind.BACKUP.value and each["state"] == "live"
    ]
    unnoticed = [each["id"] for each in backups if each["uuid"] in away]
    if unnoticed:  # no segment is called lacking yet whose other replica is there
        return f"the masters have not noticed yet that {unnoticed[0]} is away as well"
    for shortage in status["shortages"]:
        if shortage["segments_unheld"]:
            what = f"tablet {shortage['number']} of {shortage['table']!r}"
            return f"segments of {what} are in its server's memory, and on no backup that lives"
    if status["shortages"] and len(backups) >= kept.copies:
        return "the other backups are making replicas of segments again"
    if kept.has_lone_blobs:
        return (
            "evicted ends of logs are on one backup each (safekeepers.evict_copies: 1), and may be "
            "on this one"
        )
    return ""


def _needs_safekeeper(status: Mapping[str, Any], away: Collection[str]) -> str:
    """Which log has no live majority without the safekeeper, which is not live (R2). R4."""
    for tablet in without_log_majority(status, away):
        return f"the log of {named(tablet)} has no live majority of safekeepers without it"
    return ""


def _needs_tserver(status: Mapping[str, Any], uuids: Collection[str]) -> str:
    """Which tablet has no live majority of voters without this tablet server. R5."""
    for tablet in without_replica_majority(status, uuids):
        return f"{named(tablet)} has no live majority of replicas without it"
    return ""


# ---- one replacement that an operator asked for -------------------------------------------------


class ReplaceAct(enum.StrEnum):
    """What is to be done next."""

    WAIT = "wait"
    DRAIN = "drain"
    """Mark it as one that is to leave."""
    END = "end"
    """End its process; Ray does not start it again."""
    FENCE = "fence"
    START = "start"
    """Set its folder aside, and start a new server under its name."""
    TAKEN_BACK = "taken back"
    """Somebody has ended the drain that had begun."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ReplaceStep:
    act: ReplaceAct
    why: str = ""
    """What is waited for."""
    uuids: tuple[str, ...] = ()
    """UUIDs to be fenced, or the one to be drained: others of the name may be dead."""


@dataclass(frozen=True, slots=True)
class ReplaceLook:
    """What is known at one moment of a server that is replaced. Any kind but a master."""

    name: str
    former: tuple[str, ...]
    """UUIDs that are replaced; see `former_of`."""
    status: Mapping[str, Any]
    tables: Sequence[TableIs]
    kept: Kept
    has_actor: bool
    """Ray has an actor of this name, whether it runs or not."""
    quiet_s: float = QUIET_S
    drains: bool = True
    has_drained: bool = False
    """A drain has begun, by whomever."""
    unwell: str = ""
    """Why no server that serves may be ended just now."""
    in_memory: str = ""
    """What is in the memory of the live server and nowhere else, in words."""
    logs_left: int = 0
    """Number of logs of which a former safekeeper is a member, by the catalog."""
    has_started: bool = False
    """The new server was started by this replacement, of which there is no note (R10)."""

    @property
    def kind(self) -> str:
        return kind_of(self.name)

    @property
    def live(self) -> Mapping[str, Any] | None:
        """The live server that is replaced; None: it is dead, or fenced."""
        found = (s for s in self.status["servers"] if s["uuid"] in self.former)
        return next((each for each in found if each["state"] == "live"), None)


def quiet_s(dead_after_s: float, heartbeat_s: float) -> float:
    """Return the seconds of silence after which R4 to R6 are believed of a dead server. R7."""
    return max(QUIET_S, dead_after_s + BEATS * heartbeat_s)


def not_heard(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the servers that the catalog names and the leader master has never heard. One of an
    earlier version tells of backups alone."""
    found = [*status.get("servers_not_heard", ()), *status.get("backups_not_heard", ())]
    return list({each["uuid"]: each for each in found}.values())


def is_unknown(status: Mapping[str, Any], former: Collection[str]) -> bool:
    """Return whether the UUID of the present server may be none of ``former``: there are none, or
    nobody has heard them and operators' marks alone name them. Fenced ones say how it was before
    the fence, until their successor is heard. R10."""
    fenced = [each for each in status.get("replaced", ()) if not each["successor"]]
    named = [*not_heard(status), *fenced]
    return {each["uuid"] for each in named if each.get("marked_only")}.issuperset(former)


def former_of(status: Mapping[str, Any], name: str, server: str) -> tuple[str, ...]:
    """Return the UUIDs that a replacement of ``server`` (``name``, or a UUID of that name) is of.

    A replacement that was interrupted goes on: that of a UUID which is fenced, that of a name whose
    new server was not heard yet, and that of a name whose new server lives while the replacement
    is not noted as whole. Empty: the masters know none (R10).
    """
    fenced = {str(each["uuid"]): each for each in status["replaced"] if each["id"] == name}
    if server in fenced:
        return (server,)
    half = tuple(uuid for uuid, each in fenced.items() if not each["successor"])
    if half:
        return half
    known = [each for each in known_as(status, name) if server in (name, each["uuid"])]
    live = [str(each["uuid"]) for each in known if each["state"] == "live"]
    begun = tuple(uuid for uuid, each in fenced.items() if each.get("goes_on"))
    if server == name and live and begun:
        return begun
    unheard = [
        str(each["uuid"])
        for each in not_heard(status)
        if each["id"] == name and server in (name, each["uuid"])
    ]
    silent = [str(each["uuid"]) for each in known if each["state"] != "live"]
    return tuple(live or [*silent, *unheard])


def refusals_of_replacement(look: ReplaceLook) -> list[str]:
    """Return all reasons why a server may not be replaced; each says the way out."""
    known = [s for s in look.status["servers"] if s["uuid"] in look.former]
    found = []
    if look.kind == ServerKind.CAS_STORE.value and not look.kept.store_moves:  # R3
        found.append(
            "its rows are in its folder (SQLite), and a new one would not have them. `stelae "
            f"server restart {look.name}` starts it again; to be rid of it, restore a backup of "
            "the tables into a cluster whose cas_store is PostgreSQL"
        )
    if not look.former and not look.has_started and known_as(look.status, look.name):  # R10
        found.append("the masters have heard it meanwhile: give the same command again")
    if any(each.get("maintenance") for each in known):
        text = f"end that first (`stelae server maintenance {look.name} off`)"
        found.append(f"it is in maintenance: {text}")
    live = look.live
    if live is None or look.kind == ServerKind.CAS_STORE.value or _is_drained(look, live):
        return found
    if look.drains and leaves(live):
        return found  # the masters have agreed, and go on
    return found + (_cannot_drain(look, live) if look.drains else _cannot_stop(look, live))


def refusals_of_master(
    name: str, status: Mapping[str, Any], members: Mapping[str, str], wanted: int
) -> list[str]:
    """Return all reasons why a master may not be replaced.

    ``members``: the masters' set, by name. ``wanted``: number of masters of the spec. A name that
    is not of the set is one whose replacement was interrupted, while the set is too small.
    """
    if name not in members:
        if len(members) < wanted:
            return []
        return ["it is no master of the set: `stelae master add` adds one"]
    voters = [each for each in status["servers"] if each["kind"] == ServerKind.MASTER.value]
    voters = [each for each in voters if each["voter"]]
    others = [e for e in voters if e["state"] == "live" and e["uuid"] != members[name]]
    if 2 * len(others) <= len(voters):
        count = f"{len(others)} of {len(voters)} masters would live, which is no majority"
        return [f"{count}: `stelae master add` adds one"]
    return []


def _cannot_drain(look: ReplaceLook, live: Mapping[str, Any]) -> list[str]:
    """Of what has nowhere to go. The masters refuse backups and safekeepers themselves."""
    if look.kind != ServerKind.TSERVER.value:
        return []
    if look.in_memory:
        return [look.in_memory]
    others = _others(look, live)
    if not others and _tablets_left(look, live):
        text = (
            f"its {_left(look, live)} have nowhere to go, as there is no other tablet server that "
            "lives and stays. Add a server (tservers.count and `stelae apply`)"
        )
        is_movable = not refusals_of_stop(live, look.status, look.tables)
        return [f"{text}, or say --no-drain" if is_movable else text]
    for tablet in look.status["tablets"]:
        replicas = tablet.get("replicas", ())
        holders = {each["uuid"] for each in replicas if each["member"] != "none"}
        if live["uuid"] in holders and others <= holders:
            return [
                f"its replica of {named(tablet)} has nowhere to go, as every other tablet server "
                "has one. Add a server (tservers.count and `stelae apply`), or say --no-drain: "
                "then the new server gets copies from the others"
            ]
    return []


def _others(look: ReplaceLook, server: Mapping[str, Any]) -> set[str]:
    """UUIDs of other servers of its kind that live and stay."""
    return {
        each["uuid"]
        for each in look.status["servers"]
        if each["kind"] == look.kind and each["state"] == "live"
        if not (each["uuid"] == server["uuid"] or each["retiring"] or each.get("maintenance"))
    }


def _cannot_stop(look: ReplaceLook, live: Mapping[str, Any]) -> list[str]:
    found = refusals_of_stop(live, look.status, look.tables)
    if look.in_memory:
        found.append(look.in_memory)
    if look.kind == ServerKind.BACKUP.value:
        found += _alone_on(look)
    return found


def _alone_on(look: ReplaceLook) -> Iterator[str]:
    """What a live backup may have alone, while nothing lacks replicas. R6."""
    for table in look.tables:
        if any(len(media_of(each)) == 1 for each in table.durabilities):
            also = ""
            if is_own_table(table.name):  # nobody has chosen that
                also = f", or have two (`stelae table alter {table.name} --durability`)"
            yield (
                f"segments of table {table.name!r} are on one backup each, and may be on this one: "
                f"replace it without --no-drain{also}"
            )
    if look.kept.has_lone_blobs:
        yield (
            "evicted ends of logs are on one backup each (safekeepers.evict_copies: 1), and may be "
            "on this one: replace it without --no-drain"
        )


def next_of_replacement(look: ReplaceLook) -> ReplaceStep:
    """Return the next step of a replacement that is not refused."""
    if look.status.get("heard_all") is not True:  # R1
        return _wait("the leader master has just begun to hear the servers")
    if not look.former:
        return _of_unknown(look)
    fenced = {str(each["uuid"]): each["successor"] for each in look.status["replaced"]}
    left = tuple(uuid for uuid in look.former if uuid not in fenced)
    if left:
        live = look.live
        return _of_dead(look, left) if live is None else _of_live(look, live)
    if any(not fenced[uuid] for uuid in look.former):
        if not look.has_actor:
            return ReplaceStep(ReplaceAct.START)
        return _wait("the new server starts")
    return _of_new(look)


def _of_live(look: ReplaceLook, live: Mapping[str, Any]) -> ReplaceStep:
    """R2."""
    if not look.has_actor:
        return _wait("its process has ended, and the masters have not noticed yet")
    if look.kind == ServerKind.CAS_STORE.value or _is_drained(look, live):
        return ReplaceStep(ReplaceAct.END)
    if not look.drains:
        return _wait(look.unwell) if look.unwell else ReplaceStep(ReplaceAct.END)
    if leaves(live):
        return _wait(f"{_left(look, live)} are left")
    if look.has_drained:
        return ReplaceStep(ReplaceAct.TAKEN_BACK)
    return ReplaceStep(ReplaceAct.DRAIN, uuids=(str(live["uuid"]),))


def _of_dead(look: ReplaceLook, left: tuple[str, ...]) -> ReplaceStep:
    known = [each for each in look.status["servers"] if each["uuid"] in left]
    unheard = {str(each["uuid"]) for each in not_heard(look.status)}
    if missing := {*left} - {each["uuid"] for each in known} - unheard:  # R2
        return _wait(f"the masters do not know {', '.join(sorted(missing))}: start it first")
    if known and all(_is_drained(look, each) for each in known):  # R8
        return ReplaceStep(ReplaceAct.FENCE, uuids=left)
    silent_s = min((float(each["silent_s"]) for each in known), default=look.quiet_s)
    if silent_s < look.quiet_s:  # R7
        return _wait("it has just died: what it had is not known yet")
    why = who_needs_disk(look.kind, left, look.status, look.kept)
    return _wait(why) if why else ReplaceStep(ReplaceAct.FENCE, uuids=left)


def _of_unknown(look: ReplaceLook) -> ReplaceStep:
    """R10."""
    if not look.has_started:
        return ReplaceStep(ReplaceAct.END if look.has_actor else ReplaceAct.START)
    return _of_new(look)


def _of_new(look: ReplaceLook) -> ReplaceStep:
    """R9."""
    if not any(each["state"] == "live" for each in known_as(look.status, look.name)):
        return _wait("the new server does not live")
    if look.unwell:
        return _wait(look.unwell)
    if look.logs_left:
        return _wait(f"{look.logs_left} logs still name the former safekeeper")
    return ReplaceStep(ReplaceAct.DONE)


def count_left(look: ReplaceLook) -> int | None:
    """Return how much the live server still has of what is drained; None: it does not live, or it
    is of a kind of which nothing is drained (`_WHAT`)."""
    if look.live is None or look.kind not in _WHAT:
        return None
    return int(_left(look, look.live).partition(" ")[0])


def _is_drained(look: ReplaceLook, server: Mapping[str, Any]) -> bool:
    """Whether a server was drained, and can have taken nothing since. R8."""
    if not leaves(server):
        return False
    if look.kind == ServerKind.BACKUP.value:
        return bool(server["drained"])
    return _left(look, server) == "0 " + _WHAT.get(look.kind, "")


def _left(look: ReplaceLook, server: Mapping[str, Any]) -> str:
    """How much a server still has, in words."""
    what = _WHAT.get(look.kind, "")
    if look.kind == ServerKind.TSERVER.value:
        return f"{_tablets_left(look, server)} {what}"
    if look.kind == ServerKind.BACKUP.value:
        return f"{server['segments']} {what}"
    held = server["timelines"] if server["state"] == "live" else 0
    return f"{max(look.logs_left, held or 0)} {what}"


def _tablets_left(look: ReplaceLook, server: Mapping[str, Any]) -> int:
    """Number of tablets and indexlets that a tserver has to be rid of.

    Where no other could take them, tablets of Stelae's own tables that it owns do not count, as in
    `stelae.coordinator.moves.leaving.owned_that_count`.
    """
    count = int(server["tablets"]) + int(server["indexlets"])
    if _others(look, server):
        return count
    own = sum(_is_owned(tablet, server) for tablet in look.status["tablets"])
    return max(0, count - own)


def _is_owned(tablet: Mapping[str, Any], server: Mapping[str, Any]) -> bool:
    """Whether it is a tablet of Stelae's own that this process serves, without replicas."""
    if not is_own_table(tablet["table"]) or tablet.get("replicas") or tablet["state"] != "running":
        return False
    return (tablet["leader"], tablet.get("address")) == (server["id"], server.get("address"))


_WHAT = {
    ServerKind.TSERVER.value: "tablets",
    ServerKind.BACKUP.value: "segments",
    ServerKind.SAFEKEEPER.value: "logs",
}


def _wait(why: str) -> ReplaceStep:
    return ReplaceStep(ReplaceAct.WAIT, why)
