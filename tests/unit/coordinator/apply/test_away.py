"""Which server of a machine that stays away may be started elsewhere, and why not yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stelae.coordinator.apply.away import (
    LOOK_GAP_S,
    START_LIMIT_S,
    Look,
    Next,
    Verdict,
    replacements,
    since_when,
)

AFTER_S = 60.0
NODES = {"a": 1, "b": 2, "c": 3}
AWAY = "c"


def server(kind: str, number: int, **more: Any) -> dict[str, Any]:
    """As the status has it. Those of machine c are dead."""
    found: dict[str, Any] = {
        "kind": kind,
        "id": f"{kind}-{number}",
        "uuid": f"{kind}{number}",
        "state": "dead" if number == NODES[AWAY] else "live",
    }
    if kind == "safekeeper":
        found.update(safekeeper_id=number, status="active")
    elif kind != "cas_store":
        found.update(retiring=False)
    return {**found, **more}


def tablet(**more: Any) -> dict[str, Any]:
    """One that lacks nothing."""
    found: dict[str, Any] = {
        "table": "t",
        "number": 1,
        "state": "running",
        "reported": True,
        "loaded": 1.0,
        "segments_lacking": 0,
    }
    return {**found, **more}


def voters(*live: bool) -> list[dict[str, Any]]:
    return [
        {"member": "voter", "server_live": each, "uuid": f"tserver{number}"}
        for number, each in enumerate(live, 1)
    ]


def looked(*tablets: dict[str, Any], kinds: tuple[str, ...] = (), **more: Any) -> Look:
    """A cluster on machines a, b and c with one server of each kind; c has been away for long."""
    of = kinds or ("backup", "safekeeper", "tserver")
    servers = [server(kind, number) for kind in of for number in NODES.values()]
    status = {
        "heard_all": True,
        "servers": servers,
        "tablets": list(tablets),
        "shortages": [],
        "replaced": [],
    }
    names = [each["id"] for each in servers]
    machines = {f"{kind}-{number}": m for kind in of for m, number in NODES.items()}
    found = Look(
        wanted=names,
        placed={**machines, "master-3": AWAY},
        away_s={AWAY: AFTER_S},
        status=status,
        replace_after_s=AFTER_S,
        copies=2,
        there=names,
    )
    return replace(found, **more)


def with_status(look: Look, **more: Any) -> Look:
    return replace(look, status={**look.status, **more})


def changed(look: Look, name: str, **more: Any) -> Look:
    """With another server of that name."""
    servers = [{**s, **more} if s["id"] == name else s for s in look.status["servers"]]
    return with_status(look, servers=servers)


def half(look: Look, name: str, successor: str = "", *, marked_only: bool = False) -> Look:
    """Its former UUID is fenced, and the status has it no more."""
    left = [each for each in look.status["servers"] if each["id"] != name]
    fence = {"id": name, "uuid": "former", "successor": successor, "marked_only": marked_only}
    return with_status(look, servers=left, replaced=[fence])


def next_of(look: Look) -> dict[str, Next]:
    return {each.name: each.next for each in replacements(look)}


def only(look: Look) -> Verdict:
    (found,) = replacements(look)
    return found


def test_servers_of_a_machine_that_stays_away_are_moved_one_after_the_other() -> None:
    """Who is needed by others goes first. Masters, and servers elsewhere, are none of them."""
    found = replacements(looked())
    assert [(each.name, each.next) for each in found] == [
        ("backup-3", Next.MOVE),
        ("safekeeper-3", Next.WAIT),
        ("tserver-3", Next.WAIT),
    ]
    assert found[0].uuids == ("backup3",)
    assert found[0].why == "machine c stays away"
    assert found[1].why == "backup-3 goes first"


def test_only_servers_of_the_spec_are_moved() -> None:
    """One that was taken out of it is not started again."""
    look = looked(kinds=("backup",))
    assert not replacements(replace(look, wanted=["backup-1", "backup-2"]))


def test_the_time_counts_from_when_the_machine_went_away() -> None:
    """By Ray's nodes; one that was back for a moment counts anew, and so does a new watcher."""
    since = since_when({}, ["c", "c"], 10.0, 5.0)
    assert since == {"c": 10.0}
    assert since_when(since, ["c"], 50.0, 10.0) == {"c": 10.0}
    back = since_when(since, [], 50.0, 45.0)
    assert back == {}
    assert since_when(back, ["c"], 60.0, 50.0) == {"c": 60.0}
    verdict = only(looked(kinds=("backup",), away_s={AWAY: AFTER_S - 20.0}))
    assert (verdict.next, verdict.in_s) == (Next.WAIT, 20.0)
    assert verdict.why == "its machine c may come back for 20 s more"


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The machine may have been there then."""
    since = since_when({}, ["c"], 10.0, 10.0)
    assert since_when(since, ["c"], 10.0 + LOOK_GAP_S, 10.0) == {"c": 10.0}
    late = 11.0 + LOOK_GAP_S
    assert since_when(since, ["c"], late, 10.0) == {"c": late}


def test_nothing_is_moved_while_all_machines_are_there() -> None:
    """However dead its servers are: Ray starts them again where they were."""
    assert not replacements(looked(away_s={}))


def test_a_server_that_the_masters_hear_is_not_moved() -> None:
    """Ray may have lost a machine that is not lost."""
    verdict = only(changed(looked(kinds=("backup",)), "backup-3", state="live"))
    assert (verdict.next, verdict.why) == (Next.WAIT, "the masters still hear it")


@pytest.mark.parametrize("heard", [False, None])
def test_a_leader_that_has_not_heard_everybody_moves_nobody(heard: bool | None) -> None:
    """A server may live, and not have had the time to say so. A follower does not know."""
    verdict = only(with_status(looked(kinds=("backup",)), heard_all=heard))
    assert (verdict.next, verdict.why) == (
        Next.WAIT,
        "the leader master has just begun to hear the servers",
    )


def of_backup_3(look: Look, *states: str) -> Look:
    """With so many UUIDs of the name, of which some are live."""
    others = [each for each in look.status["servers"] if each["id"] != "backup-3"]
    same = [server("backup", 3, uuid=f"u{n}", state=each) for n, each in enumerate(states)]
    return with_status(look, servers=[*others, *same])


def test_a_server_is_moved_only_if_it_is_known_whom_to_fence() -> None:
    """The masters may never have heard it."""
    verdict = only(of_backup_3(looked(kinds=("backup",))))
    assert verdict.next is Next.WAIT
    assert "the masters know no UUID of it" in verdict.why


def unheard(look: Look, name: str, *uuids: str, **more: Any) -> Look:
    """All masters were started again since they heard it; the catalog names these UUIDs."""
    left = [each for each in look.status["servers"] if each["id"] != name]
    entry = {"id": name, "marked_only": False, "maintenance": False, "retiring": False, **more}
    found = [*look.status.get("servers_not_heard", ()), *({**entry, "uuid": u} for u in uuids)]
    return with_status(look, servers=left, servers_not_heard=found)


@pytest.mark.parametrize("kind", ["backup", "safekeeper", "tserver"])
def test_one_that_only_the_catalog_names_is_fenced_by_that(kind: str) -> None:
    """All masters may have been started again since the machine went away. R2."""
    look = unheard(looked(tablet(), kinds=(kind,)), f"{kind}-3", "old", "older")
    verdict = only(look)
    assert (verdict.next, verdict.uuids) == (Next.MOVE, ("old", "older"))
    assert "just begun" in only(with_status(look, heard_all=False)).why
    both = looked(tablet(), kinds=(kind,))
    both = with_status(unheard(both, f"{kind}-3", "old"), servers=both.status["servers"])
    assert only(both).uuids == (f"{kind}3", "old")
    assert only(changed(both, f"{kind}-3", state="live")).why == "the masters still hear it"


def test_what_needs_the_disk_of_one_that_only_the_catalog_names_is_judged_as_of_any_other() -> None:
    """R4 to R6; and what operators said of it counts."""
    timeline = {"sk_set": [1, 3], "new_sk_set": None}
    look = looked(tablet(timeline=timeline), kinds=("safekeeper",))
    assert "no live majority of safekeepers" in only(unheard(look, "safekeeper-3", "old")).why
    look = looked(tablet(replicas=voters(True, False, True)), kinds=("tserver",))
    assert "no live majority of replicas" in only(unheard(look, "tserver-3", "tserver3")).why
    look = looked(tablet(loaded=0.5), kinds=("backup",))
    assert "still loaded" in only(unheard(look, "backup-3", "old")).why
    look = looked(kinds=("backup",))
    assert only(unheard(look, "backup-3", "old", maintenance=True)).why == "it is in maintenance"
    assert only(unheard(look, "backup-3", "old", retiring=True)).why == "it is to leave"


def test_a_mark_alone_does_not_say_whom_to_fence() -> None:
    """It may be of an earlier server of the name. With another UUID that the catalog has, or that
    was heard, it is fenced along. R2."""
    look = unheard(looked(kinds=("backup",)), "backup-3", "old", marked_only=True)
    verdict = only(look)
    assert verdict.next is Next.WAIT
    assert "only an operator's mark names a UUID of it (old)" in verdict.why
    assert only(unheard(look, "backup-3", "present")).uuids == ("old", "present")


@pytest.mark.parametrize("said", ["maintenance", "retiring"])
def test_what_was_said_of_an_earlier_server_of_the_name_is_not_of_this_one(said: str) -> None:
    """Marks are kept for ever. Alone it may be of this one: then it counts. R2."""
    there = looked(kinds=("backup",))
    marked = unheard(there, "backup-3", "old", marked_only=True, **{said: True})
    assert only(marked).next is Next.WAIT
    heard = with_status(marked, servers=there.status["servers"])
    assert (only(heard).next, only(heard).uuids) == (Next.MOVE, ("backup3",))
    named = only(unheard(marked, "backup-3", "present"))
    assert (named.next, named.uuids) == (Next.MOVE, ("present",))


def test_what_a_killed_step_left_is_fenced_also_if_only_the_catalog_names_it() -> None:
    """But not what may be the successor: that may have served before all masters were started
    again, and have what nothing else has."""
    look = half(looked(tablet(), kinds=("backup",)), "backup-3")
    assert only(unheard(look, "backup-3", "old")).uuids == ("old",)
    marked = unheard(look, "backup-3", "old", marked_only=True)
    assert (only(marked).next, only(marked).uuids) == (Next.MOVE, ())
    needed = half(looked(tablet(loaded=0.5), kinds=("backup",)), "backup-3")
    needed = unheard(needed, "backup-3", "successor")
    assert (only(needed).next, only(needed).uuids) == (Next.MOVE, ())


def test_a_fence_by_a_mark_alone_is_carried_on_only_where_the_server_was() -> None:
    """There its process is seen to have ended. It has given up nothing for sure, so others do not
    wait for it. R7."""
    look = half(looked(kinds=("backup", "tserver")), "backup-3", marked_only=True)
    found = replacements(look)
    assert [(e.name, e.next) for e in found] == [
        ("backup-3", Next.WAIT),
        ("tserver-3", Next.MOVE),
    ]
    assert "it stays on machine c" in found[0].why
    here = replace(look, away_s={}, there=())
    assert next_of(here) == {"backup-3": Next.START}
    late = replace(here, starting_s={"backup-3": START_LIMIT_S})
    assert next_of(late) == {"backup-3": Next.WAIT}
    heard = half(looked(kinds=("backup", "tserver")), "backup-3", "new", marked_only=True)
    assert next_of(heard)["tserver-3"] is Next.MOVE


def test_all_silent_uuids_of_the_name_are_fenced() -> None:
    """A server that lost its disk once is known by two, until the masters start again."""
    look = looked(kinds=("backup",))
    verdict = only(of_backup_3(look, "dead", "dead"))
    assert (verdict.next, verdict.uuids) == (Next.MOVE, ("u0", "u1"))
    verdict = only(of_backup_3(look, "dead", "live"))
    assert (verdict.next, verdict.why) == (Next.WAIT, "the masters still hear it")
    left = only(of_backup_3(half(look, "backup-3"), "dead", "live"))
    assert (left.next, left.uuids) == (Next.MOVE, ("u0",)), "those that a killed step left"


def test_without_a_time_only_what_is_half_replaced_is_carried_on() -> None:
    """It has no disk any more."""
    look = looked(kinds=("backup", "tserver"), replace_after_s=None)
    assert not replacements(look)
    assert next_of(half(look, "backup-3")) == {"backup-3": Next.MOVE}


@pytest.mark.parametrize(
    ("name", "mark", "why"),
    [
        ("tserver-3", {"maintenance": True}, "it is in maintenance"),
        ("tserver-3", {"retiring": True}, "it is to leave"),
        ("safekeeper-3", {"status": "decommissioned"}, "it is to leave"),
    ],
)
def test_what_operators_said_of_a_server_counts(name: str, mark: dict[str, Any], why: str) -> None:
    """In maintenance it is expected back; one that leaves is not wanted elsewhere."""
    verdict = only(changed(looked(kinds=(name.rpartition("-")[0],)), name, **mark))
    assert (verdict.next, verdict.why) == (Next.WAIT, why)


def test_a_configuration_store_moves_only_if_its_rows_are_elsewhere() -> None:
    """With SQLite they are in its folder."""
    look = looked(kinds=("cas_store",))
    verdict = only(look)
    assert (verdict.next, verdict.why) == (
        Next.WAIT,
        "its rows are in its folder on that machine",
    )
    assert only(replace(look, store_moves=True)).next is Next.MOVE


@pytest.mark.parametrize(
    ("timeline", "moves"),
    [
        ({"sk_set": [1, 2, 3], "new_sk_set": None}, True),
        ({"sk_set": [1, 3, 4], "new_sk_set": None}, False),
        ({"sk_set": [3], "new_sk_set": None}, False),
        ({"sk_set": [1, 3], "new_sk_set": None}, False),
        ({"sk_set": [1, 2, 3], "new_sk_set": [2, 3, 4]}, False),
        ({"sk_set": [3, 4, 5], "new_sk_set": [1, 2, 3]}, False),
        ({"sk_set": [1, 2], "new_sk_set": None}, True),
    ],
)
def test_each_log_keeps_a_live_majority_without_the_safekeeper(
    timeline: dict[str, Any], moves: bool
) -> None:
    """Of its members, and of those that it is to have."""
    look = looked(tablet(timeline=timeline), kinds=("safekeeper",))
    assert (only(look).next is Next.MOVE) == moves


@pytest.mark.parametrize(
    ("live", "moves"),
    [((True, True, False), True), ((True, False, False), False), ((True, False), False)],
)
def test_each_tablet_keeps_a_live_majority_without_the_tablet_server(
    live: tuple[bool, ...], moves: bool
) -> None:
    """Of its voters. Others that have a copy do not count."""
    others = [{"member": "non-voter", "server_live": True, "uuid": "x"}]
    look = looked(tablet(replicas=[*voters(*live), *others]), kinds=("tserver",))
    assert (only(look).next is Next.MOVE) == moves


def test_servers_of_other_machines_that_are_away_do_not_count_as_live() -> None:
    """The masters notice the servers of a machine one after the other. Machine b is away as well,
    and the masters count its servers as live."""

    def only_of_c(kind: str, *tablets: dict[str, Any]) -> Verdict:
        look = looked(*tablets, kinds=(kind,))
        look = replace(look, away_s={**look.away_s, "b": 1.0})
        (found,) = [each for each in replacements(look) if each.name == f"{kind}-3"]
        assert only(looked(*tablets, kinds=(kind,))).next is Next.MOVE
        assert found.next is Next.WAIT
        return found

    timeline = {"sk_set": [1, 2, 3], "new_sk_set": None}
    found = only_of_c("safekeeper", tablet(timeline=timeline))
    assert "no live majority of safekeepers" in found.why
    found = only_of_c("tserver", tablet(replicas=voters(True, True, False)))
    assert "no live majority of replicas" in found.why
    found = only_of_c("backup", tablet())
    assert "not noticed yet that backup-2 is away" in found.why


def test_a_replica_on_the_server_itself_does_not_count() -> None:
    """Whatever is believed of it."""
    look = looked(tablet(replicas=voters(False, True, True)), kinds=("tserver",))
    assert "no live majority of replicas" in only(look).why


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"state": "recovering"}, "is not served"),
        ({"reported": False}, "it is not known yet what"),
        ({"loaded": 0.999}, "are still loaded from backups"),
        ({"segments_lacking": 1}, "are on no backup that lives"),
    ],
)
def test_a_backup_is_not_given_up_while_something_may_need_it(
    state: dict[str, Any], why: str
) -> None:
    """Its disk may come back with the machine. The same keeps no tablet server."""
    look = looked(tablet(), tablet(**state), kinds=("backup",))
    verdict = only(look)
    assert verdict.next is Next.WAIT
    assert why in verdict.why
    assert only(looked(tablet(**state), kinds=("tserver",))).next is Next.MOVE


def test_shortages_are_waited_for_where_the_other_backups_can_end_them() -> None:
    """With too few of them, another backup is what ends them."""
    lacks = {"table": "t", "number": 1, "segments_unheld": 0}
    look = with_status(looked(tablet(), kinds=("backup",)), shortages=[lacks])
    assert only(look).why == "the other backups are making replicas of segments again"
    assert only(replace(look, copies=3)).next is Next.MOVE
    needed = with_status(look, shortages=[lacks, {**lacks, "segments_unheld": 1}])
    found = only(replace(needed, copies=3))
    assert found.next is Next.WAIT, "what was loaded may be on that disk alone"
    assert "on no backup that lives" in found.why


def test_a_move_that_was_left_half_done_is_carried_on_before_others() -> None:
    """Fenced, and nobody was heard in its place: whatever the tablets lack, as it has nothing."""
    look = half(looked(tablet(state="recovering")), "safekeeper-3")
    assert next_of(look) == {
        "safekeeper-3": Next.MOVE,
        "backup-3": Next.WAIT,
        "tserver-3": Next.WAIT,
    }
    assert not replacements(look)[0].uuids, "it is fenced already"


def test_a_half_moved_server_without_a_process_is_started_where_it_was_written_down() -> None:
    """Its machine is live: no machine that is away says that there is something to do."""
    look = half(looked(kinds=("backup",)), "backup-3")
    placed = {**look.placed, "backup-3": "a"}
    there = [name for name in look.there if name != "backup-3"]
    assert only(replace(look, placed=placed, there=there)).next is Next.START
    assert only(replace(look, placed=placed)).next is Next.WAIT
    assert only(replace(look, placed=placed)).why == "it starts on a"


def test_a_start_that_fails_goes_to_another_machine() -> None:
    """After a while in which it did not listen."""
    look = half(looked(kinds=("backup",)), "backup-3")
    look = replace(look, placed={**look.placed, "backup-3": "a"})
    starting = replace(look, starting_s={"backup-3": START_LIMIT_S - 1.0})
    assert only(starting).next is Next.WAIT
    late = replace(look, starting_s={"backup-3": START_LIMIT_S})
    assert only(late).next is Next.MOVE
    assert only(replace(late, there=())).next is Next.MOVE, "what keeps it from having an actor"


def test_a_step_that_failed_a_moment_ago_keeps_no_other_server() -> None:
    """Unless it is half replaced: then all others wait for it."""
    look = replace(looked(kinds=("backup", "tserver")), paused={("backup-3", Next.MOVE): "no room"})
    assert next_of(look) == {"backup-3": Next.WAIT, "tserver-3": Next.MOVE}
    assert replacements(look)[0].why == "no room"
    assert next_of(half(look, "backup-3")) == {"backup-3": Next.WAIT, "tserver-3": Next.WAIT}
    other = replace(look, paused={("backup-3", Next.START): "no room"})
    assert next_of(other) == {"backup-3": Next.MOVE, "tserver-3": Next.WAIT}


def test_the_next_server_waits_until_the_one_before_was_heard() -> None:
    """Also while that one starts."""
    look = half(looked(kinds=("backup", "tserver")), "backup-3")
    look = replace(look, placed={**look.placed, "backup-3": "a"})
    assert next_of(look) == {"backup-3": Next.WAIT, "tserver-3": Next.WAIT}
    done = half(look, "backup-3", successor="new")
    assert next_of(done) == {"tserver-3": Next.MOVE}


def test_a_server_that_was_moved_before_is_moved_again_by_the_same_rules() -> None:
    """Its fence of then has a successor, which has data now."""
    look = looked(tablet(loaded=0.5), kinds=("backup",))
    fence = {"id": "backup-3", "uuid": "former", "successor": "backup3"}
    verdict = only(with_status(look, replaced=[fence]))
    assert "still loaded" in verdict.why
