"""`stelae check`: asks the masters and, for checksums, the replicas; then judges what they say.

The judges are `check.masters`, `check.tablets` and `check.timelines` beside it; nothing is decided
here. Asking changes nothing in the cluster, except that a comparison of checksums writes a mark
into the log of each tablet compared. In the manner of Kudu's ksck.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from stelae.client.admin.timeline_views import held_document
from stelae.client.check import hints as check_hints
from stelae.client.check.encryption import judge_encryption, leaving
from stelae.client.check.facts import (
    DigestAnswer,
    Facts,
    Finding,
    MasterAnswer,
    ReplicaFacts,
    Severity,
    StatusFacts,
    TabletDigests,
    TabletFacts,
    Verdict,
)
from stelae.client.check.masters import judge_masters, judge_servers
from stelae.client.check.nodes import judge_nodes
from stelae.client.check.tablets import (
    Judged,
    compared,
    judge_digests,
    judge_indexes,
    judge_tables,
    judge_tablets,
    leader_of,
    members_to_ask,
)
from stelae.client.check.timelines import ask_logs, judge_logs
from stelae.client.routing.masters import MastersClient
from stelae.core.errors import NotLeader, StelaeError, TableNotFound
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.catalog import STATUS, GetStatus
from stelae.core.messages.masters import MASTER_INFO, AskMaster
from stelae.core.messages.replicas import (
    CHECKSUM_REPLICA,
    MARK_REPLICA,
    ChecksumReplica,
    MarkReplica,
)
from stelae.core.messages.safekeepers import HeldTimeline
from stelae.core.records.timelines import SafekeeperId
from stelae.core.runtime import Runtime

ASK_TIMEOUT_S = 2.0
"""Of one master that is asked who it is."""
LOOK_AGAIN_S = 0.5
TABLETS_AT_ONCE = 4
"""So many tablets are compared side by side: each reads all its rows, on all its replicas."""
CHECKSUM_TIMEOUT_S = 600.0
MARKS_MAX = 3
"""Of one tablet, one after the other."""
SERVER_DEAD = "the server is dead"

WhoIsStopped = Callable[[], Awaitable[Collection[str]]]
"""Says which servers an operator stopped. It is asked only while a server does not live."""


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport:
    """What was found, and what it was found from. As text: what people want to know of it."""

    facts: Facts
    tablets: tuple[Judged, ...]
    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Nothing but notes was found."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    @property
    def problems(self) -> list[Finding]:
        """What is not well, the worst first."""
        found = [f for f in self.findings if f.severity is not Severity.NOTE]
        return sorted(found, key=lambda finding: -finding.severity)

    @property
    def unwell(self) -> list[Judged]:
        """Tablets that are not healthy, the worst first."""
        found = [each for each in self.tablets if each.verdict is not Verdict.HEALTHY]
        return sorted(found, key=lambda each: -each.verdict)

    def __repr__(self) -> str:
        count = len(self.problems)
        found = "all is well" if self.is_well else f"{count} problem{'s' * (count != 1)}"
        return f"<check of {len(self.tablets)} tablets: {found}>"

    def __str__(self) -> str:
        if self.is_well:
            return f"all is well: {len(self.tablets)} tablets are healthy"
        return "\n".join([f"{each.severity.name.lower()}: {each}" for each in self.problems])

    def log_of(self, tablet: TabletFacts) -> list[tuple[SafekeeperId, HeldTimeline | None]]:
        """What each member of a tablet's log says that it has; None: it did not say."""
        if tablet.timeline is None:
            return []
        answers = self.facts.logs.answers if self.facts.logs is not None else ()
        held = {answer.safekeeper_id: answer.held.get(tablet.id) for answer in answers}
        return [(member, held.get(member)) for member in tablet.timeline.members]

    def tables(self) -> list[dict[str, Any]]:
        """Of each table: how many of its tablets have which verdict."""
        counts: dict[str, dict[str, int]] = {}
        for each in self.tablets:
            of_table = counts.setdefault(each.tablet.table, {v.label: 0 for v in Verdict})
            of_table[each.verdict.label] += 1
        tables = self.facts.status.tables if self.facts.status is not None else ()
        none = {verdict.label: 0 for verdict in Verdict}
        return [
            {
                "name": table.name,
                "durability": table.durability,
                "state": table.state,
                "tablets": table.tablets,
                **counts.get(table.name, none),
            }
            for table in tables
        ]

    def document(self) -> dict[str, Any]:
        """All of it, as JSON has it; of tablets only those that are not healthy."""
        status, digests = self.facts.status, self.facts.digests
        found: dict[str, Any] = {
            "well": self.is_well,
            "cluster": status.cluster if status is not None else None,
            "masters": [_master(answer) for answer in self.facts.masters],
            "servers": msgspec.to_builtins(status.servers) if status is not None else [],
            "tables": self.tables(),
            "tablets": [
                {
                    **msgspec.to_builtins(each.tablet),
                    "verdict": each.verdict.label,
                    **({"log": _log(self, each)} if each.tablet.timeline is not None else {}),
                }
                for each in self.unwell
            ],
            "findings": [
                {**msgspec.to_builtins(f), "severity": f.severity.name.lower()}
                for f in self.findings
            ],
        }
        if digests is not None:
            found["checksums"] = {
                "tablets": len(digests),
                "equal": compared(digests),
                "answers": [_digests(each) for each in digests],
            }
        return found


def _master(answer: MasterAnswer) -> dict[str, Any]:
    info = answer.info
    if info is None:
        return {"address": answer.address, "error": answer.error}
    return {
        "address": answer.address,
        "name": info.server.name,
        "uuid": info.server.uuid,
        "state": info.state.value,
        "term": info.term,
        "leader": info.leader,
        "op_id": [info.op_id.term, info.op_id.index],
        "members": [member.name or member.uuid for member in info.members],
    }


def _log(report: CheckReport, each: Judged) -> list[dict[str, Any]]:
    return [
        {"safekeeper": member, "held": None if held is None else held_document(held)}
        for member, held in report.log_of(each.tablet)
    ]


def _digests(each: TabletDigests) -> dict[str, Any]:
    return {
        "tablet": each.tablet.id,
        "table": each.tablet.table,
        "error": each.error,
        "replicas": [
            {"server": answer.server, "voter": answer.voter, **_digest(answer)}
            for answer in each.answers
        ],
    }


def _digest(answer: DigestAnswer) -> dict[str, Any]:
    digest = answer.digest
    if digest is None:
        return {"error": answer.error}
    return {
        "index": digest.index,
        "row_count": digest.row_count,
        "rows": digest.rows,
        "rest": digest.rest,
    }


def judge(facts: Facts) -> CheckReport:
    """Everything that the facts show. Pure."""
    findings = judge_masters(facts.masters, facts.stopped)
    tablets: list[Judged] = []
    if facts.status is None:
        text = f"servers and tablets could not be looked at: {facts.status_problem}"
        hint = check_hints.NO_LEADER
        findings.append(Finding("masters", "", text, Severity.ERROR, hint))
    else:
        tablets = judge_tablets(facts.status, facts.logs)
        findings += judge_servers(facts.status, facts.stopped)
        findings += judge_encryption(facts.status, facts.leaving)
        findings += judge_tables(facts.status)
        findings += judge_nodes(facts.status)
        findings += judge_indexes(facts.status)
        findings += [finding for each in tablets for finding in each.findings()]
        findings += [] if facts.logs is None else judge_logs(facts.status, facts.logs)
    if facts.digests is not None:
        findings += judge_digests(facts.digests)
    return CheckReport(facts, tuple(tablets), tuple(findings))


# ---- asking -----------------------------------------------------------------------------------


async def check_cluster(
    runtime: Runtime,
    masters: MastersClient,
    *,
    tables: Sequence[str] = (),
    checksums: bool = False,
    wait_s: float = 0.0,
    timeout_s: float,
    stopped: WhoIsStopped | None = None,
) -> CheckReport:
    """See `AsyncDatabase.check`. Raises `TableNotFound`.

    Rows are compared once all else is well, or at the end. What could not be compared, as a replica
    had just gone, is looked at again while there is time; replicas that differ are not.
    """
    clock = runtime.clock
    deadline = clock.monotonic() + wait_s
    while True:
        facts = await _gather(runtime, masters, tables, timeout_s)
        if stopped is not None and _lacks_servers(facts):
            facts = replace(facts, stopped=tuple(await stopped()))
        report = judge(facts)
        is_last = clock.monotonic() >= deadline
        if checksums and facts.status is not None and (report.is_well or is_last):
            digests = await _all_digests(runtime, facts.status)
            report = judge(replace(facts, digests=digests))
            is_last = is_last or any(map(_is_difference, report.problems))
        if report.is_well or is_last:
            return report
        await clock.sleep(LOOK_AGAIN_S)


def _lacks_servers(facts: Facts) -> bool:
    """Whether some server is not there, so that it matters who was stopped."""
    status = facts.status
    if status is None:
        return False
    live = {each.id for each in status.servers if each.is_live}
    everyone = [each.id for each in status.servers]
    everyone += [each.id for each in status.backups_not_heard]
    return any(name not in live for name in everyone)


def _is_difference(found: Finding) -> bool:
    return found.section == "checksums" and found.severity is Severity.ERROR


async def _gather(
    runtime: Runtime, masters: MastersClient, tables: Sequence[str], timeout_s: float
) -> Facts:
    answers = await _ask_masters(runtime, masters.addresses, min(timeout_s, ASK_TIMEOUT_S))
    try:
        reply = await masters.call(STATUS, GetStatus(), timeout_s=timeout_s)
    except StelaeError as error:
        return Facts(answers, None, str(error))
    status = _only(msgspec.json.decode(reply.document, type=StatusFacts), tables)
    logs = await ask_logs(runtime, status, min(timeout_s, ASK_TIMEOUT_S))
    return Facts(answers, status, logs=logs, leaving=await leaving(runtime, status))


def _only(status: StatusFacts, tables: Sequence[str]) -> StatusFacts:
    """The same with these tables alone, if any are named. Raises `TableNotFound`."""
    if not tables:
        return status
    present = {table.name: table for table in status.tables}
    for name in tables:
        if name not in present:
            raise TableNotFound(name)
    return msgspec.structs.replace(
        status,
        tables=tuple(table for table in status.tables if table.name in tables),
        tablets=tuple(tablet for tablet in status.tablets if tablet.table in tables),
        indexes=tuple(index for index in status.indexes if index.table in tables),
    )


async def _ask_masters(
    runtime: Runtime, known: Sequence[Address], timeout_s: float
) -> tuple[MasterAnswer, ...]:
    """Ask all whose address is known, then those that they name and that were not asked."""

    async def ask(address: Address) -> MasterAnswer:
        try:
            reply = await runtime.peers.call(address, MASTER_INFO, AskMaster(), timeout_s=timeout_s)
        except StelaeError as error:
            return MasterAnswer(address, None, str(error))
        return MasterAnswer(address, reply.body)

    answers = list(await asyncio.gather(*map(ask, known)))
    named = [m.address for a in answers if a.info is not None for m in a.info.members if m.address]
    further = [address for address in dict.fromkeys(named) if address not in known]
    answers += await asyncio.gather(*map(ask, further))
    return tuple(answers)


# ---- checksums ----------------------------------------------------------------------------------


async def _all_digests(runtime: Runtime, status: StatusFacts) -> tuple[TabletDigests, ...]:
    """Of every tablet with replicas, some at a time."""
    addresses = {server.uuid: server.address for server in status.servers if server.is_live}
    room = asyncio.Semaphore(TABLETS_AT_ONCE)

    async def one(tablet: TabletFacts) -> TabletDigests:
        async with room:
            return await _digests_of(runtime, tablet, addresses)

    groups = [tablet for tablet in status.tablets if tablet.replicas is not None]
    return tuple(await asyncio.gather(*map(one, groups)))


async def _digests_of(
    runtime: Runtime, tablet: TabletFacts, addresses: dict[ServerUuid, Address]
) -> TabletDigests:
    """Mark the tablet's log at its leader, then ask each member for its digest there.

    Once more, with another mark, if a leader has just changed or a replica was past the mark.
    """
    found = TabletDigests(tablet, (), "it has no leader")
    leader = leader_of(tablet)
    if leader is None or leader.uuid not in addresses:
        return found
    uuid = leader.uuid
    for attempt in range(MARKS_MAX):
        if attempt:
            await runtime.clock.sleep(LOOK_AGAIN_S)
        try:
            mark = await runtime.peers.call(
                addresses[uuid],
                MARK_REPLICA,
                MarkReplica(tablet.id),
                timeout_s=ASK_TIMEOUT_S,
                destination=uuid,
            )
        except StelaeError as error:
            found = TabletDigests(tablet, (), str(error))
            if isinstance(error, NotLeader):
                named = [each for each, at in addresses.items() if at == error.leader]
                uuid = named[0] if named else uuid
            continue
        found = await _digests_at(runtime, tablet, mark.body.index, addresses)
        live = [each for each in found.answers if each.voter and each.error != SERVER_DEAD]
        if all(answer.digest is not None for answer in live):
            break
    return found


async def _digests_at(
    runtime: Runtime, tablet: TabletFacts, index: int, addresses: dict[ServerUuid, Address]
) -> TabletDigests:
    order = ChecksumReplica(tablet.id, index)

    async def ask(member: ReplicaFacts) -> DigestAnswer:
        name, uuid, voter = member.server, member.uuid, member.member == "voter"
        if uuid not in addresses:
            return DigestAnswer(name, None, SERVER_DEAD, voter)
        try:
            reply = await runtime.peers.call(
                addresses[uuid],
                CHECKSUM_REPLICA,
                order,
                timeout_s=CHECKSUM_TIMEOUT_S if voter else ASK_TIMEOUT_S,
                destination=uuid,
            )
        except StelaeError as error:
            return DigestAnswer(name, None, str(error), voter)
        return DigestAnswer(name, reply.body, "", voter)

    asked = [ask(member) for member in members_to_ask(tablet)]
    return TabletDigests(tablet, tuple(await asyncio.gather(*asked)))
