"""Who is alive, until when a server may still serve, and what servers report. Pure.

A tablet may be given to another server only once its owner cannot be serving. Its process must be
proved gone, or every lease that any leader may have granted it must have ended. A run of a server
that was given up gets no lease again. Times are seconds of this master's monotonic clock.

1. A heartbeat reaches `liveness`, which notes the run of the server and its reports.
2. `liveness` says until when a lease is granted, and when a silent run is dead.
3. `stelae.coordinator.decide` gives up a dead run; `free_at` says when its lease has ended.
4. `standing` compares what each server holds with the catalog, and keeps that until either changes.
5. `backup_loads` collects loads and copysets of backups, for the servers that place replicas;
   `shunned_backups` finds those that do not answer these servers.

Read first: `liveness`. Also searched for as: failure detector, lease, heartbeat, fencing, STONITH.
"""
