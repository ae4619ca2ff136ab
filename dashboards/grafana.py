"""What publishing asks of a Grafana, and the one place that knows its client and its HTTP API.

``grafana-api`` decodes JSON, raises errors of its own for answers of 400 and more, and lets through
what ``requests`` raises; it knows few of the routes, and has no types. All that ends here: callers
see plain documents and Stelae's errors, each with a way out. Things are named by uid only, as newer
Grafanas know nothing else. Another client would be another class of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from grafana_api.grafana_api import GrafanaAPI, GrafanaClientError, GrafanaException
from requests import exceptions as http

from stelae.core.errors import InvalidArgument, RetryLater, StelaeError, Unauthorized, Unavailable

Document = dict[str, Any]
TIMEOUT_S = 10.0
EDITABLE = {"X-Disable-Provenance": "true"}
"""Of alert rules: they may be paused and changed by hand, until they are published again."""


class Grafana(Protocol):
    """One Grafana. Everything raises StelaeError: Unauthorized, Unavailable, InvalidArgument, or
    RetryLater where somebody else has changed the same thing meanwhile."""

    def version(self) -> str: ...

    def folder(self, uid: str) -> Document | None:
        """None: there is no such folder; and so of the other things."""
        ...

    def create_folder(self, uid: str, title: str) -> None: ...

    def data_sources(self) -> list[Document]: ...

    def create_data_source(self, source: Mapping[str, Any]) -> None: ...

    def update_data_source(self, source: Mapping[str, Any]) -> None: ...

    def dashboard(self, uid: str) -> Document | None:
        """With ``dashboard`` and ``meta``."""
        ...

    def save_dashboard(
        self, dashboard: Mapping[str, Any], folder_uid: str, version: int | None, message: str
    ) -> None:
        """``version``: the one that it replaces; None: there is none."""
        ...

    def replace_rules(self, folder_uid: str, group: str, rules: Mapping[str, Any]) -> None: ...


class GrafanaHttp:
    """See `Grafana`: over HTTP, by a service account's token."""

    def __init__(self, url: str, token: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Raises InvalidArgument: that is no URL."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise InvalidArgument(f"{url!r} is no URL of a Grafana, like http://host:3000")
        if parts.username or parts.password:
            raise InvalidArgument("a password in the URL is not used: give a token")
        if not token.strip():
            raise InvalidArgument("a token is needed: of a service account with the role Editor")
        self._url = parts.geturl().rstrip("/")
        path = parts.path.strip("/")
        self._api = GrafanaAPI(
            token.strip(),
            host=parts.netloc,
            protocol=parts.scheme,
            url_path_prefix=f"{path}/" if path else "",
            timeout=timeout_s,
        )
        self._api.s.trust_env = False  # a .netrc would take the token's place
        self._api.s.max_redirects = 0  # after one, a POST would be a GET

    def version(self) -> str:
        found = self._ask("its health", lambda: self._api.GET("/health"))
        if not isinstance(found, dict) or "version" not in found:
            raise Unavailable(self._url, "what answers there is no Grafana; see the URL's path")
        return str(found["version"])

    def folder(self, uid: str) -> Document | None:
        return self._find(f"folder {uid}", f"/folders/{quote(uid)}")

    def create_folder(self, uid: str, title: str) -> None:
        body = {"uid": uid, "title": title}
        self._ask(f"folder {title!r}", lambda: self._api.POST("/folders", json=body))

    def data_sources(self) -> list[Document]:
        found = self._ask("data sources", lambda: self._api.GET("/datasources"))
        return [dict(each) for each in found]

    def create_data_source(self, source: Mapping[str, Any]) -> None:
        what = f"data source {source['name']!r}"
        self._ask(what, lambda: self._api.POST("/datasources", json=dict(source)))

    def update_data_source(self, source: Mapping[str, Any]) -> None:
        what, route = f"data source {source['name']!r}", f"/datasources/uid/{quote(source['uid'])}"
        self._ask(what, lambda: self._api.PUT(route, json=dict(source)))

    def dashboard(self, uid: str) -> Document | None:
        return self._find(f"dashboard {uid}", f"/dashboards/uid/{quote(uid)}")

    def save_dashboard(
        self, dashboard: Mapping[str, Any], folder_uid: str, version: int | None, message: str
    ) -> None:
        body = {
            "dashboard": {**dashboard, "id": None, "version": version or 0},
            "folderUid": folder_uid,
            "message": message,
            "overwrite": False,
        }
        what = f"dashboard {dashboard['title']!r}"
        self._ask(what, lambda: self._api.POST("/dashboards/db", json=body))

    def replace_rules(self, folder_uid: str, group: str, rules: Mapping[str, Any]) -> None:
        route = f"/v1/provisioning/folder/{quote(folder_uid)}/rule-groups/{quote(group)}"
        self._ask("alert rules", lambda: self._api.PUT(route, json=dict(rules), headers=EDITABLE))

    def _find(self, what: str, route: str) -> Document | None:
        try:
            found: Document = self._ask(what, lambda: self._api.GET(route), may_lack=True)
        except _NotThere:
            return None
        return found

    def _ask(self, what: str, call: Callable[[], Any], *, may_lack: bool = False) -> Any:
        """Make a call; whatever comes of it is an answer or one of our errors."""
        try:
            return call()
        except GrafanaException as error:
            if may_lack and error.status_code == 404:
                raise _NotThere from None
            raise self._refused(what, error) from error
        except (http.JSONDecodeError, TypeError) as error:  # it looks for a key in any text
            why = f"its answer about {what} is none of a Grafana; see the URL's path"
            raise Unavailable(self._url, why) from error
        except http.TooManyRedirects as error:
            why = "it sends callers elsewhere; give the URL that a browser ends at"
            raise Unavailable(self._url, why) from error
        except http.Timeout as error:
            raise Unavailable(self._url, f"no answer about {what} in time; try again") from error
        except http.SSLError as error:
            raise Unavailable(self._url, f"its certificate is not trusted: {error}") from error
        except http.RequestException as error:
            why = f"{type(error).__name__}; does Grafana run, and is this its URL?"
            raise Unavailable(self._url, why) from error

    def _refused(self, what: str, error: GrafanaException) -> StelaeError:
        status, said = error.status_code, _said(error)
        if status == 401:
            return Unauthorized(
                f"Grafana at {self._url} does not know the token; make one for a service account"
            )
        if status == 403:
            return Unauthorized(
                f"the token may not change {what} ({said}); its service account needs the role "
                "Editor, and Admin to make a data source"
            )
        if status in (409, 412):
            return RetryLater(
                f"{what} was changed by somebody else ({said}); look at it, and publish again"
            )
        if status >= 500 or not isinstance(error, GrafanaClientError):
            return Unavailable(self._url, f"{what}: {said}; see its log, and try again")
        return InvalidArgument(f"Grafana at {self._url} refuses {what} ({status}): {said}")


class _NotThere(Exception):
    """404 where that is an answer."""


def _said(error: GrafanaException) -> str:
    """Grafana's own word of a refusal, or of whatever stands before it."""
    answer = error.response
    text = answer.get("message", "") if isinstance(answer, dict) else str(answer)
    return str(text)[:200] or f"status {error.status_code}"
