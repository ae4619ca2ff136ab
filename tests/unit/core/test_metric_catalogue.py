"""The catalogue of metrics is what the code counts, and what the documentation lists."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from stelae.core.metric_catalogue import COMMON_LABELS, LABELS, METRICS, MetricKind

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = sorted(set(PROJECT["tool"]["setuptools"]["package-dir"].values()) - {"simulation"})
KIND_BY_CALL = {
    "count": MetricKind.COUNTER,
    "gauge": MetricKind.GAUGE,
    "observe": MetricKind.HISTOGRAM,
}
COUNTED_BY_NAME = ("actors/master/gauges.py", "coordinator/status/figures.py")
"""Where names are in variables too: of figures that are named, each once, in the latter."""
COUNTS = re.compile(r"(.*\.)?_?metrics\.(count|gauge|observe)|gauge|Figure")
DOCUMENTED = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)


def emitted() -> dict[tuple[str, MetricKind], set[str]]:
    """(name, kind) → labels, of every call that counts something in the code."""
    found: dict[tuple[str, MetricKind], set[str]] = {}
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        is_named = path.relative_to(ROOT).as_posix() not in COUNTED_BY_NAME
        for name, kind, labels in _calls_of(ast.parse(path.read_text())):
            assert name or not is_named, f"{path}: the name of a metric is not to be read"
            if name:
                found.setdefault((name, kind), set()).update(labels)
    return found


def _calls_of(tree: ast.AST) -> list[tuple[str, MetricKind, set[str]]]:
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = ast.unparse(node.func)
        if not re.fullmatch(
            r"((.*\.)?_?metrics\.(count|gauge|observe)|gauge|figure|Figure)", called
        ):
            continue
        kind = KIND_BY_CALL.get(called.rsplit(".")[-1], MetricKind.GAUGE)
        first = node.args[0]
        name = first.value if isinstance(first, ast.Constant) else ""
        labels = {keyword.arg or "" for keyword in node.keywords} - {""}
        if called == "Figure" and len(node.args) > 2 and isinstance(node.args[2], ast.Dict):
            labels = {str(key.value) for key in node.args[2].keys if isinstance(key, ast.Constant)}
        found.append((str(name), kind, labels))
    return found


def test_the_catalogue_has_what_the_code_counts_and_nothing_else() -> None:
    """By name and kind; each label of the catalogue is given wherever the metric is counted."""
    counted, listed = emitted(), {(m.name, m.kind): set(m.labels) for m in METRICS.values()}
    counted = {key: labels for key, labels in counted.items() if key[0]}
    assert set(counted) - set(listed) == set(), "counted, and not in the catalogue"
    assert set(listed) - set(counted) == set(), "in the catalogue, and counted nowhere"
    for key, labels in listed.items():
        assert labels <= counted[key], f"{key[0]}: a label that nobody gives"


def test_labels_are_few_and_each_says_why_it_is_bounded() -> None:
    """At most one beside the common ones; no label that grows with tables, tablets or addresses."""
    for metric in METRICS.values():
        assert len(metric.labels) <= 1, metric
        assert set(metric.labels) <= set(LABELS), metric
        assert re.fullmatch(r"[a-z][a-z_]*", metric.name)
        assert not metric.help[0].islower()
        assert "|" not in metric.help
    assert not {"table", "tablet", "master", "peer", "address"} & {*LABELS, *COMMON_LABELS}
    assert set(LABELS) == {label for metric in METRICS.values() for label in metric.labels}


def test_the_documentation_lists_the_catalogue() -> None:
    """Each metric with its kind, labels and text, as it stands in the code."""
    text = (ROOT / "docs/monitoring.md").read_text()
    listed = DOCUMENTED.findall(text)
    expected = [(m.exported, m.kind.value, ", ".join(m.labels), m.help) for m in METRICS.values()]
    assert listed == expected
