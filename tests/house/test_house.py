"""The house keeps its own rules: sizes, imports, banned calls, packaging, errors."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import pickle
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from stelae.connectors import spark_jar
from stelae.core.errors import StelaeError, decode_error, encode_error
from tests.java_compiler import needed_javac

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDER_BY_PACKAGE: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
FACADE = "stelae"
ROOMS = sorted(set(FOLDER_BY_PACKAGE.values()) - {FACADE})
SOURCES = sorted(path for room in [*ROOMS, FACADE] for path in (ROOT / room).rglob("*.py"))
KNOW_SPARK = ("recovery", FACADE, f"{FACADE}/connectors")
READ_FIRST = re.compile(r"^Read first: `([a-z_]+)`\. Also searched for as: ", re.MULTILINE)
MOVE_TOGETHER = ("raydp", "pyspark")

MODULE_LINES_MAX = 800
FUNCTION_LINES_MAX = 60
FOLDER_MODULES_MAX = 16

# Time, chance and ids come from the Runtime. These rooms are, or make, the real one:
OUTSIDE_WORLD = ("runtime/", "actors/ray_host/", "serve/", f"{FACADE}/")
# ... and these run outside the simulated world: around it, inside a Spark task, or
# at the far end of an HTTP connection.
OUTSIDE_FILES = (
    "simulation/__main__.py",
    "simulation/runner.py",
    "simulation/soak/*.py",
    "recovery/spark*.py",
    "client/http/database.py",
)
BANNED = (
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.sleep",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "os.urandom",
    "uuid.uuid1",
    "uuid.uuid4",
)
RANDOM_ALLOWED = ("random.Random",)


def name_of(path: Path) -> str:
    """Path relative to the repository, as people write it."""
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """(local name, dotted origin, line) of every import, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                yield local, alias.name if alias.asname else local, node.lineno
                if not alias.asname and "." in alias.name:
                    yield alias.name, alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}", node.lineno


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of nested attributes; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (front := dotted(node.value)):
        return f"{front}.{node.attr}"
    return ""


def banned_uses(source: str) -> list[tuple[str, int]]:
    """Every mention of a banned function (called, or handed on), with its line."""
    tree = ast.parse(source)
    origin_by_name = {local: origin for local, origin, _ in imports(tree)}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name):
            continue
        front, _, rest = dotted(node).partition(".")
        if front not in origin_by_name:
            continue
        full = f"{origin_by_name[front]}.{rest}" if rest else origin_by_name[front]
        from_random = full.startswith(("random.", "secrets.", "numpy.random."))
        if full in BANNED or (from_random and full not in RANDOM_ALLOWED):
            found.append((full, node.lineno))
    return found


def test_modules_and_functions_stay_small() -> None:
    """A module has at most 800 lines, a function at most 60 with its docstring."""
    problems = []
    for path in SOURCES:
        text = path.read_text()
        lines = text.count("\n") + 1
        if lines > MODULE_LINES_MAX:
            problems.append(f"{name_of(path)}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    problems.append(f"{name_of(path)}:{node.lineno} {node.name}: {length} lines")
    assert not problems, "\n".join(problems)


def test_a_folder_holds_no_more_than_can_be_looked_over() -> None:
    """At most 16 modules lie in a folder, its ``__init__.py`` and ``__main__.py`` not counted."""
    sources = [*SOURCES, *(ROOT / "benchmarks").rglob("*.py")]
    counts = Counter(path.parent for path in sources if not path.name.startswith("__"))
    problems = [f"{name_of(f)}: {n}" for f, n in counts.items() if n > FOLDER_MODULES_MAX]
    assert not problems, "\n".join(problems)


def test_every_module_says_its_job() -> None:
    """A module begins with a docstring."""
    missing = [
        name_of(path) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not missing


def test_every_folder_says_where_to_begin() -> None:
    """Who opens a folder is told which module to read first, and finds it by the words they use."""
    problems = []
    for path in SOURCES:
        if path.name != "__init__.py" or path.parent == ROOT / FACADE:  # what users see in help()
            continue
        found = READ_FIRST.search(ast.get_docstring(ast.parse(path.read_text())) or "")
        if found is None:
            problems.append(f"{name_of(path)}: no line 'Read first: `module`. Also searched …'")
        elif not ((path.parent / f"{found[1]}.py").exists() or (path.parent / found[1]).is_dir()):
            problems.append(f"{name_of(path)}: there is no {found[1]}")
    assert not problems, "\n".join(problems)


def test_what_is_cited_is_here() -> None:
    """Sections of the design and numbered decisions exist; notes that only their authors have are
    not cited."""
    design = (ROOT / "docs/design.md").read_text()
    sections = set(re.findall(r"^## (\d+)\.", design, re.MULTILINE))
    problems = []
    for path in SOURCES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            cited = re.findall(r"[Dd]esign,? (?:§|chapter )(\d+)", line)
            wrong = [section for section in cited if section not in sections]
            if wrong or re.search(r"\bP-\d|style study|research §", line):
                problems.append(f"{name_of(path)}:{number}: {line.strip()}")
    assert not problems, "\n".join(problems)


def test_the_files_that_the_architecture_names_are_here() -> None:
    """Each mechanism is found by its path, and each of its tests by its name."""
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs/architecture.md").read_text())
    files = {
        path.name for folder in [*ROOMS, FACADE, "tests"] for path in (ROOT / folder).rglob("*.py")
    }
    missing = [name for name in named if not (ROOT / name).exists() and name not in files]
    assert len(named) > 100
    assert not missing


def test_every_test_says_the_rule_it_proves() -> None:
    """Each test has a docstring."""
    missing = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("test_") and not ast.get_docstring(node):
                missing.append(f"{name_of(path)}:{node.lineno} {node.name}")
    assert not missing, "\n".join(missing)


def test_time_chance_and_ids_come_from_the_runtime() -> None:
    """A seed replays a run only if no room has a clock or dice of its own."""
    problems = []
    for path in SOURCES:
        name = name_of(path)
        if name.startswith(OUTSIDE_WORLD) or any(
            Path(name).match(pattern) for pattern in OUTSIDE_FILES
        ):
            continue
        problems += [f"{name}:{line}: {use}" for use, line in banned_uses(path.read_text())]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nf = t.monotonic",
        "from time import time as now\nnow()",
        "from random import randint\nrandint(0, 1)",
        "import random\nrandom.random()",
        "from uuid import uuid4\nid = uuid4()",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.now()",
        "import os\nos.urandom(3)",
        "import numpy as np\nnp.random.rand()",
    ],
)
def test_the_search_for_banned_calls_sees_through_aliases(source: str) -> None:
    """The rule above would prove nothing if a renamed import escaped it."""
    assert banned_uses(source)
    assert not banned_uses("import random\nrng: random.Random\nrng.random()")


def test_spark_and_connections_stay_in_their_corner_of_recovery() -> None:
    """Only corners of recovery and of the facade know Spark; of recovery, only those connect."""
    problems = []
    for path in SOURCES:
        name = name_of(path)
        if any(Path(name).match(f"{room}/spark*.py") for room in KNOW_SPARK):
            continue
        for _, origin, line in imports(ast.parse(path.read_text())):
            spark = origin.split(".")[0] in ("pyspark", "raydp", "py4j")
            connects = name.startswith("recovery/") and origin.startswith(
                ("stelae.client", "stelae.runtime")
            )
            if spark or connects:
                problems.append(f"{name}:{line}: {origin}")
    assert not problems, "\n".join(problems)


def test_every_room_is_mapped_into_the_package() -> None:
    """A folder with an __init__.py at the root is a room, listed twice; one in a room, once."""
    present = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    assert present == sorted([*ROOMS, FACADE])
    nested = [path.parent for path in SOURCES if path.name == "__init__.py"]
    dotted_names = [name_of(folder).replace("/", ".") for folder in nested]
    inner = [
        name if name.startswith(f"{FACADE}.") else f"{FACADE}.{name}"
        for name in dotted_names
        if "." in name
    ]
    packages = PROJECT["tool"]["setuptools"]["packages"]
    assert sorted(packages) == sorted([*FOLDER_BY_PACKAGE, *inner])


def test_requirements_are_bounded_and_agree_with_the_lock() -> None:
    """RayDP and PySpark are pinned together; the rest is bounded; the lock satisfies all.
    So does the lock of Feast's environment, which has some of it otherwise."""
    locked = locked_in("constraints.txt")
    project = PROJECT["project"]
    optional = project["optional-dependencies"]
    extras = [text for name in optional if name != "feast" for text in optional[name]]
    needed = [Requirement(text) for text in [*project["dependencies"], *extras]]
    check_requirements(needed, locked)
    with_feast = locked | locked_in("constraints-feast.txt")
    check_requirements([*needed, *map(Requirement, optional["feast"])], with_feast)


def locked_in(file: str) -> dict[str, str]:
    locked = {}
    for line in (ROOT / file).read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            locked[canonical(name)] = version
    return locked


def check_requirements(needed: list[Requirement], locked: dict[str, str]) -> None:
    for requirement in needed:
        operators = {specifier.operator for specifier in requirement.specifier}
        if requirement.name in MOVE_TOGETHER:
            assert operators == {"=="}, requirement
        elif requirement.name not in ("stelae",):
            assert operators in ({"=="}, {">=", "<"}), f"{requirement} is not bounded"
        if requirement.name not in ("stelae", "setuptools"):
            assert locked[canonical(requirement.name)] in requirement.specifier, requirement


def canonical(name: str) -> str:
    """Distribution names compare without case, and with - for _ and dots."""
    return name.lower().replace("_", "-").replace(".", "-")


def test_no_other_distribution_ships_our_import_name() -> None:
    """``stelae`` is ours alone, and nothing named ``core`` or ``serve`` lands beside it."""
    owners = importlib.metadata.packages_distributions()
    assert set(owners.get(FACADE, ["stelae"])) == {"stelae"}
    ours = [room for room in ROOMS if "stelae" in owners.get(room, [])]
    assert not ours


def test_the_wheel_holds_the_whole_package_and_works_outside_the_checkout(tmp_path: Path) -> None:
    """What is installed is what was written: every module, typed, importable on its own."""
    checkout, unpacked = tmp_path / "checkout", tmp_path / "unpacked"
    skip = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
    for folder in [*ROOMS, FACADE]:
        shutil.copytree(ROOT / folder, checkout / folder, ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout / name)
    command = "-m pip wheel -q --no-deps --no-build-isolation --no-index -w dist ."
    subprocess.run([sys.executable, *command.split()], cwd=checkout, check=True)
    (wheel,) = (checkout / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(unpacked)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"stelae"}
    modules = {name for name in names if name.endswith(".py")}
    expected = {
        name if name.startswith(f"{FACADE}/") else f"{FACADE}/{name}"
        for name in map(name_of, SOURCES)
    }
    assert modules == expected
    assert "stelae/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    script = (
        "import stelae.core.config.spec_file as m; print(m.__file__); print(m.load_spec().cluster)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(unpacked), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == [str(unpacked / "stelae/core/config/spec_file.py"), "demo"]


def test_a_wheel_that_is_built_beside_a_java_compiler_has_the_jar_for_spark(tmp_path: Path) -> None:
    """As the image of ``deploy/`` is: of these sources, and with its entry for Spark."""
    needed_javac()
    checkout = tmp_path / "checkout"
    skip = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc", "*.jar")
    for folder in [*ROOMS, FACADE]:
        shutil.copytree(ROOT / folder, checkout / folder, ignore=skip)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout / name)
    command = "-m pip wheel -q --no-deps --no-build-isolation --no-index -w dist ."
    subprocess.run([sys.executable, *command.split()], cwd=checkout, check=True)
    (wheel,) = (checkout / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        jar = archive.extract(f"stelae/connectors/java/{spark_jar.NAME}", tmp_path)
    with zipfile.ZipFile(jar) as opened:
        assert opened.read(spark_jar.DIGEST).decode() == spark_jar._digest()
        assert opened.read(spark_jar.SERVICE).decode().strip() == spark_jar.PROVIDER
        assert f"{spark_jar.PROVIDER.replace('.', '/')}.class" in opened.namelist()


def error_classes(root: type[StelaeError] = StelaeError) -> list[type[StelaeError]]:
    """The class and all below it."""
    below = [found for child in root.__subclasses__() for found in error_classes(child)]
    return [root, *below]


def sample(error: type[StelaeError]) -> StelaeError:
    """An instance with arguments made up from the constructor's annotations."""
    samples: dict[str, Any] = {"str": "some text", "int": 7, "float": 1.5, "bool": True}
    arguments: list[Any] = []
    for parameter in inspect.signature(error).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            arguments += ["some text"]
        else:
            assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD, "pickle passes by position"
            arguments.append(samples[str(parameter.annotation)])
    return error(*arguments)


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_every_error_survives_pickle_and_the_wire(kind: type[StelaeError]) -> None:
    """Ray pickles errors and servers encode them; class, arguments and text come out the same."""
    error = sample(kind)
    for copy in (pickle.loads(pickle.dumps(error)), decode_error(encode_error(error))):
        assert type(copy) is kind
        assert copy.args == error.args
        assert str(copy) == str(error)


def test_names_of_errors_are_unique() -> None:
    """The wire carries an error's class by its name."""
    names = [kind.__name__ for kind in error_classes()]
    assert len(names) == len(set(names))


def test_assertions_are_on() -> None:
    """Broken invariants must stop the process; under ``python -O`` they would not."""
    assert __debug__
