"""``stelae plan`` and ``stelae bench``: from a spec to a plan, and from a machine to its rates.

What is measured here goes as rates into `stelae.planner`, which computes everything else. Each
measurement is bounded by bytes and by time, and what it made is removed in the end.

1. `plan` turns a ``cluster.yaml`` into a layout, and chooses the rates.
2. `calibration` starts a process that measures this machine, watches it and ends it.
3. `calibration_work` measures the parts of a recovery, one after the other.
4. `plan` hands layout and rates to `stelae.planner.plan`.
5. `benching` measures what a running cluster does, in a table of its own.

Read first: `plan`. Also searched for as: benchmark, capacity planning, calibration, sizing.
"""
