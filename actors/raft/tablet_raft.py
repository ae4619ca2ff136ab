"""How the Raft groups of tablets run."""

from __future__ import annotations

from stelae.actors.raft.replica import ReplicaSettings
from stelae.consensus.raft.settings import RaftSettings
from stelae.core.config.settings import Settings


def tablet_raft_settings(settings: Settings) -> ReplicaSettings:
    """How the group of a tablet runs: with a lease, and with hosts that copy the state."""
    tick_s = settings.group_tick_s
    refuse_votes_s = (settings.tablet_election_ticks - 2) * tick_s
    return ReplicaSettings(
        raft=RaftSettings(
            election_ticks=settings.tablet_election_ticks,
            heartbeat_ticks=settings.raft_heartbeat_ticks,
            lease_duration_us=int(refuse_votes_s * 0.8 * 1_000_000),
            copies_by_host=True,
        ),
        tick_s=tick_s,
        log_file_bytes=settings.segment_bytes,
        keep_bytes=settings.raft_keep_bytes,
        queue_bytes=settings.queue_bytes,
        abandon_member_s=settings.abandon_member_s,
    )
