"""Grafana's dashboards and alert rules as code, and how they are published.

Nothing here knows a server of Stelae: queries are made from `stelae.core.metric_catalogue` alone.
Publishing is idempotent, and touches nothing that others made; changes by hand are overwritten.

1. `queries` makes PromQL of the catalogue's metrics.
2. `boards` says which figures stand where, and what each means; `panels` makes Grafana's JSON.
3. `alerts` makes the alert rules: a query, a bound, how long to wait, and what to do.
4. `publisher` brings folder, data source, dashboards and rules to that state.
5. `grafana` makes the calls, and turns its answers into documents and errors.

Read first: `boards`. Also searched for as: monitoring, Prometheus, PromQL, alerting, observability.
"""
