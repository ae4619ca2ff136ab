"""YAML as nodes with their places, and as plain values."""

from collections.abc import Iterator
from typing import IO, Any

class Mark:
    line: int
    column: int

class YAMLError(Exception): ...

class MarkedYAMLError(YAMLError):
    problem: str | None
    problem_mark: Mark | None
    context_mark: Mark | None

class Node:
    tag: str
    value: Any
    start_mark: Mark
    end_mark: Mark

class ScalarNode(Node):
    value: str

class SequenceNode(Node):
    value: list[Node]

class MappingNode(Node):
    value: list[tuple[Node, Node]]

class SafeLoader:
    def __init__(self, stream: str | bytes | IO[str] | IO[bytes]) -> None: ...
    def get_single_node(self) -> Node | None: ...
    def construct_document(self, node: Node) -> Any: ...
    def construct_object(self, node: Node, deep: bool = ...) -> Any: ...
    def dispose(self) -> None: ...

def safe_load_all(stream: str | bytes | IO[str] | IO[bytes]) -> Iterator[Any]: ...
def safe_load(stream: str | bytes | IO[str] | IO[bytes]) -> Any: ...
def safe_dump(data: Any, stream: None = ..., **options: Any) -> str: ...
