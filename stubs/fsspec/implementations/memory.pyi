from typing import Any

from fsspec import AbstractFileSystem

class MemoryFileSystem(AbstractFileSystem):
    store: dict[str, Any]
    pseudo_dirs: list[str]
