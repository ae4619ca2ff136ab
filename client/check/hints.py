"""What to do about what `stelae check` finds. Pure: a sentence for each kind of finding.

Whatever mends itself is waited for; whatever does not has a command, or a server to start.
"""

from __future__ import annotations

from stelae.client.check.facts import ServerFacts, TabletFacts, Verdict
from stelae.core.records.records import ServerKind, TabletState

NO_MASTER = (
    "start the masters again (`stelae up`), or name the cluster's file or data_dir with --cluster"
)
NO_MAJORITY = (
    "start those that do not answer: until more than half of the masters do, nothing is created, "
    "moved or recovered; rows are served as long as their servers live"
)
NO_LEADER = "one is elected within seconds: `stelae check --wait 30`; if not, look into their logs"
MASTER_SILENT = (
    "start it again; if it never comes back, add another one and then remove this one: "
    "`stelae master add`, `stelae master remove {name}`"
)
MASTER_REPLACED = (
    "another server has its port: remove it from the masters (`stelae master remove {name}`), and "
    "add one (`stelae master add`)"
)
SETTLES = "after a change this is so for a moment: `stelae check --wait 30`"
CONTRADICTION = (
    "after a change this is so for a moment: `stelae check --wait 60`; if it stays, it is a fault "
    "of Stelae's: keep the data_dirs and the logs as they are, and report it"
)
NEVER_HEARD = (
    "start it: what is on its disk counts. If it never comes back: "
    "`stelae server retire {name}`, or a smaller backups.count in cluster.yaml and "
    "`stelae apply`"
)
MEDIUM_FULL = (
    "delete rows, free space on its disk (other files may lie there, too), or raise backups.count "
    "or the medium's size in cluster.yaml and `stelae apply`"
)
AVOIDED = (
    "the backup answers masters, but not these tablet servers: check the network between the "
    "machines, and the backup's disk. Until then replicas go to other backups"
)
NOT_ENCRYPTED = (
    "unless the network is trusted, or encrypts by itself: tls: {mode: internal} in cluster.yaml, "
    "then `stelae down` and `stelae up`"
)
NONE_LIVE = "start one, or raise {kind}s.count in cluster.yaml and `stelae apply`"
INDEX_FILLS = (
    "it is filled by itself; how far it is: `stelae table index list`. Meanwhile "
    'find(..., if_filling="scan") reads the table'
)
INDEX_SERVER = "it is opened elsewhere and filled again, by itself: `stelae check --wait 60`"
NOT_COMPARED = "look again once the server answers: `stelae check --checksums --wait 60`"
WAITING = (
    "it is served. Tablets that do not fit go to servers that have memory for them, by themselves: "
    "if none has, raise tservers.count or tservers.memory in cluster.yaml and `stelae apply`; "
    "backups that it waits for have to be started"
)
OWNERS_DIED = (
    "it is tried again by itself, less often each time. The logs of the servers that ended may say "
    "why (`stelae logs`): if they had too little memory, raise tservers.memory in cluster.yaml and "
    "`stelae apply`"
)
_DEAD = {
    ServerKind.TSERVER: "its tablets are recovered elsewhere; start it again, or leave it out: a "
    "smaller tservers.count in cluster.yaml and `stelae apply`",
    ServerKind.BACKUP: "what it had is made anew on other backups; start it again, or leave it "
    "out: a smaller backups.count in cluster.yaml and `stelae apply`",
    ServerKind.CAS_STORE: "start it again: without it logs on safekeepers are not moved",
}


def stopped(name: str) -> str:
    """Of one that an operator stopped."""
    return f"`stelae server start {name}`"


def for_server(server: ServerFacts) -> str:
    """Of one that is dead, and nobody said why."""
    if server.kind == ServerKind.SAFEKEEPER:
        command = f"stelae safekeeper set-status {server.safekeeper_id} decommissioned"
        return f"start it again; if it never comes back: {command}"
    return _DEAD.get(ServerKind(server.kind), "")


def for_tablet(tablet: TabletFacts, verdict: Verdict) -> str:
    """By how it is, and how its rows are kept."""
    is_group = tablet.replicas is not None
    match verdict:
        case Verdict.HEALTHY:
            return ""
        case _ if tablet.owners_died:
            return OWNERS_DIED
        case Verdict.RECOVERING if tablet.state == TabletState.RUNNING and not is_group:
            return WAITING
        case Verdict.RECOVERING:
            return "it goes on by itself: `stelae check --wait 60`"
        case Verdict.MISMATCH:
            return CONTRADICTION
        case Verdict.UNDER_REPLICATED if is_group:
            return "another replica is made where a server is free; else start one, or add servers"
        case Verdict.UNDER_REPLICATED:
            return "it is made up for where enough servers live; else start some, or add them"
        case Verdict.UNAVAILABLE if is_group:
            return "start the servers that are dead: a majority of its replicas has to be there"
        case Verdict.UNAVAILABLE if tablet.state == TabletState.RECOVERING:
            return "what it waits for, and which servers may have it: `stelae recover`"
        case _:
            return "it is recovered by itself within seconds: `stelae check --wait 30`"


HALF_REPLACED = (
    "it is started on another machine by the cluster's own watcher; `stelae check` on one of Ray's "
    "nodes says what that waits for"
)
IN_REPLACEMENT = (
    "nothing while somebody's `stelae server replace` of it runs; else the same command, with this "
    "name, waits until nothing lacks, and ends the replacement. It replaces nothing else then"
)
