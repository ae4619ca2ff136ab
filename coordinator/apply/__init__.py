"""The plan of ``stelae apply``: from what is wanted and what is, an ordered list of steps. Pure.

A plan is made again after every step, so an interrupted one leaves nothing to remember. Each step
may be done twice. What would break a table's promise is refused before anything is changed, with
all reasons at once.

1. `plan` compares spec and cluster, and lists the steps: add, restart, drain and end servers.
2. `checks` says all reasons why the spec cannot be applied.
3. `room` says whether tablets and replicas fit where they would go.
4. `stelae.applying.run` carries out the first step, looks again, and plans again.

Read first: `plan`. Also searched for as: declarative config, rolling restart, drain, diff.
"""
