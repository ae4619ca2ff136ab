"""Tablets with an owner that leave a server by plan: which goes next, and where to. Pure.

A tablet moves by being closed and recovered elsewhere, one at a time, only while every segment has
all its replicas and no tablet is being recovered. Each step follows from catalog and reports. Rows
of tables with ``segments()`` are in one memory only: their tablets stay.

1. `planned_moves` takes the first wish that there is, in the order of the next lines.
2. `relief`: a server lacks memory, and another one has some.
3. `leaving`: a server is to be retired.
4. `evening`: a server has more tablets than another, after a long calm.
5. `departures` closes the tablet where it is; then it is recovered like any other.

Read first: `planned_moves`. Also searched for as: rebalance, drain, decommission, region move.
"""
