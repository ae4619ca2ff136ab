"""The six dashboards: which figures stand where, and what each says.

Only data: `stelae.dashboards.panels` makes Grafana's JSON of it. A panel's text says what to think
of what it shows; units are Grafana's.
"""

from __future__ import annotations

from dataclasses import dataclass

from stelae.dashboards.queries import (
    HTTP_ERRORS,
    HTTP_REQUESTS,
    HTTP_RUNNING,
    OF_APPLICATION,
    OF_CLUSTER,
    by,
    failures,
    http_quantile,
    http_rate,
    mean,
    memory_share,
    per_server,
    quantile,
    rate,
    series,
    whole,
)

SERVER = "{{server}}"
OF_MASTERS = f'{OF_CLUSTER}, kind="master"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: each query with its legend."""

    title: str
    text: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    bad_from: float | None = None
    """From this value on it is red; what is a single number then is one."""
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard; ``key`` makes its uid, which never changes."""

    key: str
    title: str
    text: str
    panels: tuple[Panel, ...]

    @property
    def uid(self) -> str:
        return f"stelae-{self.key}"


def _number(
    title: str, text: str, query: str, unit: str = "short", bad: float | None = None
) -> Panel:
    return Panel(title, text, ((query, ""),), unit, bad, is_number=True)


def _lines(title: str, text: str, *queries: tuple[str, str], unit: str = "short") -> Panel:
    return Panel(title, text, queries, unit)


OVERVIEW = Board(
    "overview",
    "Stelae: overview",
    "Whether all is well, and how much is going on.",
    (
        _number(
            "Servers live",
            "Of all kinds.",
            f"sum(max by (kind) ({series('cluster_servers_live')}))",
        ),
        _number(
            "Servers dead",
            "Not heard of any more, and not taken out of the cluster; with known backups that were "
            "not heard since the masters' leader began.",
            f"sum(max by (kind) ({series('cluster_servers_dead')})) + "
            f"{whole('cluster_backups_not_heard')}",
            bad=1,
        ),
        _number(
            "Tablets offline",
            "Nobody serves them: they are being created or recovered, or wait for something.",
            whole("cluster_tablets_offline"),
            bad=1,
        ),
        _number(
            "Tablets incomplete",
            "They wait for segments or replicas that are not there: see `stelae recover`.",
            whole("cluster_tablets_incomplete"),
            bad=1,
        ),
        _number(
            "Tablets that lack replicas",
            "They heal by themselves while servers are left to heal on.",
            whole("cluster_tablets_under_replicated"),
            bad=1,
        ),
        _number("Rows", "Of all tables, as last reported.", whole("cluster_rows")),
        _number(
            "Fullest memory",
            "Rows that live, of the limit of the fullest tablet server. Writes end at 95 %.",
            f"max({memory_share('memory_live_bytes')})",
            "percentunit",
            0.9,
        ),
        _number(
            "Recoveries running",
            "Of servers that died; tablets are offline meanwhile.",
            whole("cluster_recoveries_running"),
            bad=1,
        ),
        _lines(
            "Calls",
            "Reads and writes a second, by tablet server; many rows weigh as several calls.",
            (per_server("tserver_calls_per_s"), SERVER),
            unit="ops",
        ),
        _lines(
            "Servers live",
            "By kind, as the leader master hears them.",
            (f"max by (kind) ({series('cluster_servers_live')})", "{{kind}}"),
        ),
        _lines(
            "Rows and tablets",
            "How much there is.",
            (whole("cluster_tables"), "tables"),
            (whole("cluster_tablets"), "tablets"),
        ),
        _lines(
            "Memory of rows",
            "Each row once, however many replicas it has.",
            (whole("cluster_rows_bytes"), "rows"),
            unit="bytes",
        ),
    ),
)
MASTERS = Board(
    "masters",
    "Stelae: masters",
    "The Raft group that keeps the catalog, and the coordinator that its leader is.",
    (
        _number(
            "Masters that lead",
            "One. None for a second or two while they elect.",
            f"sum({series('master_leads')})",
        ),
        _number(
            "Masters dead",
            "A majority has to live.",
            f"max({series('cluster_servers_dead', OF_MASTERS)})",
            bad=1,
        ),
        _lines(
            "Who leads",
            "A change now and then is a restart; many are a network or a disk in trouble.",
            (f"max by (server) ({series('master_leads')})", SERVER),
        ),
        _lines("Term", "Grows with each election.", (per_server("master_term"), SERVER)),
        _lines(
            "Catalog log",
            "So far each master has applied it.",
            (per_server("master_applied_index"), SERVER),
        ),
        _lines(
            "Age of reads",
            "How old the catalog is that a follower answers from.",
            (f"max by (server) ({series('master_staleness_s')})", SERVER),
            unit="s",
        ),
        _lines(
            "Orders that failed",
            "A minute; each is given again. A few are normal while servers die.",
            (failures("coordinator_failures"), "orders"),
            (failures("coordinator_stalls"), "stalls"),
        ),
        _lines(
            "Servers given up",
            "A minute: silent for too long, or surely gone.",
            (failures("servers_given_up"), "servers"),
        ),
        _lines(
            "Messages of Raft lost",
            "A minute, of masters and of replicated tablets.",
            (failures("raft_messages_lost", "raft_mail_lost"), "lost"),
            (failures("raft_messages_dropped"), "dropped"),
        ),
    ),
)
TABLETS = Board(
    "tablets",
    "Stelae: tablets",
    "Tablet servers, their memory, and the replicas of tablets.",
    (
        _lines(
            "Tablets served",
            "By tablet server, owned or led.",
            (per_server("tserver_tablets"), SERVER),
        ),
        _lines("Rows served", "By tablet server.", (per_server("tserver_rows"), SERVER)),
        _lines(
            "Calls",
            "A second, by tablet server.",
            (per_server("tserver_calls_per_s"), SERVER),
            unit="ops",
        ),
        _lines(
            "Memory used",
            "Of the limit, garbage included: cleaning keeps it below.",
            (memory_share("memory_used_bytes"), SERVER),
            unit="percentunit",
        ),
        _lines(
            "Memory of live rows",
            "Of the limit: what cleaning cannot free. Writes end at 95 %.",
            (memory_share("memory_live_bytes"), SERVER),
            unit="percentunit",
        ),
        _lines(
            "Write cost",
            "Bytes written for a byte of a client's, cleaning included. It rises with fullness.",
            (f"max by (server) ({series('write_cost')})", SERVER),
        ),
        _lines(
            "Tablets that lack something",
            "Replicas, or all of their rows in memory.",
            (whole("cluster_tablets_under_replicated"), "lack replicas"),
            (whole("cluster_tablets_loading"), "rows follow"),
            (whole("cluster_tablets_offline"), "offline"),
        ),
        _lines(
            "Replicas missing",
            "Voters of tablets with replicas(n), and copies that are made of them.",
            (whole("cluster_replicas_missing"), "missing"),
            (whole("cluster_copies_running"), "copies"),
        ),
        _lines(
            "Replicas held",
            "By tablet server, of tablets with replicas(n).",
            (per_server("tserver_replicas"), SERVER),
        ),
        _lines(
            "Segments cleaned",
            "A minute; compacted in memory, or cleaned on backups too.",
            (failures("segments_compacted"), "compacted"),
            (failures("segments_cleaned"), "cleaned"),
        ),
        _lines(
            "Indexes being filled",
            "Look-ups by these wait, or scan.",
            (whole("cluster_indexes_filling"), "indexes"),
        ),
        _lines(
            "Replicas in trouble",
            "A minute: replicas that failed, damage found, failures of the disk.",
            (failures("tablet_replicas_failed"), "failed"),
            (failures("tablet_logs_damaged", "broken_tablets_closed"), "damaged"),
            (failures("tablet_store_failures"), "disk"),
        ),
    ),
)
SAFEKEEPERS = Board(
    "safekeepers",
    "Stelae: safekeepers",
    "Logs of tables with wal(n), where they lie, and how they move.",
    (
        _number(
            "Silent safekeepers",
            "Members of logs that do not answer their writer.",
            f"sum({series('wal_members_silent')})",
            bad=1,
        ),
        _number(
            "Members broken",
            "Their disk failed; another member takes their place.",
            whole("timelines_broken"),
            bad=1,
        ),
        _number(
            "Migrations running",
            "Changes of which safekeepers a log lies on.",
            whole("cluster_migrations_running"),
        ),
        _number(
            "Longest without a step",
            "Of migrations that run: `stelae safekeeper status` says what they wait for.",
            whole("cluster_migration_idle_s"),
            "s",
            300,
        ),
        _lines(
            "Lag",
            "Entries that the slowest answering safekeeper lacks, by the server that writes.",
            (f"max by (server) ({series('wal_lag_entries')})", SERVER),
        ),
        _lines("Timelines", "By safekeeper.", (per_server("safekeeper_timelines"), SERVER)),
        _lines(
            "Logs on the disk",
            "By safekeeper; what is sealed on backups is trimmed.",
            (per_server("safekeeper_log_bytes"), SERVER),
            unit="bytes",
        ),
        _lines(
            "Timelines put on backups",
            "Nobody writes to them; the log is fetched back when somebody does.",
            (per_server("safekeeper_timelines_evicted"), SERVER),
        ),
        _lines(
            "Messages lost",
            "A minute, between writers and safekeepers.",
            (failures("wal_messages_lost", "wal_answers_lost"), "lost"),
        ),
        _lines(
            "Disks and contradictions",
            "A minute. A contradiction must never be: keep the disks, and report it.",
            (failures("timeline_writes_failed", "timelines_failed"), "disk"),
            (failures("timeline_alarms"), "contradictions"),
        ),
    ),
)
BACKUPS = Board(
    "backups",
    "Stelae: backups and recovery",
    "Copies on disks, what they lack, and how tablets come back from them.",
    (
        _number(
            "Recoveries running",
            "One for each server that died and owned tablets.",
            whole("cluster_recoveries_running"),
            bad=1,
        ),
        _number(
            "Late by",
            "Beyond what was expected of a running recovery.",
            whole("cluster_recovery_late_s"),
            "s",
            10,
        ),
        _number(
            "Segments that lack replicas",
            "On live backups; they are copied anew at a bounded rate.",
            whole("cluster_segments_under_replicated"),
            bad=1,
        ),
        _number(
            "Losses accepted",
            "By operators, ever: rows that are gone for good.",
            whole("cluster_losses_accepted"),
        ),
        _lines(
            "Recovery",
            "Of the oldest that runs: how old it is, and what was expected.",
            (whole("cluster_recovery_age_s"), "age"),
            (whole("cluster_recovery_expected_s"), "expected"),
            unit="s",
        ),
        _lines(
            "What recoveries took",
            "On the average, of each engine, since the masters started.",
            (mean("recovery_s", "engine"), "{{engine}}"),
            unit="s",
        ),
        _lines(
            "To be copied anew",
            "Bytes of segments that lack replicas.",
            (whole("cluster_shortage_bytes"), "bytes"),
            unit="bytes",
        ),
        _lines(
            "Free",
            "By backup and medium. With none left, writes wait for the cleaner.",
            (by("server, medium", "backup_free_bytes"), "{{server}} {{medium}}"),
            unit="bytes",
        ),
        _lines(
            "Used",
            "By backup and medium.",
            (by("server, medium", "backup_used_bytes"), "{{server}} {{medium}}"),
            unit="bytes",
        ),
        _lines("Syncs", "A second, by backup.", (rate("backup_syncs"), SERVER), unit="ops"),
        _lines(
            "Time of a sync",
            "99 of 100 were quicker, by backup. Every acknowledged write waits for one.",
            (quantile("backup_sync_s", 0.99), SERVER),
            unit="s",
        ),
        _lines(
            "Damage",
            "A minute: found in replicas on backups, or in what they sent. It is copied anew.",
            (failures("backup_damaged_replicas", "backup_damaged_images"), "on disks"),
            (failures("replicas_corrupt"), "sent"),
        ),
    ),
)
DOORS = Board(
    "doors",
    "Stelae: front doors",
    "HTTP through Ray Serve, and calls that go straight to the servers.",
    (
        _lines(
            "HTTP requests",
            "A second, as Ray Serve counts them.",
            (http_rate(HTTP_REQUESTS), "requests"),
            unit="reqps",
        ),
        _lines(
            "HTTP errors",
            "A second: exceptions that the API did not answer itself. None is normal.",
            (f"{http_rate(HTTP_ERRORS)} or vector(0)", "errors"),
            unit="reqps",
        ),
        _lines(
            "Time of an HTTP request",
            "In the API, without the proxy before it.",
            (http_quantile(0.5), "half are quicker"),
            (http_quantile(0.99), "99 of 100 are quicker"),
            unit="ms",
        ),
        _lines(
            "HTTP requests under way",
            "More than 300 of a replica are answered with 429.",
            (f"sum({HTTP_RUNNING}{{{OF_APPLICATION}}})", "requests"),
        ),
        _lines(
            "Calls to tablets",
            "A second, through all doors: HTTP, Python, Spark.",
            (whole("cluster_calls_per_s"), "calls"),
            unit="ops",
        ),
        _lines(
            "Tablets looked for",
            "A minute: servers that could not find a tablet, or its leader, at once.",
            (failures("locations_not_refreshed", "leader_searches_failed"), "failed"),
        ),
    ),
)
BOARDS = (OVERVIEW, MASTERS, TABLETS, SAFEKEEPERS, BACKUPS, DOORS)
