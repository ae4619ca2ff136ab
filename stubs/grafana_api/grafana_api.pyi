from collections.abc import Callable
from typing import Any

class GrafanaException(Exception):
    status_code: int
    response: Any
    message: str

class GrafanaClientError(GrafanaException): ...

class GrafanaAPI:
    s: Any
    """The requests.Session."""
    def __init__(self, auth: Any, **options: Any) -> None: ...
    GET: Callable[..., Any]
    POST: Callable[..., Any]
    PUT: Callable[..., Any]
