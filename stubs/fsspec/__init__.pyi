"""File systems, which pyarrow.fs is given."""

from typing import Any

class AbstractFileSystem:
    def __init__(self, *arguments: Any, **options: Any) -> None: ...
    def __getattr__(self, name: str, /) -> Any: ...
