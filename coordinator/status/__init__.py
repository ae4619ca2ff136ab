"""What people are told of a cluster: the status document, recoveries, events, losses, gauges.

Nothing is decided from it. Most of it is made from catalog and reports at each look; recoveries and
events live in a master's memory only.

- `document`: the status document as a whole; `groups`, `indexes` and `cleaning` are parts of it.
- `recoveries`: the phases and times of each recovery.
- `events`: a bounded list of what happened, which every master reads off the log.
- `figures`: gauges of the whole cluster, for dashboards and alerts.
- `losses`: which tablets lack segments of their logs.

Read first: `document`. Also searched for as: cluster status, dashboard, observability, data loss.
"""
