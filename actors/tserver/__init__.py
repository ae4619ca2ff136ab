"""The tablet server: hosts tablets and indexlets, and answers the reads and writes of clients.

A tablet with an owner is served only under a valid lease, in one term, once the catalog says so. A
replica of a group needs no lease of the masters. A restarted server has no tablets with an owner:
they are recovered from backups and timelines, in a higher term.

1. `client_writes` gathers small writes of one turn; `copies` tracks copies of the same call.
2. `server` finds the tablet of the call, and checks its progress and the `lease`.
3. `cleaner` says whether there is memory; a write may wait for it.
4. `owned_tablet` executes and logs a write; `replicated_tablet` proposes it to its group.
5. Reads go to `tablet`; `scans` and `pins` keep the state that a longer read sees.

- `tablet_log`, `segments`: the log of a tablet with an owner, and its segments on backups.
- `row_loading`: rows of a recovered tablet that are still on backups.
- `indexes`: secondary indexes, at tablets and as indexlets.
- `tablet_store`, `tablet_copy`: replicas on this server's disk, and copies between servers.
- `master_calls`, `epochs`, `succession_orders`: calls to masters, and orders about successors.
- `shared_gets`, `gauges`: reads of several tablets in one message, and metrics.
- `ordered_end`: tells the leader master that somebody ends this process.

Read first: `server`. Also searched for as: region server, range server, lease, admission control.
"""
