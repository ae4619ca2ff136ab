from typing import Any

from fsspec import AbstractFileSystem

def url_to_fs(url: str, **options: Any) -> tuple[AbstractFileSystem, str]: ...
