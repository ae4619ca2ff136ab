"""PromQL over the catalogue's metrics: nobody writes a metric's name by hand.

Ray puts a label for each worker process to every series, so each query aggregates. What is counted
when something goes wrong has no series before that: `failures` is then 0, not nothing.
"""

from __future__ import annotations

from stelae.core.metric_catalogue import METRICS, MetricKind

OF_CLUSTER = 'cluster="$cluster"'
"""Dashboards show one cluster, chosen above them."""
WINDOW = "$__rate_interval"
HTTP_REQUESTS = "ray_serve_deployment_request_counter_total"
HTTP_ERRORS = "ray_serve_deployment_error_counter_total"
HTTP_LATENCY = "ray_serve_deployment_processing_latency_ms"
HTTP_RUNNING = "ray_serve_replica_processing_queries"
SERVE_METRICS = (HTTP_REQUESTS, HTTP_ERRORS, HTTP_LATENCY, HTTP_RUNNING)
"""Ray Serve's own, of what it serves: HTTP is counted nowhere else."""
OF_APPLICATION = 'application="stelae-$cluster"'


def series(name: str, chosen: str = OF_CLUSTER) -> str:
    """All series of a metric. Raises KeyError: the catalogue has no such metric."""
    return f"{METRICS[name].exported}{{{chosen}}}" if chosen else METRICS[name].exported


def whole(name: str) -> str:
    """What the leader master says of the cluster: the others say 0."""
    return f"max({series(name)})"


def by(label: str, name: str) -> str:
    """A gauge by some label, of all servers together."""
    return f"sum by ({label}) ({series(name)})"


def per_server(name: str) -> str:
    return by("server", name)


def rate(name: str, label: str = "server") -> str:
    """Of a counter, a second, where it surely is counted all the time."""
    assert METRICS[name].kind is MetricKind.COUNTER, name
    return f"sum by ({label}) (rate({series(name)}[{WINDOW}]))"


def failures(*names: str) -> str:
    """Of counters of what should be rare: a minute, all together; 0 if it has never been."""
    assert all(METRICS[name].kind is MetricKind.COUNTER for name in names), names
    rates = [f"(sum(rate({series(name)}[{WINDOW}])) or vector(0))" for name in names]
    return f"60 * ({' + '.join(rates)})"


def mean(name: str, label: str) -> str:
    """Of all observations since the servers started: what is rare has no quantiles of late."""
    metric, chosen = METRICS[name].exported, OF_CLUSTER
    return (
        f"sum by ({label}) ({metric}_sum{{{chosen}}}) "
        f"/ sum by ({label}) ({metric}_count{{{chosen}}})"
    )


def quantile(name: str, share: float, label: str = "server") -> str:
    """Of late. Where observations come often Ray is given a sample, which quantiles bear."""
    assert METRICS[name].kind is MetricKind.HISTOGRAM, name
    buckets = f"{METRICS[name].exported}_bucket{{{OF_CLUSTER}}}"
    return f"histogram_quantile({share:g}, sum by (le, {label}) (rate({buckets}[{WINDOW}])))"


def memory_share(name: str, chosen: str = OF_CLUSTER) -> str:
    """By server, of the limit."""
    label = "server" if chosen else "cluster, server"
    used, limit = series(name, chosen), series("memory_limit_bytes", chosen)
    return f"max by ({label}) ({used}) / max by ({label}) ({limit})"


def http_rate(metric: str) -> str:
    return f"sum(rate({metric}{{{OF_APPLICATION}}}[{WINDOW}]))"


def http_quantile(share: float) -> str:
    buckets = f"{HTTP_LATENCY}_bucket{{{OF_APPLICATION}}}"
    return f"histogram_quantile({share:g}, sum by (le) (rate({buckets}[{WINDOW}])))"
