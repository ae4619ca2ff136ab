"""Runs one replica of a Raft group on a server: the shell around `stelae.consensus.raft.raft`.

One loop owns the core, and carries out each `Ready` in a fixed order: durable, then sent, then
applied. Only a leader's own entries are written next to that. A proposal is answered with a result
or `NotLeader` only once the entry at its index was applied; any other end is `OutcomeUnknown`. A
failure of the disk or of the state machine ends the replica.

1. A proposal waits in `requests`; `loop` gives all that wait to the core as one append.
2. `links` sends the entries; `log_writer` writes them with one sync (`storage`, `durable_mark`).
3. A follower saves before it answers: in `loop`, or in the turn of arrival if its disk is quick.
4. With a majority the entry is committed; `loop` applies it, and `requests` answers the proposer.
5. `snapshots` trims the log; `members` promotes non-voters that have caught up.

`replica` is what others ask of it, with the `types` of its host; `handlers` answers other servers.
`host` ticks all replicas of a server and coalesces their small messages. `staleness` proves how old
a follower's state may be. `tombstone` keeps the vote of a deleted replica. Before a planned stop
`leadership_transfer` hands leaderships over.

Read first: `loop`. Also searched for as: group commit, read index, leader lease, follower read.
"""
