"""One table: its writes, reads, scans and alters, from async code and from blocking code.

A tablet's part of a call is atomic and applied once. A scan is of one point of each tablet's log;
if the server that began it dies, the tablet is read again from the beginning. A snapshot is the
same rows at every read, or `SnapshotLost`.

1. `api` checks a call and states its promises; `table` carries it out at the tservers.
2. `writer` brings rows into one form, and cuts them by tablet; `reads` does so for keys.
3. `gathering` sends one-row writes that are made at the same time in one message.
4. `stelae.client.routing.retries` repeats each part until its end is known.
5. `blocking` first tries a small call from the caller's own thread, then the way over the loop.

`scan`, `scan_pages`, `snapshots` and `streams` read many rows, `matching` by expressions;
`owner_watch` gives a long call up once the masters name another owner. `alter` and `alterations`
change the table.

Read first: `table`. Also searched for as: upsert, cursor, snapshot read, schema change, batching.
"""
