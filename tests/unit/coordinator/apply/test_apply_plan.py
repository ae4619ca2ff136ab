"""What an apply does: its steps, interrupted anywhere, lead to what is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.coordinator.apply.checks import Asked, Made, refusals
from stelae.coordinator.apply.plan import (
    Act,
    Present,
    ServerIs,
    Step,
    TableIs,
    Wanted,
    differences,
    plan_steps,
)
from stelae.coordinator.apply.room import Room
from stelae.core.config.peer_tls import PeerTls, TlsMode
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import Durability, Replicas, Segments, Wal

KINDS = (ServerKind.TSERVER, ServerKind.BACKUP, ServerKind.SAFEKEEPER)
OLD, NEW = {"memory": "1GiB"}, {"memory": "2GiB"}


def wanted(tservers: int = 3, masters: int = 3, traits: dict[str, str] = OLD) -> Wanted:
    names = {f"tserver-{n}": (ServerKind.TSERVER, traits) for n in range(1, tservers + 1)}
    return Wanted(names, masters, traits)


def present(tservers: int = 3, masters: int = 3, traits: dict[str, str] = OLD) -> Present:
    made = [ServerIs(ServerKind.TSERVER, f"tserver-{n + 1}", traits) for n in range(tservers)]
    made += [
        ServerIs(ServerKind.MASTER, f"master-{n + 1}", traits, leads=n == 1) for n in range(masters)
    ]
    return Present(made)


def carried_out(step: Step, now: Present, to: Wanted) -> Present:
    """The cluster after one step, as far as plans see it."""
    servers = list(now.servers)
    place = next((i for i, s in enumerate(servers) if s.name == step.name), None)
    kind = ServerKind(step.kind)
    traits = to.master_traits if kind is ServerKind.MASTER else {}
    if step.name in to.servers:
        traits = dict(to.servers[step.name][1])
    match step.act:
        case Act.ADD:
            name = step.name or f"master-{1 + max(_number(s.name) for s in servers)}"
            servers.append(ServerIs(kind, name, traits))
        case Act.REMOVE:
            assert place is not None
            if kind is not ServerKind.MASTER:
                assert (servers[place].retiring, servers[place].left) == (True, 0), "undrained"
            del servers[place]
        case Act.KEEP:
            assert place is not None
            servers[place] = replace(servers[place], retiring=False, left=1)
        case Act.RESTART:
            assert place is not None
            servers[place] = replace(servers[place], traits=traits)
        case Act.DRAIN:
            assert place is not None
            servers[place] = replace(servers[place], retiring=True, left=0)
        case Act.CHANGE:
            pytest.fail("nothing but servers here")
    return Present(servers, now.others)


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _settled(to: Wanted, now: Present) -> bool:
    others = {s.name: s for s in now.servers if s.kind is not ServerKind.MASTER}
    masters = [s for s in now.servers if s.kind is ServerKind.MASTER]
    return (
        set(others) == set(to.servers)
        and all(dict(others[n].traits) == dict(to.servers[n][1]) for n in others)
        and not any(server.retiring for server in others.values())
        and len(masters) == to.masters
        and all(dict(m.traits) == dict(to.master_traits) for m in masters)
    )


counts = st.integers(0, 5)
odd = st.sampled_from([1, 3, 5])
traits = st.sampled_from([OLD, NEW])


@st.composite
def clusters(draw: st.DrawFn) -> Present:
    made: list[ServerIs] = []
    for kind in KINDS:
        for n in draw(st.sets(st.integers(1, 6), max_size=6)):
            retiring = draw(st.booleans())
            left = draw(st.integers(0, 1))
            made.append(
                ServerIs(kind, f"{kind.value}-{n}", draw(traits), retiring=retiring, left=left)
            )
    count = draw(st.integers(1, 5))
    leader = draw(st.integers(0, count - 1))
    made += [
        ServerIs(ServerKind.MASTER, f"master-{n + 1}", draw(traits), leads=n == leader)
        for n in range(count)
    ]
    return Present(made)


@st.composite
def wishes(draw: st.DrawFn) -> Wanted:
    each = draw(traits)
    names = {
        f"{kind.value}-{n}": (kind, each) for kind in KINDS for n in range(1, draw(counts) + 1)
    }
    return Wanted(names, draw(odd), draw(traits))


@given(clusters(), wishes(), wishes(), st.integers(0, 12))
def test_applies_that_are_interrupted_and_replaced_end_in_what_was_asked_last(
    now: Present, first: Wanted, second: Wanted, interrupted_after: int
) -> None:
    """Wherever a first apply was left, the second one ends, and nothing goes undrained."""
    for to, most in ((first, interrupted_after), (second, 200)):
        for _ in range(most):
            steps = plan_steps(to, now)
            if not steps:
                break
            now = carried_out(steps[0], now, to)
    assert _settled(second, now)
    assert plan_steps(second, now) == []


@given(clusters(), wishes())
def test_adds_come_before_restarts_and_these_before_removals(now: Present, to: Wanted) -> None:
    """So that there is room for what is drained."""
    order = [Act.KEEP, Act.ADD, Act.RESTART, Act.DRAIN, Act.REMOVE]
    ranks = [min(order.index(step.act), 3) for step in plan_steps(to, now)]
    assert ranks == sorted(ranks)


@given(clusters(), wishes())
def test_no_more_steps_than_were_shown_at_first(now: Present, to: Wanted) -> None:
    """What a dry run shows is what is done."""
    shown = plan_steps(to, now)
    taken = 0
    while steps := plan_steps(to, now):
        now = carried_out(steps[0], now, to)
        taken += 1
    assert taken == len(shown)


def test_growing_and_restarting_with_more_memory() -> None:
    """A new server has it at once; of the masters the leader is last."""
    steps = plan_steps(wanted(4, traits=NEW), present(3))
    assert steps[0] == Step(Act.ADD, "tserver", "tserver-4")
    restarted = [step.name for step in steps[1:]]
    assert restarted[:3] == ["tserver-1", "tserver-2", "tserver-3"]
    assert restarted[-1] == "master-2", "the leader is the last of the masters"
    assert steps[1].why == "memory: 1GiB → 2GiB"


def test_the_newest_go_first_and_are_drained_before() -> None:
    """Names of those that stay are those that the next `stelae up` expects."""
    steps = plan_steps(wanted(2, 1), present(4, 3))
    assert [str(step) for step in steps] == [
        "drain tserver-4",
        "remove tserver-4",
        "drain tserver-3",
        "remove tserver-3",
        "remove master-3",
        "remove master-1",
    ]


def test_differences_name_the_fields_of_the_file() -> None:
    """A field is named by its path, a section that goes by each of its fields."""
    before = load_spec({}).document()
    after = load_spec({}, tservers={"count": 4}, spark=None).document()
    found = {each.field: (each.before, each.after) for each in differences(before, after)}
    of_spark = {f"spark.{name}" for name in ("executors", "cores", "memory", "warm")}
    assert found.keys() == {"tservers.count", *of_spark}
    assert found["tservers.count"] == ("3", "4")
    assert {found[name][1] for name in of_spark} == {"none"}


# ---- what is refused ----------------------------------------------------------------------------


def asked(
    spec: ClusterSpec,
    *tables: Durability,
    steps: tuple[Step, ...] = (),
    room: Room | None = None,
) -> Asked:
    tables_are = [TableIs(f"t{n}", durability) for n, durability in enumerate(tables)]
    servers = [ServerIs(kind, f"{kind.value}-{n}") for kind in KINDS for n in (1, 2, 3)]
    made = made_as(load_spec({}, media={"disk": {"path": "disk"}, "ram": {"size": "1GiB"}}))
    return Asked(made, spec, steps, Present(servers), tables_are, room or Room())


def made_as(spec: ClusterSpec) -> Made:
    """What servers run with that were made as this says."""
    return Made(
        cluster=spec.cluster,
        data_dir=spec.data_dir,
        segment_size_bytes=spec.segment_size_bytes,
        cas_store="",
        lease_s=spec.timings.lease_s,
        media={name: medium.path for name, medium in spec.media.items()},
        ray_address=spec.ray.address,
        ray_num_cpus=spec.ray.num_cpus,
        placement=spec.placement,
    )


def test_what_a_table_was_promised_is_never_undercut_and_all_reasons_are_told_at_once() -> None:
    """One reason for each field that is at fault."""
    spec = load_spec(
        {},
        tservers={"count": 2},
        backups={"count": 1},
        media={"ram": {"size": "64MiB"}},
        segment_size="4MiB",
    )
    found = refusals(asked(spec, Replicas(3), Segments(("disk", "disk")), Wal(3, ("ram",))))
    assert [text.split(" ")[0] for text in found] == [
        "segment_size", "media.disk", "tservers.count", "backups.count", "safekeepers.count",
    ]  # fmt: skip
    assert "table 't0' with replicas(3) needs 3" in found[2]


@pytest.mark.parametrize("act", [Act.RESTART, Act.DRAIN])
def test_rows_in_memory_only_keep_their_server(act: Act) -> None:
    """Tables with `segments()` have their rows nowhere else."""
    step = Step(act, "tserver", "tserver-2")
    (found,) = refusals(asked(load_spec({}), Segments(()), steps=(step,)))
    assert "tserver-2 cannot be ended" in found
    assert refusals(asked(load_spec({}), Segments(()))) == []


def test_memory_that_is_missing() -> None:
    """Of tablet servers for the rows that there are, and of Ray for a new server."""
    steps = (
        Step(Act.ADD, "tserver", "tserver-4"),
        Step(Act.REMOVE, "tserver", "tserver-5"),
    )
    room = Room(rows_bytes=5 << 30, ray_free_bytes=1 << 20)
    found = refusals(asked(load_spec({}, tservers={"count": 4}), steps=steps, room=room))
    assert [text.split(" ")[0] for text in found] == ["tservers:", "Ray"]


def test_each_server_that_is_started_anew_has_room_for_its_own_rows() -> None:
    """The sum of all says nothing of one: it reads its rows back into what it is given."""
    step = Step(Act.RESTART, "tserver", "tserver-2")
    spec = load_spec({}, tservers={"count": 3, "memory": "100MiB"})
    rows = {"tserver-1": 1 << 20, "tserver-2": 96 << 20}
    room = Room(rows_bytes=sum(rows.values()), rows_by_server=rows)
    (found,) = refusals(asked(spec, steps=(step,), room=room))
    assert found.startswith("tservers.memory: tserver-2 has 96 MiB of rows")
    assert "room for 95 MiB" in found
    assert not refusals(asked(spec, steps=(Step(Act.RESTART, "tserver", "tserver-1"),), room=room))


def test_a_weaker_sync_is_for_who_says_that_it_is_meant() -> None:
    """What was acknowledged may be lost then; media that no table is on are anybody's."""
    spec = load_spec(
        {}, media={"disk": {"path": "disk", "sync": "on_seal"}, "ram": {"size": "1GiB"}}
    )
    was = asked(spec, Segments(("disk",)))
    now = replace(was, made=replace(was.made, synced=frozenset({"disk"})))
    (found,) = refusals(now)
    assert found.startswith("media.disk: with sync on_seal a power failure may take")
    assert "t0" in found
    assert not refusals(replace(now, accepts_loss=True))
    assert not refusals(replace(now, tables=()))
    assert not refusals(was), "it is so already"


def test_ports_and_places_stay() -> None:
    """What is chosen when a cluster is made or comes up is refused by name."""
    serve = {"port": 9000, "tls": {"cert": "/c.pem", "key": "/k.pem"}}
    spec = load_spec({}, serve=serve, data_dir="/elsewhere", ray={"address": "auto"})
    found = refusals(asked(spec))
    assert [text.split(" ")[0] for text in found] == ["data_dir", "ray.address", "serve.tls"]
    assert "stelae certificate renew" not in found[2]


def test_who_names_other_files_for_a_certificate_is_told_how_it_is_renewed() -> None:
    """The paths stay, and need not change for a new certificate."""
    spec = load_spec({}, serve={"tls": {"cert": "/c.pem", "key": "/k.pem"}})
    assert spec.serve is not None
    other = load_spec({}, serve={"tls": {"cert": "/new.pem", "key": "/k.pem"}})
    made = replace(made_as(spec), serve_tls=spec.serve.tls)
    (found,) = refusals(Asked(made, other, (), Present(()), ()))
    assert "replace the files, `stelae certificate renew`" in found
    assert not refusals(Asked(made, spec, (), Present(()), ()))


@pytest.mark.parametrize("mode", ["off", "internal"])
def test_the_mode_of_tls_stays_while_a_cluster_runs(mode: TlsMode) -> None:
    """Servers of two modes do not understand each other; the way out is told."""
    other = load_spec({}, tls={"mode": "internal" if mode == "off" else "off"})
    made = replace(made_as(other), tls=PeerTls(mode))
    (found,) = refusals(Asked(made, other, (), Present(()), ()))
    assert found.startswith(f"tls is {mode} and cannot become {other.tls.mode}: ")
    assert "`stelae down`, then `stelae up`" in found
    assert not refusals(Asked(replace(made, tls=other.tls.peer_tls), other, (), Present(()), ()))


def test_who_names_other_files_for_tls_is_told_how_they_are_renewed() -> None:
    """The paths stay, and need not change for a new certificate."""
    files = {"mode": "files", "certificate": "/c.pem", "key": "/k.pem", "authority": "/a.pem"}
    spec = load_spec({}, tls=files)
    made = replace(made_as(spec), tls=PeerTls("files", "/old.pem", "/k.pem", "/a.pem"))
    (found,) = refusals(Asked(made, spec, (), Present(()), ()))
    assert "tls is files, tls.certificate /old.pem" in found
    assert "replace the files where they are" in found


def test_a_shorter_lease_is_refused() -> None:
    """A new leader master would give up, too soon, who got a longer one; a longer lease is well."""
    long, short = ({"timings": {"lease": f"{s}s", "dead_after": "12s"}} for s in (10, 2))
    shorter = Asked(made_as(load_spec(long)), load_spec(short), (), Present(()), ())
    assert [text.split(" ")[0] for text in refusals(shorter)] == ["timings.lease"]
    assert not refusals(Asked(made_as(load_spec(short)), load_spec(long), (), Present(()), ()))


def test_what_cannot_be_done_yet_is_refused() -> None:
    """Rather than done halfway."""
    spec = load_spec({}, media={"disk": {"path": "disk"}, "ram": {"size": "1GiB"}})
    step = Step(Act.RESTART, "backup", "backup-1")
    (found,) = refusals(asked(spec, Segments(("ram",)), steps=(step,)))
    assert "t0 have segments in their memory" in found


def test_who_does_not_answer_is_not_counted_on_and_keeps_nobody_else() -> None:
    """It is waited for last; its memory is not asked for twice; others may not go meanwhile."""
    silent = ServerIs(ServerKind.TSERVER, "tserver-2", answers=False, live=False)
    now = Present([*[s for s in present(4, 1).servers if s.name != "tserver-2"], silent])
    steps = plan_steps(wanted(3, 1, NEW), now)
    assert str(steps[-1]) == "add tserver-2 (its process does not answer)"
    assert "restart tserver-2" not in [str(s) for s in steps]
    made = made_as(load_spec({}))
    tables = [TableIs("t", Replicas(3))]
    asked_now = Asked(made, load_spec({}), steps, now, tables, Room(ray_free_bytes=0))
    (found,) = refusals(asked_now)
    assert found.startswith("tservers.count 3 is too few while tserver-2 does not answer")
    assert not refusals(Asked(made, load_spec({}), steps, now, [], Room(ray_free_bytes=0)))


def test_a_master_that_was_lost_is_started_anew_and_what_waits_is_added() -> None:
    """In its place, under its name; of several that wait the oldest; the others are ended."""
    masters = list(present(1, 3).servers)
    masters[2] = replace(masters[2], has_process=False, live=False, traits={})
    steps = plan_steps(wanted(1, 3), Present(masters))
    assert [str(step) for step in steps] == ["add master-2 (its process is gone)"]
    waiting = [
        ServerIs(ServerKind.MASTER, f"master-{n}", {}, live=False, is_member=False) for n in (5, 4)
    ]
    steps = plan_steps(wanted(1, 3), Present([*present(1, 2).servers, *waiting]))
    assert [str(step) for step in steps] == [
        "add master-4 (it waits to be added)",
        "remove master-5 (it is no master of the set)",
    ]
    steps = plan_steps(wanted(1, 1), Present(masters))
    assert [step.name for step in steps] == ["master-2", "master-3"], "the lost one goes first"


@pytest.mark.parametrize(
    ("kind", "durability"),
    [
        (ServerKind.TSERVER, Replicas(3)),
        (ServerKind.SAFEKEEPER, Wal(3, ())),
        (ServerKind.BACKUP, Segments(("disk", "disk", "disk"))),
    ],
)
def test_one_that_is_dead_just_now_is_not_taken_away_from_a_table_that_needs_it(
    kind: ServerKind, durability: Durability
) -> None:
    """It may be back in a minute; what keeps the count is not refused while it is away."""

    def refused(count: int, **last: Any) -> list[str]:
        servers = [ServerIs(kind, f"{kind.value}-{n}") for n in (1, 2)]
        servers.append(ServerIs(kind, f"{kind.value}-3", live=False, **last))
        spec = load_spec({f"{kind.value}s": {"count": count}})
        asked_now = Asked(made_as(spec), spec, [], Present(servers), [TableIs("t", durability)])
        return refusals(asked_now)

    assert "2 is too few" in refused(2)[0]
    assert "2 is too few" in refused(2, answers=False)[0]
    assert refused(3) == refused(3, answers=False) == []
    assert refused(2, is_known=False) == [], "it never was there"


def test_nobody_waits_for_a_process_whose_machine_is_away() -> None:
    """A master, too: it cannot start, and every apply would wait for it in vain."""
    wanted = Wanted({"backup-1": (ServerKind.BACKUP, {})}, masters=1)
    silent = [
        ServerIs(ServerKind.MASTER, "master-1", answers=False),
        ServerIs(ServerKind.BACKUP, "backup-1", answers=False),
    ]
    waits = [f"add {each.name} (its process does not answer)" for each in reversed(silent)]
    assert [str(step) for step in plan_steps(wanted, Present(silent))] == waits
    away = [replace(each, is_away=True) for each in silent]
    assert plan_steps(wanted, Present(away)) == []


def test_when_servers_are_replaced_may_change_and_where_they_are_may_not() -> None:
    """The machines of a placement are chosen when a cluster is made."""
    before = load_spec({"ray": {"address": "auto"}, "placement": {"label": "disk"}})
    made = Made(
        before.cluster, before.data_dir, before.segment_size_bytes, "", before.timings.lease_s,
        ray_address=before.ray.address, placement=before.placement,
    )  # fmt: skip

    def refused(placement: dict[str, Any]) -> list[str]:
        spec = load_spec({"ray": {"address": "auto"}, "placement": placement})
        return refusals(Asked(made, spec, (), Present(()), ()))

    assert not refused({"label": "disk", "replace_after": "15m"})
    (found,) = refused({"label": "other", "replace_after": "15m"})
    assert found.startswith("placement is label: disk and cannot become label: other: ")


def test_the_label_of_racks_is_chosen_when_a_cluster_comes_up() -> None:
    """Servers keep the plan that they were started with."""
    before = load_spec({"ray": {"address": "auto"}, "placement": {"spread": "node"}})
    made = Made(
        before.cluster, before.data_dir, before.segment_size_bytes, "", before.timings.lease_s,
        ray_address=before.ray.address, placement=before.placement,
    )  # fmt: skip
    spec = load_spec({"ray": {"address": "auto"}, "placement": {"spread": ["node", "rack"]}})
    (found,) = refusals(Asked(made, spec, (), Present(()), ()))
    assert found.startswith("placement.spread's label of racks is none and cannot become rack: ")
    assert "stelae down" in found
    assert not refusals(Asked(replace(made, placement=spec.placement), spec, (), Present(()), ()))
