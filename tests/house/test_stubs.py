"""The stubs for mypy name only what the packages have, so that no typed call fails when it runs."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.test_house import ROOT

STUBS = ROOT / "stubs"
MODULES = sorted(
    ".".join(path.relative_to(STUBS).with_suffix("").parts).removesuffix(".__init__")
    for path in STUBS.rglob("*.pyi")
)


def source_of(module: str) -> Path:
    folder = STUBS.joinpath(*module.split("."))
    return folder / "__init__.pyi" if folder.is_dir() else folder.with_suffix(".pyi")


def named_in(source: str) -> Iterator[tuple[str, ...]]:
    """Yield each public function and class of a stub, and the methods and properties of a class,
    those of its bases in the same stub included."""
    tree = ast.parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def members(node: ast.ClassDef) -> Iterator[str]:
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in classes:
                yield from members(classes[base.id])
        yield from (each.name for each in node.body if isinstance(each, ast.FunctionDef))

    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        yield (node.name,)
        if isinstance(node, ast.ClassDef):
            yield from ((node.name, name) for name in members(node) if not name.startswith("__"))


@pytest.mark.parametrize("module", MODULES)
def test_a_stub_names_only_what_its_package_has(module: str) -> None:
    """A release that drops a name is seen here, and not by mypy."""
    found = importlib.import_module(module)
    missing = []
    for names in named_in(source_of(module).read_text()):
        at: object = found
        for name in names:
            if not hasattr(at, name):
                missing.append(".".join((module, *names)))
                break
            at = getattr(at, name)
    assert not missing


def test_the_comparison_sees_classes_functions_and_inherited_members() -> None:
    """The rule above would prove nothing if a name escaped it."""
    stub = """
class _Base:
    def kept(self) -> int: ...
class Made(_Base):
    size: int
    @property
    def own(self) -> int: ...
    def __len__(self) -> int: ...
def make() -> Made: ...
def __getattr__(name: str) -> Made: ...
"""
    assert sorted(named_in(stub)) == [("Made",), ("Made", "kept"), ("Made", "own"), ("make",)]
