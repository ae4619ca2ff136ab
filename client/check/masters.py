"""Whether the masters and the other servers are as they should be: part of `stelae check`. Pure.

Source: Kudu's ksck (masters' consensus, servers' health), its appendix B10.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stelae.client.check import hints as check_hints
from stelae.client.check.facts import (
    Finding,
    MasterAnswer,
    ServerFacts,
    Severity,
    StatusFacts,
    UnheardFacts,
)
from stelae.core.ids import ServerUuid
from stelae.core.messages.masters import MasterInfo, MasterState
from stelae.core.records.records import MasterMember, ServerKind
from stelae.core.records.timelines import SafekeeperStatus

NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR
NEVER_HEARD = "is a backup that was not heard since the leader master began"


def judge_masters(answers: Sequence[MasterAnswer], stopped: Collection[str] = ()) -> list[Finding]:
    """All members answer, they name the same members, and one of them leads.

    Members are those of the newest configuration that anybody tells of. ``stopped``: names of those
    that are away by an operator's word.
    """
    infos = [answer.info for answer in answers if answer.info is not None]
    told = [info for info in infos if info.members]
    if not told:
        why = "; ".join(f"{a.address}: {a.error}" for a in answers if a.error)
        text = f"no master answers{f': {why}' if why else ''}"
        return [_found("", text, ERROR, check_hints.NO_MASTER)]
    newest = max(told, key=lambda info: info.op_id)
    found = _judge_presence(newest.members, answers, stopped)
    by_uuid = {info.server.uuid: info for info in infos}
    present = [by_uuid[m.uuid] for m in newest.members if m.uuid in by_uuid]
    found += _judge_members(newest, told)
    return found + _judge_leader(newest.members, present)


def _found(subject: str, text: str, severity: Severity, hint: str = "") -> Finding:
    return Finding("masters", subject, text, severity, hint)


def _judge_presence(
    members: Sequence[MasterMember], answers: Sequence[MasterAnswer], stopped: Collection[str]
) -> list[Finding]:
    found: list[Finding] = []
    at = {answer.address: answer for answer in answers}
    by_uuid = {a.info.server.uuid: a.info for a in answers if a.info is not None}
    missing = 0
    for member in members:
        name = member.name or member.uuid
        info = by_uuid.get(member.uuid)
        if info is None:
            missing += member.voter
            answer = at.get(member.address)
            if answer is not None and answer.info is not None:
                other = answer.info.server
                text = f"at its address {member.address} is {other.name}, UUID {other.uuid}"
                hint = check_hints.MASTER_REPLACED.format(name=name)
                found.append(_found(name, text, ERROR, hint))
            elif name in stopped:
                found.append(_stopped("masters", name))
            else:
                why = answer.error if answer is not None else "its address is not known"
                hint = check_hints.MASTER_SILENT.format(name=name)
                found.append(_found(name, f"does not answer: {why}", WARNING, hint))
        elif not member.voter:
            text = "is no voter yet: it is being brought up"
            found.append(_found(name, text, WARNING, check_hints.SETTLES))
        elif info.state is not MasterState.VOTER:
            text = f"says that it is {info.state.value}, and is a voter by the others"
            found.append(_found(name, text, WARNING, check_hints.SETTLES))
    voters = sum(member.voter for member in members)
    if missing > (voters - 1) // 2:
        text = f"{missing} of {voters} do not answer: no majority"
        found.append(_found("", text, ERROR, check_hints.NO_MAJORITY))
    for uuid, info in by_uuid.items():
        if all(member.uuid != uuid for member in members):
            text = f"is a master no more, or not yet: {info.state.value}"
            found.append(_found(info.server.name, text, NOTE))
    return found


def _judge_members(newest: MasterInfo, told: Sequence[MasterInfo]) -> list[Finding]:
    """Same entry, same members; and nobody is behind."""
    found: list[Finding] = []
    members = {member.uuid: None for member in newest.members}
    for info in told:
        if info.server.uuid not in members:
            continue
        if info.op_id < newest.op_id:
            text = (
                f"knows the masters as of entry {info.op_id.term}.{info.op_id.index} of their log; "
                f"{newest.server.name} knows {newest.op_id.term}.{newest.op_id.index}"
            )
            found.append(_found(info.server.name, text, WARNING, check_hints.SETTLES))
        elif _content(info) != _content(newest):
            names = ", ".join(member.name or member.uuid for member in info.members)
            text = f"names other masters than {newest.server.name}: {names}"
            found.append(_found(info.server.name, text, ERROR, check_hints.CONTRADICTION))
    return found


def _content(info: MasterInfo) -> tuple[tuple[ServerUuid, bool], ...]:
    return tuple(sorted((member.uuid, member.voter) for member in info.members))


def _judge_leader(members: Sequence[MasterMember], present: Sequence[MasterInfo]) -> list[Finding]:
    """One leads, in the highest term, and everybody who answers follows it."""
    if not present:
        return []
    leaders = [info for info in present if info.leader == info.server.uuid]
    if not leaders:
        return [_found("", "nobody leads", ERROR, check_hints.NO_LEADER)]
    first = max(leaders, key=lambda info: info.term)
    found: list[Finding] = []
    for info in present:
        name = info.server.name
        if info is first:
            continue
        if info in leaders:
            severity = ERROR if info.term == first.term else WARNING
            text = f"leads in term {info.term}, and {first.server.name} in term {first.term}"
            hint = check_hints.CONTRADICTION if severity is ERROR else check_hints.SETTLES
            found.append(_found(name, text, severity, hint))
        elif info.term > first.term:
            text = f"is in term {info.term}; {first.server.name} leads in term {first.term}"
            found.append(_found(name, text, WARNING, check_hints.SETTLES))
        elif info.leader != first.server.uuid:
            follows = next((m.name for m in members if m.uuid == info.leader), info.leader)
            text = f"follows {follows or 'nobody'}, and not {first.server.name}"
            found.append(_found(name, text, WARNING, check_hints.SETTLES))
    return found


# ---- tservers and backups -----------------------------------------------------------------------


HALF_REPLACED = "is fenced, and its successor was not heard yet"
IN_REPLACEMENT = "is a new server whose replacement has not ended"


def judge_servers(status: StatusFacts, stopped: Collection[str] = ()) -> list[Finding]:
    """Each tablet server, backup, safekeeper and configuration store that was ever heard, and each
    backup that is known, is live, and nothing special is wanted.

    One that came back (with the same name) takes the place of its former runs. ``stopped``: names
    of those that are away by an operator's word.
    """
    needed = (ServerKind.TSERVER, ServerKind.BACKUP)
    kinds = (*needed, ServerKind.SAFEKEEPER, ServerKind.CAS_STORE)
    servers = [server for server in status.servers if server.kind in kinds]
    live = {server.id: server for server in servers if server.is_live}
    dead = {server.id: server for server in servers if server.id not in live}
    found = [
        _stopped("servers", server.id) if server.id in stopped else _judge_dead(server)
        for server in dead.values()
    ]
    found += [
        _stopped("servers", each.id) if each.id in stopped else _judge_unheard(each)
        for each in status.backups_not_heard
        if each.id not in live
    ]
    found += [
        Finding("servers", each.id, HALF_REPLACED, WARNING, check_hints.HALF_REPLACED)
        for each in status.replaced
        if not each.successor
    ]
    begun = dict.fromkeys(each.id for each in status.replaced if each.successor and each.goes_on)
    found += [
        Finding("servers", name, IN_REPLACEMENT, NOTE, check_hints.IN_REPLACEMENT) for name in begun
    ]
    for server in live.values():
        if server.retiring:
            what = "segments" if server.kind == ServerKind.BACKUP else "tablets"
            count = server.segments if server.kind == ServerKind.BACKUP else server.tablets
            left = f"{count} {what} are left" if count else "it may be stopped"
            found.append(Finding("servers", server.id, f"is being retired: {left}", NOTE))
        if server.avoided_by:
            text = f"took no replicas from {', '.join(server.avoided_by)} in the last minutes"
            found.append(Finding("servers", server.id, text, WARNING, check_hints.AVOIDED))
        if server.maintenance:
            found.append(Finding("servers", server.id, "is in maintenance", NOTE))
        found += _judge_media(server)
        if server.status == SafekeeperStatus.OFFLINE:
            found.append(Finding("servers", server.id, "is set offline: it gets no new logs", NOTE))
        if server.status == SafekeeperStatus.DECOMMISSIONED:
            text = f"is decommissioned: {_left(server)}"
            found.append(Finding("servers", server.id, text, NOTE))
    there = [server.kind for server in live.values()]
    none = [kind for kind in needed if kind not in there]
    for kind in none:
        hint = check_hints.NONE_LIVE.format(kind=kind.value)
        found.append(Finding("servers", "", f"no {kind.value} is live", ERROR, hint))
    return found


def _stopped(section: str, name: str) -> Finding:
    return Finding(section, name, "is stopped by an operator", NOTE, check_hints.stopped(name))


def _judge_media(backup: ServerFacts) -> list[Finding]:
    """Media that have their reserve left, which deletes and the cleaner may use, and rows not."""
    found = []
    for medium in backup.media_low:
        used = backup.used_bytes.get(medium, 0) / 1e6
        free = backup.media_free_bytes.get(medium, 0) / 1e6
        text = (
            f"medium {medium!r} holds {used:,.1f} MB and has {free:,.1f} MB free, which is its "
            "reserve: it takes deletes, and no rows"
        )
        found.append(Finding("servers", backup.id, text, WARNING, check_hints.MEDIUM_FULL))
    return found


def _left(server: ServerFacts) -> str:
    return f"{server.timelines} logs are left" if server.timelines else "it may be stopped"


def _judge_unheard(backup: UnheardFacts) -> Finding:
    if backup.retiring:
        return Finding("servers", backup.id, "is away for good: it was retired", NOTE)
    hint = check_hints.NEVER_HEARD.format(name=backup.id)
    return Finding("servers", backup.id, NEVER_HEARD, WARNING, hint)


def _judge_dead(server: ServerFacts) -> Finding:
    if server.status == SafekeeperStatus.DECOMMISSIONED:
        return Finding("servers", server.id, "is away for good: it is decommissioned", NOTE)
    if server.status == SafekeeperStatus.OFFLINE:
        return Finding("servers", server.id, "is away, and set offline", NOTE)
    if server.retiring and not server.replicas:
        return Finding("servers", server.id, "is away for good: it was retired", NOTE)
    if server.maintenance:
        return Finding("servers", server.id, "is away, in maintenance", NOTE)
    text = f"is dead: silent for {server.silent_s:.0f} s"
    return Finding("servers", server.id, text, WARNING, check_hints.for_server(server))
