"""What operators ask of a cluster: the calls behind the command line and the HTTP API.

An order is acknowledged once it is in the masters' catalog; any later leader works on it too. So
every call may be given up and made again. Once an order is acknowledged, no earlier one of the same
client changes anything, however late a copy of it arrives.

- `operators`: retire and maintain tservers, move and spread replicas.
- `safekeepers`: list and set safekeepers, migrate and scrub timelines.
- `timeline_views`: the documents about safekeepers and timelines, for people and programs.
- `losses`: what is missing of logs, and the acceptance that it is lost for good.
- `quarantine`: lists and purges what deleted replicas left on tservers.
- `tokens`: makes, lists and revokes access tokens of the HTTP API.
- `turns`: takes, keeps and ends the right to change a cluster's servers.
- `call_log`: notes orders in the audit log that do not go over HTTP.

Read first: `operators`. Also searched for as: decommission, drain, maintenance mode, rebalance.
"""
