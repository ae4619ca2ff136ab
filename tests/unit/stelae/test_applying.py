"""What an apply looks at before it does anything: what was asked, what runs, if all is well."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import ray

from stelae.actors.ray_host.host import ServerPlan
from stelae.applying import front as apply_front
from stelae.applying import steps as apply_steps
from stelae.applying.front import others_present, others_wanted, start_http
from stelae.applying.run import Applied, _Apply, is_first, made_with, servers_that_are
from stelae.applying.steps import others_are_away, server_actors, traits_of, what_is_unwell
from stelae.coordinator.apply.plan import Act, Step
from stelae.core.config.peer_tls import PeerTls
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import AlreadyRunning, SpecChanged
from stelae.core.records.records import ServerKind
from stelae.deploy import asked, cluster_state, launcher, locks
from stelae.deploy.asked import Kept, keep_spec, kept_spec, note_done, spec_of
from stelae.deploy.restarts import what_is_missing
from stelae.serve.gateway.guard import Limits
from stelae.spec_host import Cancelled


def test_what_was_asked_is_kept_and_done_only_if_nothing_else_was_asked_since(
    tmp_path: Path,
) -> None:
    """The one that was asked last counts."""
    assert kept_spec(tmp_path) is None
    spec = load_spec({}, tservers={"count": 5})
    first = keep_spec(tmp_path, spec, is_done=False, by="a")
    second = keep_spec(tmp_path, load_spec({}), is_done=False, by="b")
    note_done(tmp_path, first)
    assert kept_spec(tmp_path) == second
    note_done(tmp_path, second)
    found = kept_spec(tmp_path)
    assert found == Kept(second.spec, "b", second.at_s, is_done=True, generation=2)
    assert (first.generation, second.generation) == (1, 2)
    assert spec_of(found, spec).tservers.count == 3
    assert spec_of(None, spec) is spec


def test_a_spec_of_another_version_of_stelae_is_read(tmp_path: Path) -> None:
    """One that counted no generations, and one that writes more than is known here."""
    keep_spec(tmp_path, load_spec({}), is_done=True, by="a")
    file = tmp_path / "spec.json"
    document = json.loads(file.read_text())
    del document["generation"]
    file.write_text(json.dumps({**document, "later": 1}))
    found = kept_spec(tmp_path)
    assert found is not None
    assert (found.by, found.generation) == ("a", 0)


def test_an_apply_of_another_generation_is_refused_until_it_has_begun() -> None:
    """Its own asking is a generation too, and no reason to end."""
    work = _Apply.__new__(_Apply)
    work.cluster, work.if_generation, work._mine = "demo", 1, None
    work._kept, work._spec = Kept({}, "ada", 1.0, generation=2), load_spec({})
    with pytest.raises(SpecChanged, match="generation 2 by now, asked for by ada, and was to be"):
        work._generation()
    work._mine = work._kept
    assert work._generation() == 2
    work.if_generation, work._mine = None, None
    assert work._generation() == 2
    work._kept, work.if_generation = None, 0
    assert work._generation() == 0


def test_an_apply_that_was_interrupted_goes_on_with_the_same_generation() -> None:
    """It has asked for this spec itself; once that is done, or of another spec, it is refused."""
    work = _Apply.__new__(_Apply)
    work.cluster, work.if_generation, work._mine = "demo", 1, None
    work._spec = load_spec({})
    mine = work._spec.document()
    work._kept = Kept(mine, "ada", 1.0, generation=2)
    assert work._generation() == 2
    others = (
        Kept(mine, "ada", 1.0, is_done=True, generation=2),
        Kept(mine, "ada", 1.0, generation=3),
        Kept({**mine, "cluster": "other"}, "ada", 1.0, generation=2),
    )
    for kept in others:
        work._kept = kept
        with pytest.raises(SpecChanged):
            work._generation()


def test_what_is_noted_as_done_is_not_ended_by_who_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel is heard where progress is told: then nothing is noted, and after the note nobody
    is told."""
    spec, told = load_spec({}), []
    work = _Apply.__new__(_Apply)
    work._spec, work.home, work.by = spec, tmp_path, "ada"
    monkeypatch.setattr(_Apply, "_publish", lambda _: None)

    def progress(done: int, of: int, text: str) -> None:
        told.append(text)
        if is_cancelled:
            raise Cancelled

    work._progress = progress
    is_cancelled = True
    with pytest.raises(Cancelled):
        work.carry_out(Applied((), ()))
    found = kept_spec(tmp_path)
    assert found is not None
    assert not found.is_done
    is_cancelled, noted = False, note_done

    def note(*given: Any) -> None:
        nonlocal is_cancelled
        noted(*given)
        is_cancelled = True

    monkeypatch.setattr(asked, "note_done", note)
    assert work.carry_out(Applied((), ())).is_done
    found = kept_spec(tmp_path)
    assert found is not None
    assert found.is_done
    assert len(told) == 2


@pytest.mark.parametrize("step", [Act.RESTART, Act.REMOVE, Act.ADD])
def test_no_step_is_taken_by_who_does_not_have_the_turn_any_more(
    step: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has taken over meanwhile: its plan goes on, and not this one."""
    work = _Apply.__new__(_Apply)
    work._progress, work.sure = lambda *told: None, MagicMock(side_effect=AlreadyRunning("ada"))
    monkeypatch.setattr(_Apply, "_steps", lambda *_: pytest.fail("it goes on"))
    with pytest.raises(AlreadyRunning, match="ada"):
        work._take(Step(step, "tserver", "tserver-2"), 0, 1)
    left = Applied((), (Step(step, "tserver", "tserver-2"),))
    monkeypatch.setattr(_Apply, "_look_again", lambda _: left)
    with pytest.raises(AlreadyRunning, match="ada"):
        work._is_next(left.steps[0])


def traits(kind: ServerKind, spec: ClusterSpec, tmp_path: Path) -> dict[str, str]:
    (tmp_path / cluster_state.SECRET_FILE).write_bytes(b"0" * 32)
    state = cluster_state.ClusterState("demo", str(tmp_path), {"master-1": "127.0.0.1:1"})
    return next(traits_of(p) for p in launcher.plans(spec, state) if p.kind is kind)


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"tservers": {"memory": "2GiB"}}, {"tserver"}),
        ({"tservers": {"count": 7}}, set()),
        ({"media": {"disk": {"path": "disk"}}}, {"backup"}),
        ({"safekeepers": {"evict_after": "1h"}}, {"safekeeper"}),
        ({"recovery": {"engine": "native"}}, {"master"}),
        ({"recovery": {"metadata_first": False}}, {"master", "tserver"}),
        ({"timings": {"heartbeat": "100ms"}}, {"master", "tserver", "backup", "safekeeper"}),
        (
            {"traces": {"endpoint": "http://h:4318"}},
            {"master", "tserver", "backup", "safekeeper"},
        ),
    ],
)
def test_a_field_has_those_started_anew_that_heed_it(
    change: dict[str, object], kinds: set[str], tmp_path: Path
) -> None:
    """And nobody else: a count has nobody started anew."""
    base = {"safekeepers": {"count": 1}}
    document = {**base, **change}
    if "safekeepers" in change:
        document["safekeepers"] = {**base["safekeepers"], **change["safekeepers"]}  # type: ignore[dict-item]
    found = {
        kind.value
        for kind in ServerKind
        if kind is not ServerKind.CAS_STORE
        if traits(kind, load_spec(base), tmp_path) != traits(kind, load_spec(document), tmp_path)
    }
    assert found == kinds


def test_no_server_is_ended_while_something_is_missed() -> None:
    """Tablets, segments and members of groups are looked at."""
    well = {"state": "running", "replicas": [{"role": "leader", "member": "voter"}]}
    assert what_is_unwell({"tablets": [well], "shortages": []}) == ""
    assert "not served" in what_is_unwell({"tablets": [{"state": "recovering"}], "shortages": []})
    assert "lack replicas" in what_is_unwell({"tablets": [], "shortages": [{}]})
    unheard = [{**well, "reported": False}, {**well, "reported": True}]
    assert "what 1 tablets lack" in what_is_unwell({"tablets": unheard, "shortages": []})
    away = {"state": "running", "replicas": [{"role": "", "member": "voter"}]}
    assert "1 replicas" in what_is_unwell({"tablets": [away], "shortages": []})
    gone = {"state": "running", "replicas": [{"role": "", "member": "none"}]}
    assert what_is_unwell({"tablets": [gone], "shortages": []}) == ""


def test_a_master_waits_for_the_others_before_it_is_ended() -> None:
    """With it, a majority might be away; what is no master does not matter for that."""
    masters = [{"kind": "master", "id": f"master-{n}", "state": "live"} for n in (1, 2, 3)]
    tserver = {"kind": "tserver", "id": "tserver-1", "state": "dead"}
    assert others_are_away({"servers": [*masters, tserver]}, "master-1") == ""
    masters[1]["state"] = "dead"
    assert "master-2" in others_are_away({"servers": masters}, "master-1")
    assert others_are_away({"servers": masters}, "master-2") == "", "it is the one that is away"


def test_spark_is_no_server() -> None:
    """Its actor has no plan to compare."""
    assert list(server_actors({"spark": 1, "tserver-3": 2, "cas-store-1": 3})) != ["spark"]
    assert "spark" not in server_actors({"spark": 1, "tserver-3": 2})


def test_masters_without_a_process_and_processes_that_are_no_masters_are_told_apart(
    tmp_path: Path,
) -> None:
    """A lost one of the set has no process to ask; one that waits is not of the set."""
    (tmp_path / cluster_state.SECRET_FILE).write_bytes(b"0" * 32)
    masters = {f"master-{n}": f"127.0.0.1:{n}" for n in (1, 2)}
    plans = launcher.plans(
        load_spec({}), cluster_state.ClusterState("demo", str(tmp_path), masters)
    )
    found: dict[str, ServerPlan | None] = {plan.name: plan for plan in plans}
    found["tserver-2"] = None
    del found["master-2"]
    found["master-3"] = found["master-1"]
    master = {"kind": "master", "id": "master-1", "state": "live", "role": "leader"}
    status = {"servers": [master], "tablets": [], "shortages": []}
    servers = {s.name: s for s in servers_that_are(found, ["master-1", "master-2"], status)}
    lost, waits, silent = servers["master-2"], servers["master-3"], servers["tserver-2"]
    assert (lost.has_process, lost.is_member, lost.live) == (False, True, False)
    assert (waits.has_process, waits.is_member) == (True, False)
    assert (silent.answers, silent.live) == (False, False)
    assert servers["master-1"].leads


def test_a_master_is_back_once_it_has_caught_up() -> None:
    """Before, a majority may hang on it."""
    master = {"kind": "master", "id": "master-1", "uuid": "m", "state": "live", "incarnation": 2}
    status = {"servers": [{**master, "keeps_up": False}], "tablets": []}
    assert "does not have all" in what_is_missing(status, "m", 1)
    assert what_is_missing({**status, "servers": [{**master, "keeps_up": True}]}, "m", 1) == ""


@pytest.mark.parametrize("act", [Act.RESTART, Act.DRAIN, Act.REMOVE])
def test_what_a_look_chose_is_not_done_if_the_next_look_says_otherwise(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All has to settle first, which may take hours: meanwhile a mark may have been taken back."""
    looks: list[Step] = []

    class Database:
        cluster = "demo"
        _loop = SimpleNamespace(run=lambda work: work)

        @property
        def _database(self) -> Any:
            return SimpleNamespace(status=self.masters)

        def masters(self, *, timeout: float) -> dict[str, object]:
            assert not looks, "the look is the last thing"
            return {"tablets": [], "shortages": [], "servers": []}

    def look(step: Step) -> bool:
        looks.append(step)
        return False

    monkeypatch.setattr(apply_steps, "cluster_actors", lambda cluster: pytest.fail("it goes on"))
    database = cast("Any", Database())
    steps = apply_steps.Steps(database, load_spec({}), [], lambda text: None, 0.0, look)
    step = Step(act, "backup", "backup-3")
    assert not steps.take(step)
    assert looks == [step]


def test_a_step_is_the_same_for_whatever_reason() -> None:
    """Its reason is for people."""
    step = Step(Act.RESTART, "tserver", "tserver-1", "because")
    assert is_first(step, [Step(Act.RESTART, "tserver", "tserver-1", "of that"), step])
    assert not is_first(step, [Step(Act.REMOVE, "tserver", "tserver-1"), step])
    assert not is_first(step, [])


def test_a_server_that_waits_for_room_is_ended_without_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not answer, and nobody has to know more than its name."""
    (tmp_path / cluster_state.SECRET_FILE).write_bytes(b"0" * 32)
    spec = load_spec({"tservers": {"count": 3}})
    state = cluster_state.ClusterState("demo", str(tmp_path), {"master-1": "127.0.0.1:1"})
    pending, done = object(), list[object]()
    monkeypatch.setattr(apply_steps, "cluster_actors", lambda cluster: {"tserver-4": pending})
    monkeypatch.setattr(launcher, "kill_servers", done.append)
    monkeypatch.setattr(locks, "wait_ended", lambda folders: done.extend(folders))

    class Database:
        cluster = "demo"
        _loop = SimpleNamespace(run=lambda work: work)

        @property
        def _database(self) -> Any:
            return SimpleNamespace(status=self.masters)

        def masters(self, *, timeout: float) -> dict[str, object]:
            return {"tablets": [], "shortages": [], "servers": []}

    plans, database = launcher.plans(spec, state), cast("Any", Database())
    steps = apply_steps.Steps(database, spec, plans, lambda text: None, 0.0)
    assert steps.take(Step(Act.REMOVE, "tserver", "tserver-4"))
    assert done == [{"tserver-4": pending}, tmp_path / "tserver-4"]


@pytest.mark.parametrize("spark", [{"warm": True}, {}, None])
def test_a_session_that_does_not_say_what_it_is_is_left_alone(
    spark: dict[str, object] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is busy, and somebody may use it; one that has ended is none."""
    (tmp_path / cluster_state.SECRET_FILE).write_bytes(b"0" * 32)
    state = cluster_state.ClusterState("demo", str(tmp_path), {"master-1": "127.0.0.1:1"})
    error: list[Exception] = [ray.exceptions.GetTimeoutError()]

    def no_answer(asked: object, timeout: float) -> None:
        raise error[-1]

    monkeypatch.setattr(apply_front, "cluster_actors", lambda cluster: {"spark": MagicMock()})
    monkeypatch.setattr(apply_front, "_front", lambda cluster, state: None)
    monkeypatch.setattr(ray, "get", no_answer)
    spec = load_spec({"spark": spark, "serve": None})
    present = others_present("demo", state)
    assert set(present) == {"spark"}
    assert others_wanted(spec, state, present) == present
    error.append(ray.exceptions.ActorDiedError())
    assert others_present("demo", state) == {}


def test_what_the_front_takes_on_is_told_by_the_names_of_the_file() -> None:
    """The same words for what runs and for what a file asks, so that a difference is one."""
    state = cluster_state.ClusterState("demo", "/nowhere", {"master-1": "127.0.0.1:1"})
    spec = load_spec({"spark": None, "serve": {"limits": {"body": "1MiB", "timeout": "5s"}}})
    wanted = others_wanted(spec, state, {})["serve"]
    there = apply_front.limits_text(asdict(Limits(body_bytes=1 << 20, timeout_s=5.0)))
    assert {n: t for n, t in wanted.items() if n.startswith("serve.limits.")} == there
    assert there == {
        "serve.limits.body": "1MiB",
        "serve.limits.bodies": "256MiB",
        "serve.limits.requests": "256",
        "serve.limits.rows": "1000000",
        "serve.limits.timeout": "5 s",
        "serve.limits.timeout_max": "600 s",
        "serve.limits.audit_keep": "7776000 s",
        "serve.limits.audit_rows": "50000",
    }


def test_a_front_is_made_anew_for_another_collector_of_traces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What its replicas were told is compared with the file; one of before was told of none."""
    from stelae.serve import deployment

    state = cluster_state.ClusterState("demo", "/nowhere", {"master-1": "127.0.0.1:1"})
    plain = load_spec({"spark": None})
    named = load_spec({"spark": None, "traces": {"endpoint": "http://h:4318/"}})
    text = {"traces.endpoint": "http://h:4318"}
    before, after = others_wanted(plain, state, {})["serve"], others_wanted(named, state, {})
    assert after["serve"] == {**before, **text}
    for config, told in (
        ({}, {}),
        ({"traces_endpoint": ""}, {}),
        ({"traces_endpoint": "http://h:4318"}, text),
    ):
        monkeypatch.setattr(deployment, "_user_config", lambda cluster, config=config: config)
        assert apply_front.traces_text(deployment.traces_of("demo")) == told


def test_all_that_connects_is_told_of_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server's plan, Spark's and that of the HTTP replicas; and what runs is known by it."""
    from stelae.serve import deployment

    (tmp_path / cluster_state.SECRET_FILE).write_bytes(b"0" * 32)
    state = cluster_state.ClusterState("demo", str(tmp_path), {"master-1": "127.0.0.1:1"})
    spec = load_spec({"tls": {"mode": "internal"}, "data_dir": str(tmp_path)})
    tls = PeerTls("internal")
    plans = launcher.plans(spec, state)
    assert {plan.peer_tls for plan in plans} == {tls}
    assert {plan.spark.peer_tls for plan in plans if plan.spark is not None} == {tls}
    given: list[deployment.GatewayPlan] = []

    def deploy(plan: deployment.GatewayPlan, *_: object, **__: object) -> deployment.Deployed:
        given.append(plan)
        return deployment.Deployed("http://h", "stelae-demo", True)

    monkeypatch.setattr(deployment, "deploy", deploy)
    start_http(spec, state)
    assert [plan.peer_tls for plan in given] == [tls]
    found: dict[str, ServerPlan | None] = {plan.name: plan for plan in plans}
    assert made_with(found, tmp_path, None).tls == tls


def test_servers_and_the_front_are_told_where_traces_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every server's plan, and that of the HTTP replicas, names the file's collector."""
    from stelae.serve import deployment

    (tmp_path / cluster_state.SECRET_FILE).write_bytes(b"0" * 32)
    state = cluster_state.ClusterState("demo", str(tmp_path), {"master-1": "127.0.0.1:1"})
    endpoint = "http://h:4318"
    spec = load_spec({"spark": None, "traces": {"endpoint": endpoint}, "data_dir": str(tmp_path)})
    assert {plan.traces_endpoint for plan in launcher.plans(spec, state)} == {endpoint}
    given: list[deployment.GatewayPlan] = []

    def deploy(plan: deployment.GatewayPlan, *_: object, **__: object) -> deployment.Deployed:
        given.append(plan)
        return deployment.Deployed("http://h", "stelae-demo", True)

    monkeypatch.setattr(deployment, "deploy", deploy)
    start_http(spec, state)
    assert [plan.traces_endpoint for plan in given] == [endpoint]
