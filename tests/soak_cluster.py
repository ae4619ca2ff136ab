"""Runs the soak tests on real Ray and Spark in a loop, and reports runs, failures and seconds.

``python tests/soak_cluster.py --minutes 60 [FILE or NODE ID ...]``: each test file runs in a pytest
process of its own, one after the other, round after round, until the time is over. A file starts
only before the deadline; the file that runs then still ends. A failure does not stop the loop. The
results and the output of each failed run are written to ``build/soak-cluster`` after every file.
The exit code is 1 if anything failed, and 2 if nothing ran.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARKERS = "(ray or spark) and soak"
FEAST = "tests/feast/"
FILE_LIMIT_S = 3600.0
"""Upper bound on one run of one file; the longest takes some minutes."""
NO_TESTS = 5
"""Pytest's exit code if no test has the markers."""


@dataclass
class Outcome:
    """Runs of one test so far."""

    runs: int = 0
    failures: int = 0
    skips: int = 0
    seconds: float = 0.0
    messages: list[str] = field(default_factory=list)
    """First line of each failure."""


def collect(python: str, tests: Sequence[str], markers: str) -> list[str]:
    """Return the files with tests that have the markers, in the order of collection."""
    command = [python, "-m", "pytest", "--collect-only", "-q", "-m", markers, *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, NO_TESTS):
        raise SystemExit(done.stdout + done.stderr)
    ids = [line for line in done.stdout.splitlines() if "::" in line]
    return list(dict.fromkeys(each.partition("::")[0] for each in ids))


def arguments_of(file: str, tests: Sequence[str]) -> list[str]:
    """Return what pytest is given for this file: the node ids that name it, else the file."""
    return [each for each in tests if each.partition("::")[0] == file and "::" in each] or [file]


def run_file(command: Sequence[str], report: Path) -> tuple[int, str]:
    """Run one file to its end or limit; return pytest's exit code and its output."""
    report.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [*command, "--junitxml", str(report)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=FILE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return -1, (error.stdout or b"").decode(errors="replace") + "\nstopped at the limit\n"
    return done.returncode, done.stdout.decode(errors="replace")


def cases_of(report: Path, file: str, code: int) -> Iterator[tuple[str, float, str, bool]]:
    """Yield name, seconds, failure ("" if none) and whether it was skipped, of each test.

    If pytest itself failed, the file counts as one failed test.
    """
    if code not in (0, 1, NO_TESTS):
        yield file, 0.0, f"pytest ended with code {code}", False
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return
    for case in cases:
        problem = next((each for each in case if each.tag in ("failure", "error")), None)
        message = "" if problem is None else problem.get("message") or problem.tag
        name = f"{file}::{case.get('name')}"
        yield name, float(case.get("time", 0)), message, case.find("skipped") is not None


def count(outcomes: dict[str, Outcome], report: Path, file: str, code: int) -> bool:
    """Add the results of one run of a file; return whether all its tests passed."""
    passed = True
    for name, seconds, problem, is_skipped in cases_of(report, file, code):
        outcome = outcomes.setdefault(name, Outcome())
        outcome.runs += not is_skipped
        outcome.skips += is_skipped
        outcome.seconds += seconds
        if problem:
            passed = False
            outcome.failures += 1
            outcome.messages.append(problem.splitlines()[0][:300])
    return passed


def table(outcomes: dict[str, Outcome]) -> str:
    """Return a line for each test: runs, failures, seconds of an average run, and its name."""
    lines = [f"{'runs':>5} {'failed':>7} {'s/run':>7}  test"]
    for name, each in sorted(outcomes.items(), key=lambda item: (-item[1].failures, item[0])):
        average_s = each.seconds / max(1, each.runs)
        lines.append(f"{each.runs:5d} {each.failures:7d} {average_s:7.1f}  {name}")
        lines += [f"{'':22} {message}" for message in dict.fromkeys(each.messages)]
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tests", nargs="*", default=["tests"], help="files, folders or node ids")
    parser.add_argument("--minutes", type=float, default=60.0, help="time for the loop")
    parser.add_argument("--rounds", type=int, default=0, help="stop after N rounds; 0: no bound")
    parser.add_argument("--markers", default=MARKERS, help="pytest -m expression")
    parser.add_argument("--feast-python", default="", help=f"interpreter for {FEAST}")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "soak-cluster")
    found = parser.parse_args(arguments)
    found.folder = found.folder.absolute()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the loop; return the exit code."""
    given = parse(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60.0 * given.minutes
    python = {False: sys.executable, True: given.feast_python}
    files = collect(sys.executable, given.tests, given.markers)
    if given.feast_python:
        feast = [each for each in given.tests if each == "tests" or each.startswith(FEAST)]
        found = collect(given.feast_python, feast, given.markers) if feast else []
        files += [each for each in found if each.startswith(FEAST) and each not in files]
    if not files:  # an endless number of rounds of nothing would never end
        print("no test has these markers", file=sys.stderr)
        return 2
    outcomes: dict[str, Outcome] = {}
    report = given.folder / "report.xml"
    rounds = range(1, given.rounds + 1) if given.rounds else itertools.count(1)
    try:
        for number, file in ((n, file) for n in rounds for file in files):
            if time.monotonic() >= deadline:
                break
            interpreter = python[file.startswith(FEAST) and bool(given.feast_python)]
            command = [interpreter, "-m", "pytest", "-q", "-m", given.markers]
            command += arguments_of(file, given.tests)
            began = time.monotonic()
            code, output = run_file(command, report)
            passed = count(outcomes, report, file, code)
            verdict = f"{'passed' if passed else 'FAILED'} in {time.monotonic() - began:.0f} s"
            print(f"round {number}: {file} {verdict}", flush=True)
            if not passed:
                log = given.folder / f"{Path(file).stem}-{number}.log"
                log.write_text(output)
                print(f"  its output is in {os.path.relpath(log)}", flush=True)
            write_results(given.folder / "results.json", outcomes)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print(table(outcomes))
    print(f"results are in {os.path.relpath(given.folder / 'results.json')}")
    if not any(each.runs for each in outcomes.values()):
        return 2
    return int(any(each.failures for each in outcomes.values()))


def write_results(path: Path, outcomes: dict[str, Outcome]) -> None:
    """Replace the JSON file: for each test its runs, failures, skips, seconds and messages."""
    part = path.with_suffix(".part")
    document = {name: asdict(each) for name, each in sorted(outcomes.items())}
    part.write_text(json.dumps({"tests": document}, indent=1) + "\n")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
