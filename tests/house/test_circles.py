"""No module imports itself by way of others, and no folder does, wherever the imports stand.

Imports at the head of a module, within functions and under TYPE_CHECKING all count, because a
reader has to follow each of them. A part that needs its owner declares a Protocol of what it needs.
"""

from __future__ import annotations

import ast
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import pytest

from tests.house.test_house import FOLDER_BY_PACKAGE, ROOT

Arrows = dict[str, dict[str, str]]
"""The imports of each name, with the line of one: importer -> imported -> "file:line"."""


def package_modules() -> dict[str, str]:
    """The source of each module of the package, by dotted name."""
    found = {}
    for package, folder in FOLDER_BY_PACKAGE.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            inner = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((package, *inner))] = path.read_text()
    return found


def imported_by(source: str, modules: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield each of ``modules`` that a source imports, at any depth, with the line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                target = inner if inner in modules else f"{node.module}"
                if target in modules:
                    yield target, node.lineno


def module_arrows(sources: Mapping[str, str]) -> Arrows:
    """Return the imports among the modules of ``sources``."""
    arrows: Arrows = {name: {} for name in sources}
    for name, source in sources.items():
        for target, line in imported_by(source, sources):
            if target != name:
                arrows[name].setdefault(target, f"{name}:{line}")
    return arrows


def folder_arrows(arrows: Arrows, packages: Iterable[str]) -> Arrows:
    """Return the imports among folders; a folder and one within it count as one room."""
    folders: Arrows = {}
    for name, targets in arrows.items():
        source = name if name in packages else name.rpartition(".")[0]
        for target_name, where in targets.items():
            target = target_name if target_name in packages else target_name.rpartition(".")[0]
            if not f"{source}.".startswith(f"{target}.") and not f"{target}.".startswith(
                f"{source}."
            ):
                folders.setdefault(source, {}).setdefault(target, where)
    return folders


def shortest_way(arrows: Arrows, start: str) -> list[str]:
    """Return a shortest chain of imports from ``start`` back to it; empty if there is none."""
    before: dict[str, str] = {}
    waiting = deque([start])
    while waiting:
        name = waiting.popleft()
        for target in arrows.get(name, {}):
            if target == start:
                chain = [start, name]
                while chain[-1] != start:
                    chain.append(before[chain[-1]])
                return chain[::-1]
            if target not in before:
                before[target] = name
                waiting.append(target)
    return []


def circles(arrows: Arrows) -> list[tuple[set[str], list[str]]]:
    """Return each set of names that reach each other, with the shortest chain of two or more."""
    reached = {name: reach(arrows, name) for name in arrows}
    found: list[tuple[set[str], list[str]]] = []
    for name in sorted(arrows):
        members = {other for other in reached[name] if name in reached.get(other, ())}
        if members and not any(name in known for known, _ in found):
            chains = (shortest_way(arrows, member) for member in sorted(members))
            found.append((members, min(chains, key=len)))
    return found


def reach(arrows: Arrows, start: str) -> set[str]:
    """Return all names that ``start`` imports, directly or by way of others."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in arrows.get(waiting.pop(), {}):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


def described(arrows: Arrows, chain: list[str]) -> str:
    """The chain of a circle, one import a line."""
    steps = (f"  {a} -> {b} ({arrows[a][b]})" for a, b in itertools.pairwise(chain))
    return "\n".join(["circle:", *steps])


@pytest.fixture(scope="module")
def arrows() -> Arrows:
    return module_arrows(package_modules())


def test_no_modules_import_each_other(arrows: Arrows) -> None:
    """A module can be read, and tested, without the modules that are built upon it."""
    problems = [described(arrows, chain) for _, chain in circles(arrows)]
    assert not problems, "\n".join(problems)


def test_no_folders_import_each_other(arrows: Arrows) -> None:
    """Folders are layers, also for types and for imports within functions."""
    packages = {name for name in arrows if any(inner.startswith(f"{name}.") for inner in arrows)}
    folders = folder_arrows(arrows, packages)
    problems = [described(folders, chain) for _, chain in circles(folders)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "back",
    [
        "from room import one",
        "from room.one import thing",
        "import room.one",
        "def run():\n    from room.one import thing",
        "if TYPE_CHECKING:\n    from room.one import thing",
    ],
)
def test_the_search_for_circles_sees_every_kind_of_import(back: str) -> None:
    """The rules above would prove nothing if an import escaped them."""
    sources = {
        "room": "",
        "room.one": "from room.two import x",
        "room.two": "import room.three",
        "room.three": back,
        "room.four": "import room.one, room.two",
    }
    arrows = module_arrows(sources)
    ((members, chain),) = circles(arrows)
    assert members == set(chain) == {"room.one", "room.two", "room.three"}
    assert "room.one -> room.two (room.one:1)" in described(arrows, chain)
    assert not circles(module_arrows(sources | {"room.three": ""}))


def test_the_search_for_circles_among_folders_leaves_out_those_within_each_other() -> None:
    """A folder's front imports what lies within it, which is no circle; two rooms make one."""
    arrows = module_arrows(
        {
            "a": "",
            "a.front": "import a.inner.part",
            "a.inner": "",
            "a.inner.part": "import a.words, b.one",
            "a.words": "",
            "b": "",
            "b.one": "",
            "b.two": "import a.inner.part",
        }
    )
    ((members, _),) = circles(folder_arrows(arrows, {"a", "a.inner", "b"}))
    assert members == {"a.inner", "b"}
    assert not circles(arrows)
