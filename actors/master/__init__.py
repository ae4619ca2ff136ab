"""The master: keeps the catalog, answers clients and operators, and coordinates while it leads.

Every answer that must be linearizable, every lease and every order comes after a read barrier that
began when the call arrived: a deposed leader gives none. A read that may be a little old is
answered by any master that can prove its age. What operators order is a record in the catalog
before it is carried out.

1. `server` hosts the replica of the catalog's Raft group, and starts `leader` when it leads.
2. `heartbeat_requests` takes the reports of servers, grants leases and gives orders.
3. `client_requests` creates, alters, drops and finds tables, each change by one catalog entry.
4. Other requests: `index_requests`, `operator_requests`, `member_requests`, `loss_requests`,
   `safekeeper_requests`, `token_requests`, `turn_requests`.
5. `peers` knows the other masters, where they listen, and how a group of masters is founded.

`gauges` tells the metrics how this master is and, while it leads, how the cluster is.

Read first: `server`. Also searched for as: metadata server, placement driver, catalog manager, DDL.
"""
