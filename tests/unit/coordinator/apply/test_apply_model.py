"""Applies over a model of a cluster, with the real plans, refusals and looks: crashes anywhere.

In the model a step is made of the parts that a real one has; an operator may be gone after any of
them, and another one goes on. Servers that are ended are missed by the tables' replicas on them,
until the masters of the model have made these anew. What is demanded: each apply that is not
refused ends in what was asked for, whoever carries it out, and at no moment has a table fewer
replicas than it was promised, but for the one server that is started anew just then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stelae.actors.ray_host.host import ServerPlan
from stelae.applying.run import is_first, made_with, servers_that_are, wanted_of
from stelae.applying.steps import traits_of, what_is_unwell
from stelae.coordinator.apply.checks import Asked, refusals
from stelae.coordinator.apply.plan import Act, Present, Step, TableIs, plan_steps
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import Durability, Replicas, Segments
from stelae.deploy import cluster_state, launcher

TABLES: dict[str, Durability] = {
    "copied": Replicas(3),
    "logged": Segments(("disk", "disk")),
    "one": Replicas(1),
}
HOMES = {"copied": "tserver", "logged": "backup", "one": "tserver"}
COUNTS = {"copied": 3, "logged": 2, "one": 1}
STEPS_MAX = 80


class Gone(Exception):
    """The operator's process."""


class Model:
    """Actors, the masters' set, marks, and where the replicas of each table are."""

    def __init__(self, spec: ClusterSpec, folder: Path) -> None:
        masters = {f"master-{n + 1}": f"127.0.0.1:{n + 1}" for n in range(spec.masters.count)}
        self.state = cluster_state.ClusterState("demo", str(folder), masters)
        self.actors: dict[str, ServerPlan] = {p.name: p for p in launcher.plans(spec, self.state)}
        self.members = set(masters)
        self.marks: set[str] = set()
        self.closed: set[str] = set()
        self.held: dict[str, set[str]] = {table: set() for table in TABLES}
        self.dead: set[str] = set()
        """Servers with an actor that the masters have declared dead; what they said last stays."""
        self.timeline: dict[str, Any] = {}
        self.away = ""
        """Who is started anew just now."""
        self.look: Callable[[], Sequence[Step]] = list
        """The steps by a new look."""
        self.heal()

    # ---- what the masters do ----

    def heal(self) -> None:
        """Replicas are made anew where they are missed, first; then they leave who is to go."""
        for table, held in self.held.items():
            there = set(self.actors) - self.dead
            homes = [n for n in there if n.startswith(HOMES[table]) and n not in self.marks]
            held &= there | {self.away}
            for name in sorted(homes, key=lambda n: (n in held, n)):
                if len(held - self.marks) < COUNTS[table]:
                    held.add(name)
            for name in sorted(held & self.marks):
                if len(held - self.marks) >= COUNTS[table]:
                    held.discard(name)
        for name in self.marks & set(self.actors) - self.dead:
            if not any(name in held for held in self.held.values()):
                self.closed.add(name)

    def take_back(self) -> None:
        """All marks; who had one has something at once, and others have it no more."""
        back, self.marks = self.marks & set(self.actors), set()
        self.closed.clear()
        for table, held in self.held.items():
            for name in sorted(n for n in back - held if n.startswith(HOMES[table])):
                gives = min((n for n in held if n not in back), default=None)
                if gives is not None:
                    held.symmetric_difference_update({gives, name})

    def status(self) -> dict[str, Any]:
        servers = []
        for name, plan in self.actors.items():
            left = sum(name in held for held in self.held.values())
            seen: dict[str, Any] = {"id": name, "kind": plan.kind.value, "state": "live"}
            seen |= {"retiring": name in self.marks, "tablets": left, "indexlets": 0}
            seen |= {"segments": left, "drained": name in self.closed, "timelines": 0}
            seen["status"] = "decommissioned" if name in self.marks else "active"
            seen["role"] = "leader" if name == min(self.members) else "follower"
            if name in self.dead:
                seen |= {"state": "dead", "segments": 7, "timelines": 4, "drained": False}
                seen |= {"uuid": name, "safekeeper_id": 1}
            servers.append(seen)
        tablets = [
            {"state": "running", "under_replicated": max(0, COUNTS[t] - len(self._up(t)))}
            for t in self.held
        ]
        tablets[0]["timeline"] = self.timeline
        return {"servers": servers, "tablets": tablets, "shortages": []}

    def _up(self, table: str) -> set[str]:
        return self.held[table] & set(self.actors) - self.dead

    def judge(self) -> None:
        for table in self.held:
            up = self._up(table)
            missed = int(bool(self.away) and self.away in self.held[table])
            assert len(up) + missed >= COUNTS[table], f"{table} has {up}, and {self.away} is away"

    # ---- what a step does ----

    def parts(self, step: Step, plans: dict[str, ServerPlan]) -> Iterator[None]:
        """The real steps' order of what happens; each may be the last one."""
        if step.act in (Act.RESTART, Act.DRAIN, Act.REMOVE):
            yield  # all has to settle, and much may happen until then
            if not is_first(step, self.look()):
                return
        yield from self._parts(step, plans)

    def _parts(self, step: Step, plans: dict[str, ServerPlan]) -> Iterator[None]:
        name = step.name
        if step.act in (Act.RESTART, Act.DRAIN, Act.REMOVE):
            assert self.away in ("", name), f"{step} while {self.away} is away"
            assert what_is_unwell(self.status()) == "", f"{step} while all is not well"
        match step.act:
            case Act.KEEP:
                self.marks.discard(name)
                self.closed.discard(name)
            case Act.ADD if step.kind == "master":
                yield from self._add_master(name, plans)
            case Act.ADD:
                self.actors[name] = plans[name]
            case Act.RESTART:
                yield
                del self.actors[name]
                self.away = name
                yield
                self.actors[name] = plans[name]
            case Act.DRAIN:
                self.marks.add(name)
                yield
                self.heal()
            case Act.REMOVE:
                if step.kind == "master":
                    self.members.discard(name)
                    yield
                self.actors.pop(name, None)
            case Act.CHANGE:
                pytest.fail("there is no front here")
        is_master = self.away.startswith("master")
        if self.away in self.actors or (is_master and self.away not in self.members):
            self.away = ""
        yield

    def _add_master(self, name: str, plans: dict[str, ServerPlan]) -> Iterator[None]:
        if name in self.members:
            self.actors[name] = plans[name]
            return
        if not name:
            used = [int(n.rpartition("-")[2]) for n in [*self.members, *self.actors]]
            name = f"master-{max(used) + 1}"
        if name not in self.actors:
            some = next(p for p in self.actors.values() if p.kind is ServerKind.MASTER)
            self.actors[name] = replace(some, name=name)
        yield
        self.members.add(name)
        masters = {m: f"127.0.0.1:{int(m.rpartition('-')[2])}" for m in sorted(self.members)}
        self.state = replace(self.state, masters=masters)


def look(model: Model, spec: ClusterSpec) -> tuple[list[Step], list[str]]:
    """As `_Apply.judge` does."""
    present = Present(servers_that_are(model.actors, model.members, model.status()))
    steps = plan_steps(wanted_of(spec, model.state, {}), present)
    tables = [TableIs(name, durability) for name, durability in TABLES.items()]
    made = replace(made_with(model.actors, Path("/x"), None), data_dir=spec.data_dir)
    return steps, refusals(Asked(made, spec, steps, present, tables))


def carry_out(model: Model, spec: ClusterSpec, lives: int, meddles: Sequence[bool] = ()) -> str:
    """One operator, who is gone after so many parts. Why it is refused; empty: it was done.
    ``meddles``: whether another one takes marks back, at each moment in turn, from the last."""
    meddles = list(meddles)
    for _ in range(STEPS_MAX):
        steps, why = look(model, spec)
        if why:
            return why[0]
        if not steps:
            return ""
        plans = {plan.name: plan for plan in launcher.plans(spec, model.state)}
        model.heal()
        model.look = lambda: look(model, spec)[0]
        for _ in model.parts(steps[0], plans):
            model.judge()
            if model.marks and meddles and meddles.pop():
                model.take_back()
            lives -= 1
            if lives < 0:
                raise Gone
    raise AssertionError(f"no end: {steps}")


def spec_of(draw: st.DrawFn, folder: str) -> ClusterSpec:
    number = st.integers
    return load_spec(
        {
            "cluster": "demo",
            "data_dir": folder,
            "masters": {"count": draw(st.sampled_from([1, 3, 5]))},
            "tservers": {
                "count": draw(number(3, 6)),
                "memory": draw(st.sampled_from(["128MiB", "160MiB"])),
            },
            "backups": {"count": draw(number(2, 5))},
            "safekeepers": {"count": draw(number(0, 2))},
            "timings": {"heartbeat": draw(st.sampled_from(["100ms", "200ms"]))},
            "serve": None,
            "spark": None,
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    (made / cluster_state.SECRET_FILE).write_bytes(b"0" * 32)
    return made


@settings(
    max_examples=40,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.data())
def test_whoever_goes_on_after_any_crash_ends_in_the_spec_and_no_promise_is_broken(
    folder: Path, data: st.DataObject
) -> None:
    """Two specs, one after the other; each is asked for until somebody comes to its end."""
    draw = data.draw
    specs = [draw(st.composite(lambda d: spec_of(d, str(folder)))()) for _ in range(3)]
    model = Model(specs[0], folder)
    for spec in specs[1:]:
        for life in [*draw(st.lists(st.integers(0, 6), max_size=5)), 10_000]:
            try:
                refused = carry_out(model, spec, life, draw(st.lists(st.booleans(), max_size=6)))
            except Gone:
                model.heal()
                continue
            assert not refused, "what was begun is never refused later"
            break
        assert set(model.actors) >= set(wanted_of(spec, model.state, {}).servers)
        assert len(model.members) == spec.masters.count
        assert model.members == {n for n in model.actors if n.startswith("master")}
        assert not model.away
        assert not model.marks & set(model.actors)
        for name, plan in model.actors.items():
            wanted = {p.name: p for p in launcher.plans(spec, model.state)}[name]
            assert traits_of(plan) == traits_of(wanted)


def test_a_removal_that_is_not_drained_would_be_seen(folder: Path) -> None:
    """The model's judge is not blind."""
    spec = load_spec({"cluster": "demo", "data_dir": str(folder), "serve": None, "spark": None})
    model = Model(spec, folder)
    step = Step(Act.REMOVE, "tserver", next(iter(model.held["one"])))
    model.look = lambda: [step]
    list(model.parts(step, {}))
    with pytest.raises(AssertionError, match=r"has .*is away"):
        model.judge()


def test_what_would_break_a_promise_is_refused_and_changes_nothing(folder: Path) -> None:
    """Of backups and tablet servers that are there, not of those that were asked for once."""
    made = {"cluster": "demo", "data_dir": str(folder), "serve": None, "spark": None}
    model = Model(load_spec(made), folder)
    fewer = load_spec({**made, "tservers": {"count": 2}, "backups": {"count": 1}})
    actors = dict(model.actors)
    assert "tservers.count 2 is too few" in carry_out(model, fewer, 9)
    assert model.actors == actors


def test_a_backup_that_was_taken_back_while_its_removal_settles_is_not_ended(folder: Path) -> None:
    """It may have the only copies by then."""
    made = {"cluster": "demo", "data_dir": str(folder), "serve": None, "spark": None}
    model = Model(load_spec(made), folder)
    fewer = load_spec({**made, "backups": {"count": 2}})
    model.marks.add("backup-3")
    model.heal()
    steps, _ = look(model, fewer)
    assert steps == [Step(Act.REMOVE, "backup", "backup-3")]
    model.look = lambda: look(model, fewer)[0]
    parts = model.parts(steps[0], {})
    next(parts)
    model.take_back()
    assert "backup-3" in model.held["logged"]
    assert not list(parts)
    assert "backup-3" in model.actors
    model.look = lambda: steps
    list(model.parts(steps[0], {}))
    with pytest.raises(AssertionError, match=r"has .*is away"):
        model.judge()


@pytest.mark.parametrize("kind", ["backup", "safekeeper"])
def test_a_dead_server_is_removed_once_nothing_is_missed(folder: Path, kind: str) -> None:
    """What it said last says nothing any more; who is wanted and dead stays as it is."""
    made: dict[str, Any] = {
        "cluster": "demo",
        "data_dir": str(folder),
        "serve": None,
        "spark": None,
        "tservers": {"count": 4},
    }
    model = Model(load_spec({**made, "safekeepers": {"count": 3}}), folder)
    fewer = load_spec({**made, "safekeepers": {"count": 3}, f"{kind}s": {"count": 2}})
    model.dead |= {f"{kind}-3", "tserver-4"}
    model.heal()
    if kind == "safekeeper":
        model.timeline = {"sk_set": [1, 2]}
        steps, _ = look(model, fewer)
        model.marks.add(f"{kind}-3")
        assert look(model, fewer)[0] == steps, "a log names it yet"
        model.marks.clear()
        model.timeline = {"sk_set": [2, 3], "new_sk_set": None}
    assert carry_out(model, fewer, 99) == ""
    assert f"{kind}-3" not in model.actors
    assert "tserver-4" in model.actors


def test_a_server_that_was_never_heard_is_removed_without_more(folder: Path) -> None:
    """Not before the leader master had the time to hear it; one that is wanted is waited for."""
    made = {"cluster": "demo", "data_dir": str(folder), "serve": None, "spark": None}
    model = Model(load_spec(made), folder)
    status = model.status()
    status["servers"] = [s for s in status["servers"] if s["id"] != "backup-3"]
    plans = {**model.actors, "backup-3": None}

    def steps(count: int) -> list[Step]:
        present = Present(servers_that_are(plans, model.members, status))
        spec = load_spec({**made, "backups": {"count": count}})
        return plan_steps(wanted_of(spec, model.state, {}), present)

    assert [step.act for step in steps(2)] == [Act.REMOVE]
    assert [step.act for step in steps(3)] == [Act.ADD]
    status["heard_all"] = False
    assert [step.act for step in steps(2)] == [Act.DRAIN, Act.REMOVE]
    assert "just begun to hear" in what_is_unwell(status)
