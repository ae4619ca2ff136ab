"""Which step comes next when an operator replaces a server, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stelae.coordinator.apply.plan import TableIs
from stelae.coordinator.apply.replaces import (
    QUIET_S,
    Kept,
    ReplaceAct,
    ReplaceLook,
    count_left,
    former_of,
    is_unknown,
    next_of_replacement,
    quiet_s,
    refusals_of_master,
    refusals_of_replacement,
)
from stelae.core.schema.durability import Durability, replicas, segments, wal
from stelae.core.schema.own_tables import AUDIT_TABLE

MEMBERS = {"safekeeper": 3, "tserver": 3}


def server(kind: str, number: int, **more: Any) -> dict[str, Any]:
    """As the status has it: live, and with something of everybody's."""
    found: dict[str, Any] = {
        "kind": kind, "id": f"{kind}-{number}", "uuid": f"{kind}{number}", "state": "live",
        "silent_s": 0.1, "retiring": False, "memory_bytes": 0, "memory_limit_bytes": 0,
    }  # fmt: skip
    match kind:
        case "tserver":
            found |= {"tablets": 2, "indexlets": 1, "maintenance": False}
        case "backup":
            found |= {"media": ["disk"], "segments": 3, "drained": False}
        case "safekeeper":
            found |= {"safekeeper_id": number, "status": "active", "timelines": 2}
        case "master":
            found |= {"voter": True}
    return {**found, **more}


def tablet(**more: Any) -> dict[str, Any]:
    """One that lacks nothing, with replicas on all tablet servers and a log on all safekeepers."""
    voters = [
        {"member": "voter", "server_live": True, "uuid": f"tserver{n}", "server": f"tserver-{n}"}
        for n in (1, 2, 3)
    ]
    found: dict[str, Any] = {
        "table": "t", "number": 1, "state": "running", "reported": True, "loaded": 1.0,
        "segments_lacking": 0, "inherits": "", "leader": "tserver-1", "memory_bytes": 0,
        "replicas": voters, "timeline": {"sk_set": [1, 2, 3]},
    }  # fmt: skip
    return {**found, **more}


def look_at(
    name: str, *durabilities: Durability, tablets: list[dict[str, Any]] | None = None, **more: Any
) -> ReplaceLook:
    """A cluster of three servers of each kind, one of which is to be replaced."""
    kinds = ("master", "tserver", "backup", "safekeeper")
    servers = [server(kind, number) for kind in kinds for number in (1, 2, 3)]
    status = {
        "heard_all": True,
        "servers": [*servers, server("cas_store", 1)],
        "tablets": [tablet()] if tablets is None else tablets,
        "shortages": [],
        "replaced": [],
        "backups_not_heard": [],
    }
    found = ReplaceLook(
        name=name,
        former=(name.replace("-", ""),),
        status=status,
        tables=[TableIs("t", each) for each in durabilities],
        kept=Kept(copies=2),
        has_actor=True,
    )
    return replace(found, **more)


def with_status(look: ReplaceLook, **more: Any) -> ReplaceLook:
    return replace(look, status={**look.status, **more})


def changed(look: ReplaceLook, name: str, **more: Any) -> ReplaceLook:
    servers = [{**s, **more} if s["id"] == name else s for s in look.status["servers"]]
    return with_status(look, servers=servers)


def dead(look: ReplaceLook, silent_s: float = QUIET_S, **more: Any) -> ReplaceLook:
    """Its server is dead, also as tablets see it."""
    uuid = look.name.replace("-", "")
    look = changed(look, look.name, state="dead", silent_s=silent_s, **more)
    tablets = [
        {**t, "replicas": [{**r, "server_live": r["server_live"] and r["uuid"] != uuid}
                           for r in t["replicas"]]}
        for t in look.status["tablets"]
    ]  # fmt: skip
    return with_status(look, tablets=tablets)


def fenced(look: ReplaceLook, successor: str = "", *, goes_on: bool = True) -> ReplaceLook:
    """Its UUIDs are fenced, and the status has them no more."""
    left = [s for s in look.status["servers"] if s["uuid"] not in look.former]
    fences = [
        {"id": look.name, "uuid": uuid, "successor": successor, "goes_on": goes_on}
        for uuid in look.former
    ]
    if successor:
        left.append(server(look.kind, 1, id=look.name, uuid=successor))
    return with_status(look, servers=left, replaced=fences)


def act(look: ReplaceLook) -> ReplaceAct:
    return next_of_replacement(look).act


def waits(look: ReplaceLook) -> str:
    """Why it waits."""
    step = next_of_replacement(look)
    assert step.act is ReplaceAct.WAIT
    return step.why


# ---- a server that lives --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "begun", "empty"),
    [
        ("tserver-2", {"retiring": True}, {"tablets": 0, "indexlets": 0}),
        ("backup-2", {"retiring": True}, {"segments": 0, "drained": True}),
        ("safekeeper-2", {"status": "decommissioned"}, {"timelines": 0}),
    ],
)
def test_one_that_lives_is_drained_before_it_ends(
    name: str, begun: dict[str, Any], empty: dict[str, Any]
) -> None:
    """And it ends only once it leaves *and* has nothing: then it takes nothing any more."""
    look = look_at(name)
    assert act(look) is ReplaceAct.DRAIN
    assert act(changed(look, name, **empty)) is ReplaceAct.DRAIN
    assert "are left" in waits(changed(look, name, **begun))
    gone = changed(look, name, **begun, **empty)
    assert act(gone) is ReplaceAct.END
    assert act(dead(gone, silent_s=0.0)) is ReplaceAct.FENCE, "nothing was there when it died"


def test_one_whose_process_has_ended_waits_until_the_masters_notice() -> None:
    """It is not ended twice, whichever way it was to go."""
    for drains in (True, False):
        look = look_at("backup-2", segments("disk", "disk"), has_actor=False, drains=drains)
        step = next_of_replacement(look)
        assert step.act is ReplaceAct.WAIT
        assert "have not noticed yet" in step.why


def test_of_several_disks_the_one_that_came_back_is_drained() -> None:
    """All were dead when the replacement began."""
    look = replace(look_at("tserver-2"), former=("another", "tserver2"))
    step = next_of_replacement(look)
    assert (step.act, step.uuids) == (ReplaceAct.DRAIN, ("tserver2",))


def test_each_thing_of_a_tablet_server_counts() -> None:
    """Tablets and indexlets."""
    for left in ({"tablets": 1, "indexlets": 0}, {"tablets": 0, "indexlets": 1}):
        look = changed(look_at("tserver-2"), "tserver-2", retiring=True, **left)
        assert waits(look) == "1 tablets are left"


def test_a_backup_is_drained_by_its_own_word() -> None:
    """One that has nothing for a moment may take something yet."""
    look = changed(look_at("backup-2"), "backup-2", retiring=True, segments=0)
    assert waits(look) == "0 segments are left"


def test_a_safekeeper_has_what_it_holds_and_what_the_catalog_names() -> None:
    """A log that names it counts it in its majority."""
    look = changed(look_at("safekeeper-2"), "safekeeper-2", status="decommissioned", timelines=0)
    assert waits(replace(look, logs_left=2)) == "2 logs are left"
    assert waits(changed(look, "safekeeper-2", timelines=1)) == "1 logs are left"


def test_a_drain_that_was_taken_back_is_not_begun_again() -> None:
    """Somebody wants the server: two would mark it and take the mark back, in turn."""
    assert act(look_at("tserver-2", has_drained=True)) is ReplaceAct.TAKEN_BACK


def test_without_a_drain_nothing_may_lack() -> None:
    """Then it ends; and what it had is known only once its death is known to all."""
    look = look_at("tserver-2", drains=False)
    assert waits(replace(look, unwell="1 tablets lack replicas")) == "1 tablets lack replicas"
    assert act(look) is ReplaceAct.END
    assert waits(dead(look, silent_s=QUIET_S - 0.1)).startswith("it has just died")
    assert act(dead(look)) is ReplaceAct.FENCE


def test_a_configuration_store_with_postgresql_has_nothing_to_drain() -> None:
    """It ends at once, and its rows stay."""
    look = look_at("cas_store-1", kept=Kept(copies=2, store_moves=True))
    assert not refusals_of_replacement(look)
    assert act(look) is ReplaceAct.END
    assert act(dead(look)) is ReplaceAct.FENCE


def test_nothing_is_judged_by_a_leader_that_has_just_begun() -> None:
    """It knows of nothing that lacks: neither is a server ended, nor is a replacement done."""
    states = (
        look_at("tserver-2"),
        dead(look_at("tserver-2")),
        fenced(look_at("tserver-2", has_actor=False)),
        fenced(look_at("tserver-2"), "new"),
    )
    for look in states:
        for heard_all in (False, None):
            assert "just begun" in waits(with_status(look, heard_all=heard_all))
        assert act(look) is not ReplaceAct.WAIT


# ---- a server that is dead ------------------------------------------------------------------


def test_a_dead_backup_is_replaced_only_if_nothing_needs_its_disk() -> None:
    """Segments and logs that only this backup has are never given up."""
    needed: dict[str, dict[str, Any]] = {
        "is not served": {"state": "recovering"},
        "not known yet what": {"reported": False},
        "still loaded from backups": {"loaded": 0.999},
        "split from": {"inherits": "log"},
        "on no backup that lives": {"segments_lacking": 1},
    }
    for text, more in needed.items():
        assert text in waits(dead(look_at("backup-2", tablets=[tablet(), tablet(**more)])))
    look = dead(look_at("backup-2"))
    shortage = {"number": 1, "table": "t", "segments_unheld": 0}
    unheld = {**shortage, "segments_unheld": 1}
    assert "in its server's memory" in waits(with_status(look, shortages=[shortage, unheld]))
    assert "are making replicas" in waits(with_status(look, shortages=[shortage]))
    too_few = replace(with_status(look, shortages=[shortage]), kept=Kept(copies=3))
    assert act(too_few) is ReplaceAct.FENCE, "only a new backup helps"
    assert "ends of logs" in waits(replace(look, kept=Kept(2, has_lone_blobs=True)))
    assert next_of_replacement(look).uuids == ("backup2",)


def test_a_dead_member_is_replaced_only_while_the_others_are_a_majority() -> None:
    """Of a tablet's voters, and of a log's safekeepers."""
    for name in ("tserver-2", "safekeeper-2"):
        look = dead(look_at(name))
        assert act(look) is ReplaceAct.FENCE
        kind = look.kind
        other = dead(replace(look, name=f"{kind}-3"))
        assert "no live majority" in waits(replace(other, name=name))


def test_a_server_of_which_the_masters_know_no_uuid_waits() -> None:
    """It takes one to fence it. A backup is known by the register as well."""
    look = look_at("tserver-2", former=("unknown",))
    assert "do not know unknown" in waits(look)
    backup = look_at("backup-2", former=("b",))
    not_heard = with_status(backup, backups_not_heard=[{"id": "backup-2", "uuid": "b"}])
    assert act(not_heard) is ReplaceAct.FENCE


def test_a_death_is_believed_once_all_owners_know_it() -> None:
    """Not before the masters call it dead, and some heartbeats after."""
    assert quiet_s(2.0, 0.2) == QUIET_S
    assert quiet_s(20.0, 2.0) == 28.0


# ---- what was begun goes on -----------------------------------------------------------------


def test_a_fenced_one_is_started_and_then_waited_for() -> None:
    """Until the new server lives and nothing lacks, as a leader that heard all servers says."""
    look = fenced(look_at("safekeeper-2"))
    assert act(replace(look, has_actor=False)) is ReplaceAct.START
    assert waits(look) == "the new server starts"
    heard = fenced(look_at("safekeeper-2"), "new")
    assert act(heard) is ReplaceAct.DONE
    assert waits(replace(heard, unwell="1 tablets lack replicas")) == "1 tablets lack replicas"
    assert "still name the former" in waits(replace(heard, logs_left=1))
    assert "does not live" in waits(changed(heard, "safekeeper-2", state="dead"))


def test_a_replacement_is_of_the_uuids_that_it_began_with() -> None:
    """Given again by name it goes on until it is noted as whole; by the former UUID in any case."""
    look = look_at("backup-2")
    assert former_of(look.status, "backup-2", "backup-2") == ("backup2",)
    half = fenced(look).status
    assert former_of(half, "backup-2", "backup-2") == ("backup2",)
    begun = fenced(look, "new").status
    for given in ("backup-2", "backup2"):
        assert former_of(begun, "backup-2", given) == ("backup2",)
    whole = fenced(look, "new", goes_on=False).status
    assert former_of(whole, "backup-2", "backup-2") == ("new",), "once more"
    assert former_of(whole, "backup-2", "backup2") == ("backup2",)
    died = changed(fenced(look, "new"), "backup-2", state="dead").status
    assert former_of(died, "backup-2", "backup-2") == ("new",), "the new one is replaced too"


def test_all_dead_disks_of_a_name_are_meant_but_not_those_of_one_that_lives() -> None:
    """Masters know one UUID for each disk that the server had."""
    look = look_at("backup-2")
    older = [*look.status["servers"], server("backup", 2, uuid="older", state="dead")]
    look = with_status(look, servers=older)
    assert former_of(look.status, "backup-2", "backup-2") == ("backup2",)
    silent = changed(look, "backup-2", state="dead")
    silent = with_status(silent, backups_not_heard=[{"id": "backup-2", "uuid": "oldest"}])
    found = former_of(silent.status, "backup-2", "backup-2")
    assert found == ("backup2", "older", "oldest")
    assert former_of(silent.status, "backup-2", "older") == ("older",)
    assert former_of(silent.status, "backup-4", "backup-4") == ()


def test_one_that_only_the_catalog_names_is_fenced_by_that() -> None:
    """No master has heard it; what needs its disk is judged as for any dead one. R10."""
    look = look_at("safekeeper-2")
    left = [each for each in look.status["servers"] if each["id"] != "safekeeper-2"]
    entry = {"kind": "safekeeper", "id": "safekeeper-2", "uuid": "safekeeper2"}
    look = with_status(look, servers=left, servers_not_heard=[entry], backups_not_heard=[entry])
    assert former_of(look.status, "safekeeper-2", "safekeeper-2") == ("safekeeper2",)
    assert next_of_replacement(look).uuids == ("safekeeper2",)
    assert act(look) is ReplaceAct.FENCE
    assert "do not know" in waits(with_status(look, servers_not_heard=[], backups_not_heard=[]))


def test_a_mark_alone_does_not_say_which_server_is_replaced() -> None:
    """It may be left from an earlier server of the name: the present one is as good as unknown.
    Any other entry of the catalog is the present one's, as is a UUID that was heard. R10."""
    marked = {"kind": "tserver", "id": "tserver-2", "uuid": "old", "marked_only": True}
    member = {"kind": "tserver", "id": "tserver-2", "uuid": "member", "marked_only": False}
    status = {"servers": [], "servers_not_heard": [marked, member]}
    assert is_unknown(status, ())
    assert is_unknown(status, ("old",))
    assert not is_unknown(status, ("old", "member"))
    assert not is_unknown(status, ("heard", "old"))
    earlier = {each: member[each] for each in ("kind", "id", "uuid")}
    assert not is_unknown({"servers_not_heard": [earlier]}, ("member",)), "an earlier version's"
    fence = {"uuid": "old", "successor": "", "marked_only": True}
    assert is_unknown({"replaced": [fence]}, ("old",)), "a replacement that was interrupted"
    assert not is_unknown({"replaced": [{**fence, "marked_only": False}]}, ("old",))
    assert not is_unknown({"replaced": [{**fence, "successor": "new"}]}, ("old",))


def test_one_that_nobody_knows_is_ended_and_then_started_without_a_fence() -> None:
    """Nothing needs its disk, and there is no UUID. Whoever is heard before the new one is started
    may be the former one, and refuses it. R10."""
    look = replace(look_at("backup-2"), former=())
    heard = look
    left = [each for each in look.status["servers"] if each["id"] != "backup-2"]
    look = with_status(look, servers=left)
    assert act(look) is ReplaceAct.END
    assert act(replace(look, has_actor=False)) is ReplaceAct.START
    assert waits(replace(look, has_started=True)) == "the new server does not live"
    assert act(replace(heard, has_started=True)) is ReplaceAct.DONE
    assert not refused(look)
    assert not refused(replace(heard, has_started=True))
    assert "heard it meanwhile" in refused(heard)
    assert "just begun" in waits(with_status(look, heard_all=False))
    assert "SQLite" in refused(replace(look, name="cas_store-1"))


@pytest.mark.parametrize(
    ("name", "left"),
    [("tserver-2", 3), ("backup-2", 3), ("safekeeper-2", 2), ("cas_store-1", None)],
)
def test_what_is_left_is_counted_of_live_servers_of_kinds_that_are_drained(
    name: str, left: int | None
) -> None:
    """A configuration store has no such field in the status. Nothing is left of one that died."""
    look = look_at(name)
    assert count_left(look) == left
    assert count_left(changed(look, name, state="dead")) is None


# ---- refusals -------------------------------------------------------------------------------


def refused(look: ReplaceLook) -> str:
    return "; ".join(refusals_of_replacement(look))


def test_sqlite_is_refused_with_the_way_out() -> None:
    """Its rows would be gone."""
    text = refused(look_at("cas_store-1"))
    assert "`stelae server restart cas_store-1`" in text
    assert "restore a backup" in text


def test_a_server_in_maintenance_is_refused() -> None:
    """Somebody works on it."""
    look = changed(look_at("tserver-2", tablets=[]), "tserver-2", maintenance=True)
    assert "`stelae server maintenance tserver-2 off`" in refused(look)
    assert "maintenance" in refused(dead(look))


def test_a_replica_that_has_nowhere_to_go_is_refused_before_the_drain() -> None:
    """It would never end. With one more server, or once the masters drain it, it is not."""
    look = look_at("tserver-2")
    assert "tablet 1 of 't' has nowhere to go" in refused(look)
    assert "--no-drain" in refused(look)
    assert not refused(changed(look, "tserver-2", retiring=True))
    more = with_status(look, servers=[*look.status["servers"], server("tserver", 4)])
    assert not refused(more)
    for marks in ({"retiring": True}, {"maintenance": True}, {"state": "dead"}):
        assert "nowhere to go" in refused(changed(more, "tserver-4", **marks))
    assert not refused(dead(look))


def test_where_no_other_server_takes_its_tablets_a_drain_is_refused() -> None:
    """Before it is marked: it would wait for ever. The text names the ways out that there are."""
    owned = tablet(replicas=(), leader="tserver-2")
    alone = look_at("tserver-2", tablets=[owned])
    for marks in ({"retiring": True}, {"maintenance": True}, {"state": "dead"}):
        look = changed(changed(alone, "tserver-1", **marks), "tserver-3", **marks)
        text = refused(look)
        assert "its 3 tablets have nowhere to go" in text
        assert "`stelae apply`" in text
        assert "--no-drain" not in text, "a stop is refused as well"
        assert "--no-drain" in refused(with_status(look, tablets=[]))
        for left in ({"tablets": 0, "indexlets": 1}, {"tablets": 1, "indexlets": 0}):
            assert "nowhere to go" in refused(changed(look, "tserver-2", **left))
        assert not refused(changed(look, "tserver-2", tablets=0, indexlets=0))
        assert not refused(changed(alone, "tserver-1", **marks)), "tserver-3 takes them"


def test_stelaes_own_tablets_count_where_another_server_takes_them() -> None:
    """As for a retirement: else the only tablet server would never have nothing left."""
    at = {"leader": "tserver-2", "table": AUDIT_TABLE, "replicas": ()}
    look = look_at("tserver-2", tablets=[tablet(**at)])
    look = changed(look, "tserver-2", tablets=1, indexlets=0, retiring=True)
    assert waits(look) == "1 tablets are left"
    alone = changed(changed(look, "tserver-1", state="dead"), "tserver-3", maintenance=True)
    assert act(alone) is ReplaceAct.END
    asked = changed(alone, "tserver-2", retiring=False)
    assert not refused(asked)
    assert act(asked) is ReplaceAct.DRAIN
    others: list[dict[str, Any]] = [
        {"table": "t"},
        {"leader": "tserver-1"},
        {"address": "another process"},
        {"state": "recovering"},
        {"replicas": tablet()["replicas"]},
    ]
    for other in others:
        held = with_status(alone, tablets=[tablet(**{**at, **other})])
        assert waits(held) == "1 tablets are left", other


def test_rows_in_memory_alone_are_refused_both_ways() -> None:
    """A drain does not move them."""
    look = look_at("tserver-2", tablets=[], in_memory="rows of m are in its memory only")
    for drains in (True, False):
        assert "rows of m" in refused(replace(look, drains=drains))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (lambda look: dead(replace(look, name="tserver-3")), "no live majority of replicas"),
        (lambda look: look, ""),
    ],
)
def test_without_a_drain_the_rules_of_a_stop_hold(
    more: Callable[[ReplaceLook], ReplaceLook], text: str
) -> None:
    """A live majority of each tablet's voters without it."""
    look = replace(more(look_at("tserver-2", replicas(3), drains=False)), name="tserver-2")
    assert text in refused(look)
    assert bool(text) == bool(refused(look))


def test_without_a_drain_a_backup_has_nothing_alone() -> None:
    """With one copy of each segment, or of each blob, it may: a drain moves them."""
    two = look_at("backup-2", segments("disk", "disk"), wal(3), drains=False)
    assert not refused(two)
    one = look_at("backup-2", segments("disk"), drains=False)
    assert "on one backup each, and may be on this one" in refused(one)
    assert refused(one).endswith("replace it without --no-drain")
    own = replace(one, tables=[TableIs(AUDIT_TABLE, segments("disk"))])
    assert f"or have two (`stelae table alter {AUDIT_TABLE} --durability`)" in refused(own)
    assert not refused(replace(one, drains=True))
    blobs = replace(two, kept=Kept(2, has_lone_blobs=True))
    assert "evicted ends of logs" in refused(blobs)
    assert not refused(replace(blobs, drains=True))


def test_a_master_is_replaced_while_the_others_are_a_majority() -> None:
    """Or where a replacement has taken it out of the set, and the set is too small."""
    look = look_at("backup-1")
    members = {f"master-{n}": f"master{n}" for n in (1, 2, 3)}
    assert not refusals_of_master("master-2", look.status, members, 3)
    short = changed(look, "master-3", state="dead").status
    assert "1 of 3 masters would live" in refusals_of_master("master-2", short, members, 3)[0]
    assert not refusals_of_master("master-3", short, members, 3)
    no_voter = changed(look, "master-3", voter=False).status
    assert "1 of 2" in refusals_of_master("master-2", no_voter, members, 3)[0]
    gone = {name: uuid for name, uuid in members.items() if name != "master-2"}
    assert not refusals_of_master("master-2", look.status, gone, 3)
    assert "`stelae master add`" in refusals_of_master("master-2", look.status, gone, 2)[0]
