"""Whether tablets serve, are as safe as their tables say, and agree; and indexes answer. Pure.

Of a tablet with ``replicas(n)`` the reports of all its replicas are compared with each other and
with the masters' catalog. Unlike Kudu's ksck, a copy that is under way hides nothing that is worse:
everything found is said, and the worst of it is the verdict.

Source: Kudu's ksck (verdicts and comparison of consensus states), appendix B8, B9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stelae.client.check import hints as check_hints
from stelae.client.check.facts import (
    DigestAnswer,
    Finding,
    IndexFacts,
    Known,
    LogFacts,
    ReplicaFacts,
    Severity,
    StatusFacts,
    TabletDigests,
    TabletFacts,
    Verdict,
)
from stelae.client.check.timelines import TimelineJudge
from stelae.core.messages.indexes import IndexletProgress
from stelae.core.messages.servers import ReplicaRole, TabletProgress
from stelae.core.records.records import ServerKind, TabletState
from stelae.core.schema.indexes import END, IndexletState, covers
from stelae.core.schema.shares import wrong_places


@dataclass(frozen=True, slots=True)
class Judged:
    """One tablet, and everything that was found about it."""

    tablet: TabletFacts
    reasons: tuple[tuple[Verdict, str], ...]

    @property
    def verdict(self) -> Verdict:
        return max((verdict for verdict, _ in self.reasons), default=Verdict.HEALTHY)

    @property
    def subject(self) -> str:
        return name_of(self.tablet)

    def findings(self) -> list[Finding]:
        return [
            Finding(
                "tablets",
                self.subject,
                text,
                verdict.severity,
                check_hints.for_tablet(self.tablet, verdict),
            )
            for verdict, text in self.reasons
        ]


def name_of(tablet: TabletFacts) -> str:
    """How people find it."""
    return f"tablet {tablet.number} of {tablet.table!r} ({tablet.id})"


def judge_tablets(status: StatusFacts, logs: LogFacts | None = None) -> list[Judged]:
    """Every tablet of a status document; ``logs``: what safekeepers have of ``wal(n)`` tables."""
    live = {s.id: None for s in status.servers if s.is_live and s.kind == ServerKind.TSERVER}
    timelines = TimelineJudge(status, logs)
    found: list[Judged] = []
    for tablet in status.tablets:
        if tablet.replicas is not None:
            found.append(judge_group(tablet))
            continue
        judged = judge_owned(tablet, is_owner_live=tablet.leader in live)
        found.append(Judged(tablet, (*judged.reasons, *timelines.judge(tablet))))
    return found


def judge_tables(status: StatusFacts) -> list[Finding]:
    """Each row of each table has one tablet, beside those that are to succeed one."""
    numbers: dict[str, list[int]] = {table.name: [] for table in status.tables}
    for tablet in status.tablets:
        if not tablet.succeeds:
            numbers.setdefault(tablet.table, []).append(tablet.number)
    found: list[Finding] = []
    for table in status.tables:
        wrong = wrong_places(numbers[table.name], table.tablets) if table.tablets else []
        if wrong:
            which = ", ".join(str(n) for n in wrong[:10])
            text = f"has not one tablet each of its {table.tablets} numbers: {which}"
            name = f"table {table.name!r}"
            found.append(Finding("tablets", name, text, Severity.ERROR, check_hints.CONTRADICTION))
    return found


# ---- tablets with segments ------------------------------------------------------------------


def judge_owned(tablet: TabletFacts, *, is_owner_live: bool) -> Judged:
    """It has an owner that serves it and lacks nothing, and each of its segments has all its
    replicas."""
    why = f": {tablet.problem}" if tablet.problem else ""
    if tablet.state == TabletState.CREATING:
        return _one(tablet, Verdict.RECOVERING, f"is being created{why}")
    if tablet.state != TabletState.RUNNING:
        return _one(tablet, Verdict.UNAVAILABLE, f"is {tablet.state}{why}")
    if not is_owner_live:
        text = f"its server {tablet.leader} is dead{why}"
        return _one(tablet, Verdict.UNAVAILABLE, text)
    if tablet.progress != TabletProgress.SERVING:
        says = f"says {tablet.progress!r}" if tablet.progress else "has not reported it"
        return _one(tablet, Verdict.UNAVAILABLE, f"its server {tablet.leader} {says}{why}")
    reasons: list[tuple[Verdict, str]] = []
    if tablet.under_replicated:
        what = "are in the log that it was split from" if tablet.inherits else "have lost replicas"
        text = f"{tablet.under_replicated} of its segments {what}"
        reasons.append((Verdict.UNDER_REPLICATED, text))
    if tablet.segments_lacking:
        reasons.append((Verdict.UNAVAILABLE, f"rows of it cannot be read{why}"))
    elif tablet.owners_died:
        reasons.append((Verdict.RECOVERING, f"not all of its rows are in memory yet{why}"))
    elif tablet.problem:
        reasons.append((Verdict.RECOVERING, f"its server {tablet.leader} says{why}"))
    return Judged(tablet, tuple(reasons))


def _one(tablet: TabletFacts, verdict: Verdict, text: str) -> Judged:
    return Judged(tablet, ((verdict, text),))


# ---- tablets with replicas ------------------------------------------------------------------


def judge_group(tablet: TabletFacts) -> Judged:
    """It runs, a majority and a leader are there, all agree who the members are, all are there."""
    if tablet.state == TabletState.CREATING:
        why = f": {tablet.problem}" if tablet.problem else ""
        return _one(tablet, Verdict.RECOVERING, f"is being created{why}")
    if tablet.state != TabletState.RUNNING:
        return _one(tablet, Verdict.UNAVAILABLE, f"is {tablet.state}")
    leader = leader_of(tablet)
    reasons = (
        *_judge_count(tablet),
        *_judge_leaders(tablet, leader),
        *_judge_configurations(tablet, leader),
        *_judge_strangers(tablet),
    )
    return Judged(tablet, reasons)


def _members(tablet: TabletFacts) -> list[ReplicaFacts]:
    return [replica for replica in tablet.replicas or () if replica.member != "none"]


def _voters(tablet: TabletFacts) -> list[ReplicaFacts]:
    return [replica for replica in tablet.replicas or () if replica.member == "voter"]


def leader_of(tablet: TabletFacts) -> ReplicaFacts | None:
    """Who leads in the highest term that anybody leads in."""
    leaders = [replica for replica in tablet.replicas or () if replica.leads]
    return max(leaders, key=lambda replica: replica.term, default=None)


def _absence(replica: ReplicaFacts) -> str:
    """Why a replica does not take part."""
    if not replica.server_live:
        return f"{replica.server} is dead"
    if not replica.role:
        return f"{replica.server} does not report its replica"
    why = f": {replica.problem}" if replica.problem else ""
    return f"the replica on {replica.server} is {replica.role}{why}"


def _judge_count(tablet: TabletFacts) -> Iterable[tuple[Verdict, str]]:
    voters = _voters(tablet)
    absent = [voter for voter in voters if not voter.takes_part]
    there = len(voters) - len(absent)
    if there < len(voters) // 2 + 1:
        text = f"{there} of its {len(voters)} voters are there: no majority"
        yield Verdict.UNAVAILABLE, text
    for voter in absent:
        yield Verdict.UNDER_REPLICATED, _absence(voter)
    for voter in voters:
        if voter.takes_part and voter.heard is False:
            yield Verdict.UNDER_REPLICATED, f"the leader does not hear {voter.server}"
    if len(voters) < tablet.replicas_wanted:
        text = f"it has {len(voters)} voters of the {tablet.replicas_wanted} wanted"
        yield Verdict.UNDER_REPLICATED, text
    yield from _judge_surplus(tablet)


def _judge_surplus(tablet: TabletFacts) -> Iterable[tuple[Verdict, str]]:
    """Members that are coming or going; if it is by a move, nothing is wrong."""
    if tablet.move is not None:
        names = {replica.uuid: replica.server for replica in tablet.replicas or ()}
        source, target = (names.get(uuid, uuid) for uuid in tablet.move)
        yield Verdict.HEALTHY, f"a replica moves from {source} to {target}"
    voters = len(_voters(tablet))
    verdict = Verdict.RECOVERING if tablet.move is None else Verdict.HEALTHY
    if voters > tablet.replicas_wanted:
        yield verdict, f"it has {voters} voters, and {tablet.replicas_wanted} are wanted"
    for replica in _members(tablet):
        if replica.member == "non-voter":
            how = replica.role or ("not there yet" if replica.server_live else "dead")
            yield verdict, f"{replica.server} is being brought up ({how})"


def _judge_leaders(
    tablet: TabletFacts, leader: ReplicaFacts | None
) -> Iterable[tuple[Verdict, str]]:
    """One leads, in the highest term, and all others follow it."""
    if leader is None:
        yield Verdict.UNAVAILABLE, tablet.problem or "none of its replicas leads"
        return
    for replica in tablet.replicas or ():
        if replica is leader or not replica.takes_part:
            continue
        name = replica.server
        if replica.leads:
            text = f"{name} leads in term {replica.term}, {leader.server} in term {leader.term}"
            yield Verdict.MISMATCH, text
        elif replica.term != leader.term:
            text = f"{name} is in term {replica.term}, its leader {leader.server} in {leader.term}"
            yield Verdict.MISMATCH, text
        elif replica.leader not in ("", leader.uuid):
            other = _server_name(tablet, replica.leader)
            text = f"{name} follows {other} in term {replica.term}, which {leader.server} leads"
            yield Verdict.MISMATCH, text


def _server_name(tablet: TabletFacts, uuid: str) -> str:
    return next((r.server for r in tablet.replicas or () if r.uuid == uuid), uuid)


def catalog_configuration(tablet: TabletFacts) -> Known | None:
    """The members by the masters' catalog."""
    if tablet.configuration is None:
        return None
    members = _members(tablet)
    return Known(
        tablet.configuration,
        tuple(r.uuid for r in members if r.member == "voter"),
        tuple(r.uuid for r in members if r.member != "voter"),
    )


def _judge_configurations(
    tablet: TabletFacts, leader: ReplicaFacts | None
) -> Iterable[tuple[Verdict, str]]:
    """One entry of the log means the same members to all; and all know the newest one."""
    masters = catalog_configuration(tablet)
    known = [(r.server, r.configuration) for r in tablet.replicas or () if r.takes_part]
    witnesses = [(who, what) for who, what in (("the masters", masters), *known) if what]
    first: dict[tuple[int, int], tuple[str, Known]] = {}
    for who, what in witnesses:
        other, same = first.setdefault(what.op_id, (who, what))
        if same.members != what.members:
            text = (
                f"entry {_op_id(what)} has the members {_names(tablet, what)} by {who}, and "
                f"{_names(tablet, same)} by {other}"
            )
            yield Verdict.MISMATCH, text
    if leader is None or leader.configuration is None:
        return
    newest = leader.configuration
    for who, what in witnesses:
        if what.op_id != newest.op_id:
            text = (
                f"the newest members known by {who} are those of entry {_op_id(what)}, and by the "
                f"leader {leader.server} those of {_op_id(newest)}"
            )
            yield Verdict.MISMATCH, text


def _op_id(known: Known) -> str:
    return f"{known.op_id[0]}.{known.op_id[1]}"


def _names(tablet: TabletFacts, known: Known) -> str:
    voters = [_server_name(tablet, uuid) for uuid in known.voters]
    others = [f"{_server_name(tablet, uuid)} (non-voter)" for uuid in known.non_voters]
    return ", ".join([*voters, *others]) or "none"


def _judge_strangers(tablet: TabletFacts) -> Iterable[tuple[Verdict, str]]:
    """Replicas on servers that are no members: they are deleted soon."""
    for replica in tablet.replicas or ():
        if replica.member == "none" and replica.role not in ("", ReplicaRole.TOMBSTONE):
            text = f"{replica.server} has a replica ({replica.role}), and is no member"
            yield Verdict.RECOVERING, text


# ---- checksums --------------------------------------------------------------------------------


def judge_digests(digests: Sequence[TabletDigests]) -> list[Finding]:
    """All replicas of a tablet that told a digest told the same."""
    found: list[Finding] = []
    for each in digests:
        subject = name_of(each.tablet)
        if each.error:
            text = f"was not compared: {each.error}"
            hint = check_hints.NOT_COMPARED
            found.append(Finding("checksums", subject, text, Severity.WARNING, hint))
        for answer in each.answers:
            if answer.digest is None:
                severity = Severity.WARNING if answer.voter else Severity.NOTE
                text = f"the {_kind(answer)} on {answer.server} was not compared: {answer.error}"
                found.append(
                    Finding("checksums", subject, text, severity, check_hints.NOT_COMPARED)
                )
        said = _said(each.answers)
        if len(said) > 1:
            text = "replicas differ: " + "; ".join(
                f"{', '.join(servers)}: {rows:,} rows, {content}, {rest:08x}"
                for (rows, content, rest), servers in said.items()
            )
            hint = check_hints.CONTRADICTION
            found.append(Finding("checksums", subject, text, Severity.ERROR, hint))
    return found


def _kind(answer: DigestAnswer) -> str:
    return "replica" if answer.voter else "non-voter"


def _said(answers: Sequence[DigestAnswer]) -> Mapping[tuple[int, str, int], list[str]]:
    """Who told which digest."""
    said: dict[tuple[int, str, int], list[str]] = {}
    for answer in answers:
        if answer.digest is not None:
            content = (answer.digest.row_count, answer.digest.rows, answer.digest.rest)
            said.setdefault(content, []).append(answer.server)
    return said


def compared(digests: Sequence[TabletDigests]) -> int:
    """Tablets of which every replica told the same, and every voter told."""
    return sum(
        not each.error
        and bool(each.answers)
        and all(answer.digest is not None for answer in each.answers if answer.voter)
        and len(_said(each.answers)) == 1
        for each in digests
    )


def members_to_ask(tablet: TabletFacts) -> list[ReplicaFacts]:
    """Whose replicas should all be the same: voters, and non-voters that have their rows."""
    return [member for member in _members(tablet) if member.member == "voter" or member.takes_part]


def judge_indexes(status: StatusFacts) -> list[Finding]:
    """Each index has all entries, each at a live server that says that it answers."""
    live = {server.id: None for server in status.servers if server.is_live}
    found: list[Finding] = []
    for index in status.indexes:
        subject = f"index of {index.column!r} of {index.table!r} ({index.id})"
        for severity, text, hint in _judge(index, live):
            found.append(Finding("indexes", subject, text, severity, hint))
    return found


def _judge(index: IndexFacts, live: dict[str, None]) -> list[tuple[Severity, str, str]]:
    found: list[tuple[Severity, str, str]] = []
    ranges = [(bytes.fromhex(e.low), bytes.fromhex(e.high) or END) for e in index.indexlets]
    if not covers(sorted(ranges)):
        text = "its indexlets do not have all of it, each entry once"
        found.append((Severity.ERROR, text, check_hints.CONTRADICTION))
    for each in index.indexlets:
        name = f"indexlet {each.id} on {each.server}"
        if each.server not in live:
            found.append((Severity.ERROR, f"{name}: the server is dead", check_hints.INDEX_SERVER))
        elif each.state != IndexletState.SERVING:
            why = f": {each.problem}" if each.problem else ""
            found.append((Severity.WARNING, f"{name} is filled{why}", check_hints.INDEX_FILLS))
        elif each.progress not in (IndexletProgress.SERVING, IndexletProgress.CLOSED):
            text = f"{name} is to answer, and is {each.progress or 'not there'}"
            found.append((Severity.ERROR, text, check_hints.INDEX_SERVER))
    return found
