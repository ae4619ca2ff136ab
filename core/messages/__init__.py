"""Every message on the wire: bodies, methods, and what each promises, by who is asked.

A receiver refuses a lower term or epoch. Every request may arrive twice or late: it is idempotent
or carries a request id. Bulk bytes travel as blobs next to the body.

- `rows`: clients to tservers: writes, reads, scans. `indexes`, `index_offers`: to indexlets.
- `catalog`, `alter`, `index_catalog`: clients to masters, about tables and indexes.
- `masters`, `operators`, `timelines`: operators to masters.
- `servers`, `reports`, `backup_loads`: heartbeats, orders to tservers, and what servers report.
- `backups`: tservers, masters and recovery jobs to backups.
- `replicas`: life, members and copies of replicas of tablets with ``replicas(n)``.
- `safekeepers`: masters, operators and other safekeepers to safekeepers.

Messages of the protocols themselves are in `stelae.consensus.raft.messages` and
`stelae.consensus.wal.messages`.

Read first: `servers`. Also searched for as: RPC, protobuf, service definition, wire protocol.
"""
