"""What the leader master carries out of the decisions that `stelae.coordinator` makes.

The loop is level-triggered: it compares what should be with what is, and begins what is not under
way. All work in flight may be lost with the leader; the next leader begins it again from the
catalog. Catalog entries come first, calls to servers second.

1. `coordinator` sees that a process is gone; `stelae.coordinator.decide` names new owners.
2. `recovery` fences all live backups, and plans each tablet's log from what they hold.
3. A tablet that one server cannot take is split (`recovery_splits`); the owners are told to open.
4. `recovery_attempts` notes which engine merges, and how long it took.
5. An owner reports that it is ready; one catalog entry hands the tablet over, and it is served.

A cold start of the whole cluster is nothing else: no owner is alive, so every tablet is recovered.

`timelines` and `migration_runner` create, migrate and remove timelines (through `migration_ports`);
`timeline_checks` finds members that failed, and what a safekeeper should not hold. `backups` keeps
groups and retirements up to date. `index_orders` carries out what is decided for indexlets.

Read first: `coordinator`. Also searched for as: control loop, reconciler, failover, cold start.
"""
