"""Where a call goes, how often it is repeated, and under which request id.

Only calls that are idempotent or carry a request id are repeated; every attempt is the same
request. `OutcomeUnknown` is raised only where an attempt may have been carried out. All places
known here are hints, and a wrong one costs one refused call.

1. `session` gives a write its request id; `part` holds what one tablet gets of the call.
2. `locations` knows the tablets of the table, and asks the leader found by `masters` for them.
3. `retries` calls the owner, pauses, refreshes, and calls again until the deadline (`attempts`).
4. A tablet with ``replicas(n)`` goes to `group_calls`: by `group_route`, or after `leader_search`.
5. Small calls to one server share messages (`shared_writes`, `shared_reads`, `sharing`).

`indexlets` looks entries up wherever they are; `direct_calls` are made without the loop.

Read first: `retries`. Also searched for as: meta cache, backoff, leader discovery, exactly-once.
"""
