"""Commands about a cluster and its servers.

Where the masters do the work, only waiting for it ends with Ctrl-C: a command may be given again to
see how far it is.

- `apply`, `plan` (shown by `plan_output`), `bench`: change a cluster, predict one, measure one.
- `check`, `recover`: what is not as it should be, and what is lost.
- `servers`: tservers and replicas: retire, maintain, move, copy, rebalance.
- `logs`, `server_logs`: what a server has logged, and where that is.
- `masters`: add, remove and list masters.
- `safekeepers`, `timelines`: safekeepers, and where the logs of tables lie.
- `certificates`, `tokens`, `grafana`: the HTTP front's certificate and tokens; dashboards.

Read first: `servers`. Also searched for as: admin commands, kubectl, nodetool, drain, decommission.
"""
