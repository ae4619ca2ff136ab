"""Every metric that Stelae's servers count: name, kind, labels, and what it says.

One table for code, documentation and dashboards: Ray is told the help texts and labels that stand
here, `stelae.dashboards` asks for no other metric, and a test compares the table with what the code
counts. A label has few values, none made from what users name or number: all that identifies a
table, tablet, address or run is left out when metrics go to Ray, whoever counts it.

``cluster_*`` is what the leader master knows of the whole cluster. Other masters say 0, also one
that has led: so the truth is the maximum over the masters.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

PREFIX = "ray_stelae_"
"""Of the names that Prometheus sees: Stelae's own, and what Ray puts before it."""


class MetricKind(enum.StrEnum):
    """How Prometheus takes it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the table."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def exported(self) -> str:
        """Its name in Prometheus; of a histogram, what ``_bucket`` and the like are put after."""
        return f"{PREFIX}{self.name}" + ("_total" if self.kind is MetricKind.COUNTER else "")


COMMON_LABELS = {
    "cluster": "the cluster's name; those that share one Ray",
    "server": "the server that says so; as many as cluster.yaml and operators have made",
}
"""Every metric has these, and why they are few."""
LABELS = {
    "done": "true, false",
    "engine": "engines of recovery: two",
    "error": "Stelae's classes of errors, and Python's",
    "kind": "a word of the code: a kind of server, change or repair",
    "medium": "media of backups in cluster.yaml",
    "reason": "a word of the code, or a class of errors",
    "step": "steps of a protocol in the code",
    "verdict": "how a migration ends: a few words",
    "what": "duties of a safekeeper's upkeep: four",
}
"""What else may be a label, and why its values are few."""


def _count(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, text, labels)


def _times(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.HISTOGRAM, text, labels)


_CLUSTER = (
    _gauge("cluster_servers_live", "Servers that are heard", "kind"),
    _gauge("cluster_servers_dead", "Servers that are not heard, in their newest run", "kind"),
    _gauge("cluster_backups_not_heard", "Known backups not heard since the masters' leader began"),
    _gauge("cluster_tables", "Tables"),
    _gauge("cluster_tablets", "Tablets"),
    _gauge("cluster_rows", "Rows of all tablets, as last reported"),
    _gauge("cluster_rows_bytes", "Memory of all tablets, each counted once"),
    _gauge("cluster_calls_per_s", "Calls a second of late, of all tablets"),
    _gauge("cluster_tablets_offline", "Tablets that nobody serves"),
    _gauge("cluster_tablets_incomplete", "Tablets that wait for segments or a majority"),
    _gauge("cluster_tablets_under_replicated", "Tablets that lack replicas"),
    _gauge("cluster_segments_under_replicated", "Segments that lack replicas on live backups"),
    _gauge("cluster_replicas_missing", "Voters that tablets with replicas(n) lack"),
    _gauge("cluster_shortage_bytes", "Bytes of segments that have to be copied anew"),
    _gauge("cluster_tablets_loading", "Tablets that are served while their rows follow"),
    _gauge("cluster_recoveries_running", "Recoveries that run"),
    _gauge("cluster_recovery_age_s", "Since the oldest running recovery's server was found dead"),
    _gauge("cluster_recovery_expected_s", "What that recovery was expected to take, in all"),
    _gauge("cluster_recovery_late_s", "By how much a running recovery is later than expected"),
    _gauge("cluster_migrations_running", "Timelines whose safekeepers are being changed"),
    _gauge("cluster_migration_age_s", "Since the oldest running migration began"),
    _gauge("cluster_migration_idle_s", "The longest for which a running migration has not moved"),
    _gauge("cluster_copies_running", "Tablets being copied, or waiting for it"),
    _gauge("cluster_indexes_filling", "Indexes that cannot be looked up in all their parts"),
    _gauge("cluster_losses_accepted", "Losses of data that operators have accepted, ever"),
)
_MASTERS = (
    _gauge("master_leads", "1: it leads the masters; 0: it does not"),
    _gauge("master_term", "The masters' Raft term, as far as it knows"),
    _gauge("master_commit_index", "So far the catalog's log is committed"),
    _gauge("master_applied_index", "So far it is applied here"),
    _gauge("master_staleness_s", "How old a read here may be"),
    _count("coordinator_stalls", "Times that the leader was kept from working for too long"),
    _count("coordinator_failures", "Orders that failed, and are given again", "error"),
    _count("servers_given_up", "Runs of servers that were given up"),
    _count("heartbeats_without_barrier", "Heartbeats that the leader could not answer as one"),
    _count("master_searches_failed", "Questions to masters, of masters, without an answer"),
    _count("master_list_not_stored", "New lists of masters that a server could not store"),
    _count("tablets_replaced", "Tablets put in the place of those not created in time"),
    _count("successions", "Steps of tablets that make way for others", "step"),
    _count("replica_changes", "Orders to change the members of a tablet", "kind"),
    _count("indexlet_changes", "Changes of parts of indexes", "step"),
    _times("recovery_s", "How long an engine took for tablets opened together", "engine"),
    _count("fences_failed", "Backups that could not be fenced in a recovery", "error"),
    _count("spark_recoveries_failed", "Recoveries that Spark did not bring to an end", "error"),
    _count("summary_reads_failed", "Summaries of segments that Spark could not read"),
    _count("tablets_split", "Tablets that were split when they were recovered"),
    _count("tablet_splits_failed", "Such splits that failed", "error"),
    _count("migrations", "Migrations that ended", "verdict"),
    _count("migration_steps", "Steps of migrations", "step"),
    _count("migrations_put_off", "Migrations that had to wait for their turn"),
    _count("migration_scans_failed", "Looks for unfinished migrations that failed", "error"),
    _count("migration_orders_not_struck_off", "Orders that are done and still listed", "error"),
    _count("timeline_scans_failed", "Looks at all timelines that failed", "error"),
    _count("timeline_duties_put_off", "Changes of timelines that had to wait"),
    _count("timelines_scrubbed", "Timelines that were removed where none belongs"),
    _gauge("timelines_broken", "Members of timelines that do nothing: their disk failed"),
    _count("safekeeper_looks_failed", "Questions for broken timelines without an answer"),
)
_TSERVERS = (
    _gauge("tserver_tablets", "Tablets that are served or led here"),
    _gauge("tserver_replicas", "Replicas of tablets with replicas(n) that are here"),
    _gauge("tserver_rows", "Rows in the tablets that are served or led here"),
    _gauge("tserver_calls_per_s", "Calls a second of late, of these"),
    _gauge("memory_used_bytes", "Memory of rows, indexes and garbage"),
    _gauge("memory_live_bytes", "Of it, what cleaning cannot free"),
    _gauge("memory_limit_bytes", "How much it may be"),
    _gauge("write_cost", "Bytes written for one byte that clients wrote, cleaning included"),
    _gauge("wal_lag_entries", "The most that a safekeeper of a log written here is behind"),
    _gauge("wal_members_silent", "Safekeepers of logs written here that do not answer"),
    _gauge("quarantine_bytes", "What deleted replicas have left on the disk"),
    _count("heartbeats_failed", "Heartbeats of tservers without an answer"),
    _count("epoch_raises_failed", "Segments that could not be told to be written anew"),
    _count("opened_reports_failed", "Reports of opened tablets that did not arrive at once"),
    _count("cleaning_failed", "Passes of the cleaner that failed"),
    _count("segments_compacted", "Segments compacted in memory"),
    _count("segments_cleaned", "Segments cleaned, in memory and on backups"),
    _count("survivors", "Segments made of what lived in cleaned ones"),
    _count("merges_not_offered", "Tablets merged here, as nobody else did it in time"),
    _count("merges_of_other_replicas", "Merges made elsewhere that did not fit"),
    _count("segments_loaded", "Segments loaded after tablets were recovered"),
    _times("tablet_loaded_s", "From serving until all rows of a recovered tablet were there"),
    _times("rows_fetched_s", "Fetches of rows that were not in memory yet"),
    _count("row_reads_failed", "Reads of such rows at a backup that failed"),
    _count("row_pieces_fetched", "Pieces of segments fetched for such rows"),
    _count("single_rows_fetched", "Single rows fetched from backups"),
    _count("segment_columns_read", "Columns of segments fetched for scans of such rows"),
    _count("near_pieces_read", "Pieces read from files of backups on the same machine"),
    _count("near_rows_read", "Single rows read from such files"),
    _count("near_columns_read", "Columns of segments read from such files, for indexes"),
    _count("near_rows_unlike", "Such pieces that were not what they should be"),
    _count("near_images_read", "Segments of a recovery read from such files"),
    _count("near_replicas_read", "Replicas that Spark read from such files"),
    _count("near_replicas_unlike", "Such segments and replicas that were fetched instead"),
    _count("replicas_not_located", "Questions of Spark for such files without an answer"),
    _count("segments_inherited", "Segments of a split tablet written into a part's own log"),
    _count("inherited_bytes", "Bytes of what was written for them"),
    _count("inherited_waits", "Waits for backups until they had it"),
    _count("inheriting_failed", "Tries to write them that failed"),
    _count("transfers_repeated", "Transfers to a successor that were begun again"),
    _count("fences_left", "Fences after a transfer that the next try sets"),
    _count("hand_overs_failed", "Leaderships that were not handed over at once"),
    _count("locations_not_refreshed", "Places of tablets that could not be looked up"),
    _count("leader_searches_failed", "Looks for a tablet's leader that failed"),
    _count("gathered_writes_failed", "Writes sent together that failed together"),
    _count("index_merges_put_off", "Merges of an indexlet's runs for which there was no turn yet"),
    _count("tables_not_shared", "Turns whose answers were not made into tables together"),
)
_REPLICAS = (
    _count("raft_messages_lost", "Messages of Raft that did not arrive"),
    _count("raft_mail_lost", "Mail of several groups that did not arrive"),
    _count("raft_messages_dropped", "Messages of Raft dropped, as too many waited"),
    _count("raft_answers_refused", "Answers of Raft that were refused"),
    _count("raft_copies_needed", "Times that a member could only be helped by a copy"),
    _count("read_indexes_failed", "Proofs of freshness that did not come"),
    _count("member_changes_put_off", "Changes of members that had to wait"),
    _count("member_changes_taken_back", "Changes of members that were taken back"),
    _count("foundings_repeated", "First configurations of tablets written again"),
    _count("tablet_drops_failed", "Replicas that could not be deleted at once"),
    _count("tablet_logs_damaged", "Logs of replicas in which damage was found"),
    _count("broken_tablets_closed", "Replicas closed, as what they have is damaged"),
    _count("tablets_repaired", "Replicas repaired when they were opened", "kind"),
    _count("tablet_store_failures", "Failures of the disk below replicas"),
    _count("tablet_replicas_failed", "Replicas that failed and wait to be replaced"),
    _count("flushes", "Flushes of replicas' rows to the disk"),
    _times("flush_s", "How long such a flush took"),
    _count("flushes_given_up", "Such flushes that were given up"),
    _count("copies_ordered", "Copies of tablets that were ordered here"),
    _count("copy_orders_refused", "Such orders that were refused", "reason"),
    _count("copies_throttled", "Copies that had to wait, as too many ran"),
    _count("copies_received", "Copies that arrived whole"),
    _count("copies_resumed", "Copies that went on after a restart"),
    _count("copies_given_up", "Copies that were given up", "reason"),
    _count("copy_sessions", "Copies that were given to others"),
    _count("copy_sessions_left", "Copies whose giver was not told of the end"),
    _count("copy_bytes_sent", "Bytes of copies given to others"),
    _count("copy_logs_let_go", "Logs kept for a copy that took too long"),
    _count("copy_objects_received", "Files and pieces of logs received"),
    _count("copy_objects_lost", "Such pieces that had to be asked for again"),
    _count("copy_objects_refused", "Such pieces that were asked for and not given"),
    _count("quarantines_expired", "Deleted replicas whose files were removed for good"),
    _count("quarantine_ages_not_noted", "Ages of deleted replicas that could not be stored"),
    _count("quarantine_sweeps_failed", "Looks for old deleted replicas that failed"),
)
_SAFEKEEPERS = (
    _gauge("safekeeper_timelines", "Timelines that are here"),
    _gauge("safekeeper_timelines_failed", "Of them, those that do nothing: the disk failed"),
    _gauge("safekeeper_timelines_evicted", "Of them, those whose log is on backups only"),
    _gauge("safekeeper_log_bytes", "Of logs on the disk"),
    _count("safekeeper_heartbeats_lost", "Heartbeats of safekeepers without an answer"),
    _count("wal_messages_lost", "Messages to safekeepers that did not arrive"),
    _count("wal_answers_lost", "Answers of safekeepers that did not arrive"),
    _count("timeline_alarms", "Contradictions in a log, which must not be"),
    _count("timeline_fetches_failed", "Parts of logs that could not be fetched"),
    _count("timeline_fetches_unanswered", "Questions for parts of logs without an answer"),
    _count("timeline_writes_failed", "Writes of a safekeeper that its disk refused"),
    _count("timeline_trims_failed", "Ends of logs that could not be removed"),
    _count("timelines_not_begun", "Timelines that could not be begun", "kind"),
    _count("timelines_failed", "Timelines that failed with their disk"),
    _count("timelines_not_dropped", "Timelines that could not be deleted at once"),
    _count("timelines_reopened", "Failed timelines that work again"),
    _count("timeline_reopenings_failed", "Failed timelines that still do not work", "error"),
    _count("timelines_evicted", "Timelines put on backups, as nobody writes"),
    _count("timelines_returned_for_copies", "Such timelines taken back: copies were lost"),
    _count("timelines_pulled", "Timelines copied from another safekeeper"),
    _count("pull_pieces_lost", "Pieces of such copies that had to be asked for again"),
    _count("pull_sessions_left", "Copies whose giver was not told of the end"),
    _count("pull_sessions_expired", "Copies given to others that were not asked for any more"),
    _count("pulls_abandoned", "Half copies that were removed"),
    _count("upkeep_failed", "Duties that have to wait", "what"),
    _count("blobs_not_put", "Logs that a backup did not take"),
    _count("blobs_not_deleted", "Logs that a backup did not delete"),
    _count("cas_store_heartbeats_lost", "Heartbeats of configuration stores without an answer"),
    _count("cas_store_writes", "Changes of configurations that were asked for", "done"),
)
_BACKUPS = (
    _gauge("backup_used_bytes", "Of a medium, what is used", "medium"),
    _gauge("backup_free_bytes", "Of a medium, what is left", "medium"),
    _gauge("backup_rate_bytes_per_s", "What a medium was seen to do; 0: not yet", "medium"),
    _gauge("backup_logs", "Logs of which segments are here"),
    _count("backup_syncs", "Syncs of media"),
    _times("backup_sync_s", "How long a sync took"),
    _count("backup_heartbeats_lost", "Heartbeats of backups without an answer"),
    _count("backup_torn_appends", "Appends that a crash had cut, found at a start"),
    _count("backup_damaged_images", "Images of segments found damaged at a start"),
    _count("backup_damaged_replicas", "Replicas of segments found damaged when they were read"),
    _count("backup_heads_not_noted", "Heads given up by their owner that were not noted"),
    _count("replicas_corrupt", "Damage found in what a backup sent"),
    _count("replica_reads_failed", "Segments that a recovery read elsewhere instead"),
    _count("logs_incomplete", "Logs that were opened without all of their segments"),
    _count("inventories_failed", "Questions for what backups hold without an answer"),
    _count("stray_replicas_freed", "Replicas on backups that belong to nothing"),
    _count("replicas_freed", "Replicas that cleaning has freed"),
    _count("frees_failed", "Replicas that could not be freed at once"),
    _count("replicas_regrouped", "Replicas moved into one copyset"),
    _count("images_not_fetched", "Such replicas that had to wait"),
    _count("damaged_replicas_replaced", "Damaged replicas of which another was made"),
    _count("damaged_replicas_not_freed", "Damaged replicas that are still there"),
)
_INDEXES = (
    _count("index_barriers_repeated", "Times that an index was asked again before it is used"),
    _count("index_comparisons", "Comparisons of an index with its tablets"),
    _count("index_comparisons_failed", "Such comparisons that failed"),
    _count("index_splits_settled", "Split tablets of which an index needs nothing any more"),
    _count("index_copies_failed", "Parts of indexes that could not be copied at once"),
    _count("index_fills_offered", "Parts of indexes that were filled by a tablet"),
    _count("index_fills_repeated", "Fillings that were begun again"),
    _count("index_fills_resumed", "Fillings that went on with the same answer after lost calls"),
    _count("index_forwardings_failed", "Entries that could not be passed on at once"),
    _count("index_locations_missing", "Entries whose place was not known"),
    _count("index_promises_broken", "Promises of tablets to give entries that were not kept"),
    _count("index_removals_lost", "Old entries left behind, which look-ups skip"),
    _count("index_removals_repeated", "Removals of old entries that were begun again"),
)
METRICS = {
    metric.name: metric
    for metric in (
        *(*_CLUSTER, *_MASTERS, *_TSERVERS, *_REPLICAS),
        *(*_SAFEKEEPERS, *_BACKUPS, *_INDEXES),
    )
}
"""By name."""
CLUSTER_METRICS = tuple(metric.name for metric in _CLUSTER)
