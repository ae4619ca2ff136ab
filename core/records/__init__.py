"""What is kept on record: by the catalog, the configuration store, logs and servers.

A record is a frozen value that is replaced as a whole. The procedures that change records are in
`stelae.coordinator` and `stelae.consensus`; here are their forms and the rules that need no state.

- `records`: tables, tablets and servers, as the catalog and the servers describe them.
- `replication`: log entries, configurations, term and vote, snapshots of Raft groups.
- `timelines`: configurations of timelines, their majorities, and what a safekeeper keeps.
- `configurations`: records of the configuration store, and which may succeed which.
- `succession`: the stages in which a tablet gives way to its successor.
- `losses`: what of a log is on no backup, and what was accepted as lost.
- `tokens`, `turns`: access tokens of the HTTP API; the turn of an operator.

Read first: `records`. Also searched for as: metadata, OpId, configuration, epoch, quorum.
"""
