"""The safekeeper: stores the ends of the logs of tables with ``wal(n)``, and votes for proposers.

Whatever is answered is durable. Each call is idempotent. The safekeeper's id is durable before
anything is done under it. A timeline that fails stops and says so; the other timelines go on.

1. A proposer's mail reaches `timelines`, which hands it to the timeline's `acceptor`.
2. `acceptor` steps `stelae.consensus.wal.acceptor` with all that waits in its queue.
3. `timeline_store` makes the result durable, one sync for all appends of that turn.
4. Then `acceptor` answers: in the reply to the mail, or through `links`.
5. `upkeep` trims what backups hold, and evicts idle timelines to backups (`offload`).

`server` starts it, under the id that masters gave it (`safekeeper_id`). `pulls` copies a timeline
from another safekeeper, which serves it from `pull_sources`. `reopening` opens a timeline again
after its disk failed.

Read first: `acceptor`. Also searched for as: WAL service, walproposer, acceptor, Neon, quorum log.
"""
