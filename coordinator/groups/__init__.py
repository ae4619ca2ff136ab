"""Tablets with ``replicas(n)``: how each group is, and which one step makes it better. Pure.

The catalog says who the members are; all else is made from the last reports of live servers. At
most one step of a tablet is decided at a time, and each compares the committed configuration.
Nothing is begun that the group could not commit. A lost voter is replaced before it is removed.

1. `group` finds leader and members of a tablet from the reports.
2. `health` says of each member whether it is well, waited for, or failed.
3. `healing` chooses the next change of members: add, promote, remove, or hand over leadership.
4. `replacements` chooses the server, and bounds the copies under way (`tserver_loads`).
5. When all is calm, `spreading` moves one replica or leadership to even out the load.

Read first: `healing`. Also searched for as: re-replication, quorum, 3-4-3, rebalancer, eviction.
"""
