"""Seeds, faults as data, shrinking, replay; and the proof that planted bugs are found."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from stelae.core.errors import InvalidArgument
from stelae.simulation import Options
from stelae.simulation.__main__ import main
from stelae.simulation.nemesis import Action, draw_schedule, shrink
from stelae.simulation.runner import (
    KEPT_SEEDS,
    derive_seeds,
    find_bug,
    keep_seed,
    run_seed,
    run_seeds,
    shrink_failure,
)
from stelae.simulation.scenarios import SCENARIOS, Scenario, load_scenario
from stelae.simulation.world.world import World

REGISTER = f"{Path(__file__).parent / 'register.py'}:SCENARIO"
KV = load_scenario(REGISTER)
BUGS = sys.modules["stelae_scenario_register"].BUGS


def test_a_correct_register_passes_under_all_faults() -> None:
    """The toy is right, and the world does not accuse it: kept seeds and new ones."""
    outcomes = run_seeds(KV, 20)
    assert len(outcomes) >= 20
    kinds = {action.kind for outcome in outcomes for action in outcome.schedule}
    assert {"crash", "crash_in_sync", "pause", "split", "one_way", "sync_error"} <= kinds


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(bug: str) -> None:
    """Each broken rule of the toy is seen within a bounded number of seeds."""
    outcome = find_bug(KV, bug, max_seeds=150)
    assert outcome.failure is not None
    again = run_seed(KV, outcome.seed, bug=bug)
    assert again.digest == outcome.digest
    assert str(again.failure) == str(outcome.failure)


def test_a_run_is_the_same_in_every_process() -> None:
    """Traces do not depend on PYTHONHASHSEED, nor on what ran before in the process."""
    seeds = derive_seeds("kv", 3, "hash")
    program = (
        "import sys\n"
        "from stelae.simulation.runner import run_seed\n"
        "from stelae.simulation.scenarios import load_scenario\n"
        "scenario = load_scenario(sys.argv[1])\n"
        "print(*[run_seed(scenario, int(seed)).digest for seed in sys.argv[2:]])\n"
    )
    command = [sys.executable, "-c", program, REGISTER, *map(str, seeds)]
    processes = [
        subprocess.Popen(
            command, env={**os.environ, "PYTHONHASHSEED": number}, stdout=subprocess.PIPE, text=True
        )
        for number in ("0", "1", "12345")
    ]
    printed = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    here = " ".join(run_seed(KV, seed).digest for seed in reversed(seeds)).split()
    assert printed == {" ".join(reversed(here)) + "\n"}


def test_swarm_options_switch_faults_off() -> None:
    """Each fault is absent from some seeds and present in others, and a seed fixes all."""
    drawn = [Options.draw(seed) for seed in range(50)]
    for name in ("drop_request_rate", "crash_every_s", "lost_disk_every_s", "duplicate_rate"):
        off = [getattr(options, name) == 0.0 for options in drawn]
        assert 5 < sum(off) < 45
    assert drawn == [Options.draw(seed) for seed in range(50)]


def test_lost_disks_respect_their_budget() -> None:
    """Only kinds named losable lose disks, and never two within the healing time."""
    options = Options(lost_disk_every_s=1.0, healing_s=20.0)
    servers = {"master": ["m1"], "backup": ["b1", "b2"]}
    schedule = draw_schedule(options, random.Random(1), servers, [], 500.0, {"backup"})
    lost = [action for action in schedule if action.kind == "lose_disk"]
    assert len(lost) > 10
    assert {action.nodes[0] for action in lost} == {"b1", "b2"}
    gaps = [late.at_s - early.at_s for early, late in itertools.pairwise(lost)]
    assert min(gaps) >= 20.0
    assert not draw_schedule(options, random.Random(1), servers, [], 500.0, ())


def test_shrinking_finds_the_faults_that_matter() -> None:
    """Of a hundred faults only the two that fail together are left."""
    schedule = [Action(float(number), "crash", ("a",)) for number in range(100)]
    needed = {schedule[17], schedule[83]}
    assert shrink(schedule, lambda part: needed <= set(part)) == [schedule[17], schedule[83]]
    assert shrink(schedule, lambda part: True) == []


def test_a_failing_run_shrinks_to_a_schedule_that_still_fails() -> None:
    """The shrunk faults are a part of those drawn, and fail in the same way when replayed."""
    bug = "carry on after a failed sync"
    outcome = find_bug(KV, bug, max_seeds=150)
    least = shrink_failure(KV, outcome, bug=bug, runs_max=15)
    assert len(least) < len(outcome.schedule)
    assert [action for action in outcome.schedule if action in least] == least
    assert run_seed(KV, outcome.seed, bug=bug, schedule=least).failure is not None


async def _always_fails(world: World, bug: str) -> None:
    raise AssertionError("always")


async def _fails_at(world: World, bug: str) -> None:
    tried.append(world.seed)
    assert len(tried) < 6


tried: list[str] = []


def test_a_search_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    """It costs one seed then; where that seed finds nothing, all others follow in their order."""
    finds, scenario = tmp_path / "finds.txt", Scenario("searched", _fails_at)
    seeds = derive_seeds("searched", 20, "planted")
    tried.clear()
    line = f"searched {seeds[5]} a bug"
    with pytest.warns(UserWarning, match=f"add to .*: {line}"):
        assert find_bug(scenario, "a bug", 20, finds=finds).seed == seeds[5]
    assert not finds.exists(), "a test run writes nothing into the checkout"
    finds.write_text(f"{line}\n")
    for bug, first in (("a bug", seeds[5]), ("bug", seeds[0])):
        tried.clear()
        with pytest.warns(UserWarning, match="add to"):
            find_bug(scenario, bug, 20, finds=finds)
        assert list(map(int, tried)) == [first, *[s for s in seeds if s != first][:5]]


def test_a_failing_seed_prints_its_replay_command_and_kept_seeds_run_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failure writes nothing; who keeps the seed has it run first from then on, once."""
    kept = tmp_path / "seeds.txt"
    scenario = Scenario("broken", _always_fails)
    with pytest.raises(AssertionError, match="simulation 7 --scenario broken"):
        run_seeds(scenario, [7], kept=kept)
    assert "to replay: python -m stelae.simulation 7" in capsys.readouterr().err
    assert not kept.exists()
    keep_seed("broken", 8, "cause", kept)
    keep_seed("broken", 8, "again", kept)
    assert kept.read_text() == "broken 8  # cause\n"
    with pytest.raises(AssertionError, match="simulation 8 --scenario broken"):
        run_seeds(scenario, [7], kept=kept)


def test_every_run_has_the_kept_seeds_and_the_same_derived_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment says: the same code passes or fails every time."""
    monkeypatch.setenv("STELAE_SEED_BASE", "abc")
    kept = tmp_path / "seeds.txt"
    for seed in (501, 502):
        keep_seed(KV.name, seed, "cause", kept)
    ran = [outcome.seed for outcome in run_seeds(KV, 3, kept=kept)]
    assert ran == [501, 502, *derive_seeds(KV.name, 3)]
    assert derive_seeds("kv", 3) == derive_seeds("kv", 3, "gate")
    assert derive_seeds("kv", 3) != derive_seeds("kv", 3, "abd")
    assert derive_seeds("kv", 3) != derive_seeds("tables", 3)


def test_every_kept_seed_is_of_a_scenario_that_there_is() -> None:
    """A seed of a scenario that was renamed would never run again, and nobody would notice."""
    lines = [line.split("#")[0].split() for line in KEPT_SEEDS.read_text().splitlines()]
    named = {line[0] for line in lines if line}
    assert {len(line) for line in lines if line} == {2}
    assert named <= SCENARIOS.keys()


def test_no_seed_at_all_is_no_success(tmp_path: Path) -> None:
    """Nothing would have run, and nobody would know."""
    with pytest.raises(ValueError, match="'kv' has no seed"):
        run_seeds(KV, 0, kept=tmp_path / "seeds.txt")


def test_the_command_line_replays_traces_and_shrinks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A seed is replayed from the shell, with its trace, and judged by the exit code."""
    trace = tmp_path / "trace.txt"
    assert main(["5", "--scenario", REGISTER, "--trace", str(trace)]) == 0
    assert run_seed(KV, 5).digest in capsys.readouterr().out
    assert "is ready" in trace.read_text()
    bug = "no sync before the answer"
    seed = find_bug(KV, bug).seed
    assert main([str(seed), "--scenario", REGISTER, "--bug", bug, "--shrink"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "shrunk from" in printed
    assert main(["5", "--scenario", "no such thing"]) == 2


def test_unknown_scenarios_are_named_as_such() -> None:
    """The error says what there is."""
    with pytest.raises(InvalidArgument, match=r"there are .*kv"):
        load_scenario("nothing")
    with pytest.raises(InvalidArgument, match="is not a Scenario"):
        load_scenario(REGISTER.replace("SCENARIO", "BUGS"))
