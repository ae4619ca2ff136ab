"""Tablets with ``replicas(n)``: each is a Raft group whose replicas execute the same commands.

All rows in memory are committed, and none is ever taken back. A flush is committed by the
replacement of the superblock; only after it the log before it is trimmed. A replica that cannot go
on is stopped and reported FAILED; it concerns no other replica of the server.

1. The leader's `tablet` checks a write, stamps it with the group's time, and proposes the request.
2. `stelae.actors.raft` commits it; every replica's state machine executes it (`flushes`).
3. The leader answers with the outcome. With indexes, `indexing` puts the entries in before.
4. `flushes` writes images, replaces the superblock, and lets the log be trimmed.
5. `manager` and `lifecycle` open, stop, copy and delete replicas as masters order (`requests`).

`report` tells the masters the state of each replica. `succession` hands the tablet over to one of
another durability.

Read first: `tablet`. Also searched for as: tablet peer, state machine replication, superblock.
"""
