"""What the leader master decides: from the catalog, from what servers report, and from the time.

Decisions are level-triggered: nothing is remembered of past events but what was tried a moment ago,
so a new leader goes on where the former one ended. Each action is idempotent. Each change of the
catalog is one log entry that compares generations. Nothing here does I/O;
`stelae.actors.master.leader` carries out what `decide` returns.

- `catalog`: the state machine behind the masters' log, and the one way to change it.
- `liveness`: who is alive, who holds a lease, and what servers report.
- `placement`: which server gets what: tablets, leaders, groups of backups.
- `groups`: tablets with ``replicas(n)``: health, healing, spreading.
- `moves`: tablets with an owner that leave a server by plan.
- `timelines`: safekeepers, and the migration of timelines.
- `ddl`: what operations on tables, indexes and servers change in the catalog.
- `backoff`: what was tried a moment ago.
- `apply`: the plan of ``stelae apply``.
- `status`: what people are told.

`decide` makes the actions, with `decide_groups` for ``replicas(n)`` and `decide_indexes`.

Read first: `decide`. Also searched for as: reconciler, placement driver, scheduler, control plane.
"""
