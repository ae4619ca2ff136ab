"""Brings a Grafana to what the code says: folder, data source, dashboards, alert rules.

Idempotent: what is as it should be is left alone, what is not is brought there (rules of alerts are
written each time), so a run that was interrupted is given again. Changes by hand are overwritten
(Grafana keeps a dashboard's former versions); nothing of anybody else is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stelae.core.errors import InvalidArgument
from stelae.dashboards.alerts import GROUP, rule_group
from stelae.dashboards.grafana import Document, Grafana
from stelae.dashboards.panels import all_dashboards

FOLDER_UID, FOLDER_TITLE = "stelae", "Stelae"
SOURCE_UID, SOURCE_NAME = "stelae-prometheus", "Stelae's Prometheus"
PROMETHEUS = "prometheus"
SCRAPE = "10s"
"""Ray tells gauges so often: rates of less would be empty."""
OF_GRAFANA = ("id", "version")
"""Fields of a dashboard that Grafana gives it."""


@dataclass(slots=True)
class Published:
    """What a run has done; titles."""

    grafana: str
    source: str
    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    rules: int = 0

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "grafana": self.grafana,
            "data_source": self.source,
            "created": self.created,
            "updated": self.updated,
            "unchanged": self.unchanged,
            "alert_rules": self.rules,
        }


def publish(
    grafana: Grafana, *, prometheus_url: str = "", source_uid: str = "", message: str = ""
) -> Published:
    """Do it. The data source is made for ``prometheus_url``, or is the one named, or the only
    Prometheus that Grafana has.

    Raises InvalidArgument: it is not clear which data source is meant; and what `Grafana` raises.
    """
    done = Published(grafana.version(), "")
    _folder(grafana, done)
    done.source = _source(grafana, done, prometheus_url, source_uid)
    for dashboard in all_dashboards():
        _dashboard(grafana, done, dashboard, message)
    rules = rule_group(FOLDER_UID, done.source)
    grafana.replace_rules(FOLDER_UID, GROUP, rules)
    done.rules = len(rules["rules"])
    return done


def _folder(grafana: Grafana, done: Published) -> None:
    name = f"folder {FOLDER_TITLE!r}"
    if grafana.folder(FOLDER_UID) is None:
        grafana.create_folder(FOLDER_UID, FOLDER_TITLE)
        done.created.append(name)
    else:
        done.unchanged.append(name)


def _source(grafana: Grafana, done: Published, url: str, uid: str) -> str:
    """The uid of the data source."""
    if url and uid:
        raise InvalidArgument("either a Prometheus to make a data source of, or one that is there")
    found = {each["uid"]: each for each in grafana.data_sources()}
    if url:
        _make_source(grafana, done, url, found.get(SOURCE_UID))
        return SOURCE_UID
    known = [each for each in found.values() if each["type"] == PROMETHEUS]
    names = ", ".join(f"{each['uid']} ({each['name']})" for each in known) or "none"
    if uid:
        if uid not in [each["uid"] for each in known]:
            raise InvalidArgument(f"no data source {uid!r} of type Prometheus; there are: {names}")
        return uid
    if SOURCE_UID in [each["uid"] for each in known]:
        return SOURCE_UID
    if len(known) != 1:
        raise InvalidArgument(
            f"which Prometheus? Grafana has {names}: name one by --datasource, or make one by "
            "--prometheus http://host:9090"
        )
    return str(known[0]["uid"])


def _make_source(grafana: Grafana, done: Published, url: str, there: Document | None) -> None:
    wanted = {
        "uid": SOURCE_UID,
        "name": SOURCE_NAME,
        "type": PROMETHEUS,
        "access": "proxy",
        "url": url,
        "isDefault": False if there is None else bool(there.get("isDefault")),
        "jsonData": {"timeInterval": SCRAPE, "httpMethod": "POST"},
    }
    name = f"data source {SOURCE_NAME!r}"
    if there is None:
        grafana.create_data_source(wanted)
        done.created.append(name)
    elif _has(there, wanted):
        done.unchanged.append(name)
    else:
        grafana.update_data_source(wanted)
        done.updated.append(name)


def _has(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a document has all that is wanted; Grafana adds fields of its own."""
    return all(there.get(key) == value for key, value in wanted.items())


def _dashboard(grafana: Grafana, done: Published, wanted: Document, message: str) -> None:
    name, there = f"dashboard {wanted['title']!r}", grafana.dashboard(wanted["uid"])
    if there is None:
        grafana.save_dashboard(wanted, FOLDER_UID, None, message)
        done.created.append(name)
        return
    current = dict(there["dashboard"])
    version = int(current.get("version", 0))
    same = {key: value for key, value in current.items() if key not in OF_GRAFANA}
    if same == wanted and there.get("meta", {}).get("folderUid") == FOLDER_UID:
        done.unchanged.append(name)
        return
    grafana.save_dashboard(wanted, FOLDER_UID, version, message)
    done.updated.append(name)
