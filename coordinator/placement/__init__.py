"""Which server gets what: tablets, leaderships, groups of backups, parts of split tablets. Pure.

Choices are deterministic: the same loads give the same choice. Each step of evening out makes some
measure smaller, so the steps come to an end and none is taken back.

- `assignment`: which tserver gets a tablet.
- `tablet_sizes`: how much memory a tablet needs where it is opened.
- `rebalance`: which replica or leadership to move, by counts and then sizes.
- `doubted`: servers at which one object after the other failed.
- `leader_loads`: which leadership to move, by measured load.
- `copysets`: groups of backups in which the replicas of a segment lie together.
- `known_backups`: which backups the cluster counts on, heard or not.
- `leaving_backups`: how backups are retired, and when nothing is left on one.
- `splitting`: how a tablet that is too large is split at its recovery.

Read first: `assignment`. Also searched for as: load balancer, replica placement, hot spot, split.
"""
