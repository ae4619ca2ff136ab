"""`stelae check` of tables with ``wal(n)``: what is found in what masters and safekeepers say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from stelae.client.check.check import judge
from stelae.client.check.facts import (
    Facts,
    LogFacts,
    LogsAnswer,
    ServerFacts,
    Severity,
    StatusFacts,
    TabletFacts,
    Verdict,
)
from stelae.client.check.masters import judge_servers
from stelae.client.check.tablets import judge_tablets
from stelae.client.check.timelines import BEHIND_S, NO_SPARE, ask_logs, judge_logs
from stelae.core.errors import Unavailable
from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.messages.safekeepers import (
    LIST_TIMELINES,
    HeldTimeline,
    TimelineList,
    TimelinePresence,
)
from stelae.core.messages.timelines import MigrationProgress
from stelae.core.records.configurations import TimelineId
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration
from tests.unit.client.routing.scripted import Scripted

V = Verdict
TABLET = TabletId("t0")
OTHER = TabletId("t1")
KEEPERS = 5


def at(generation: int, *sets: tuple[int, ...]) -> TimelineConfiguration:
    old, *new = [tuple(map(SafekeeperId, members)) for members in sets]
    return TimelineConfiguration(generation, old, new[0] if new else None)


def tablet(
    timeline: TimelineConfiguration | None, tablet_id: TabletId = TABLET, number: int = 0
) -> TabletFacts:
    return TabletFacts(
        tablet_id, "w", number, "running", 3, "t", "t:1", progress="serving", timeline=timeline
    )


def keeper(number: int, *, live: bool = True, status: str = "active", **more: Any) -> ServerFacts:
    name, state = f"k{number}", "live" if live else "dead"
    return ServerFacts(
        "safekeeper",
        name,
        ServerUuid(name),
        state,
        Address(f"{name}:1"),
        safekeeper_id=SafekeeperId(number),
        status=status,
        **more,
    )


def status_of(
    *tablets: TabletFacts, dead: tuple[int, ...] = (), moves: tuple[MigrationProgress, ...] = ()
) -> StatusFacts:
    keepers = [keeper(n, live=n not in dead) for n in range(1, KEEPERS + 1)]
    servers = (ServerFacts("tserver", "t", ServerUuid("t"), "live"), *keepers)
    return StatusFacts("c", 1, servers, (), tablets, moves)


def held(
    configuration: TimelineConfiguration | None, flush: int = 9, commit: int = 9, **more: Any
) -> HeldTimeline:
    return HeldTimeline(
        TABLET,
        TimelinePresence.RESIDENT,
        configuration,
        flush_lsn=flush,
        commit_lsn=commit,
        **more,
    )


def logs(by_keeper: Mapping[int, HeldTimeline | None], reached: int = 9) -> LogFacts:
    """What safekeepers say; one that is not named does not answer."""
    answers = []
    for number in range(1, KEEPERS + 1):
        one = by_keeper.get(number)
        has = {} if one is None else {TABLET: one}
        error = "" if number in by_keeper else "silence"
        answers.append(LogsAnswer(SafekeeperId(number), f"k{number}", has, error))
    return LogFacts(tuple(answers), {TABLET: reached})


FIVE = at(5, (1, 2, 3))
WHOLE = held(FIVE)
FAILED = HeldTimeline(TABLET, TimelinePresence.FAILED, problem="wal/0: bad CRC")
CASES: dict[str, tuple[TimelineConfiguration, LogFacts, list[tuple[Verdict, str]]]] = {
    "all is well": (FIVE, logs(dict.fromkeys((1, 2, 3), WHOLE)), []),
    "one that does not answer is told of elsewhere": (FIVE, logs({1: WHOLE, 2: WHOLE}), []),
    "evicted": (
        FIVE,
        logs(
            dict.fromkeys(
                (1, 2, 3), msgspec.structs.replace(WHOLE, presence=TimelinePresence.EVICTED)
            )
        ),
        [],
    ),
    "one has nothing": (
        FIVE,
        logs({1: WHOLE, 2: WHOLE, 3: None}),
        [(V.UNDER_REPLICATED, "safekeeper 3 does not have its log")],
    ),
    "two have nothing": (
        FIVE,
        logs({1: WHOLE, 2: None, 3: None}),
        [
            (V.UNDER_REPLICATED, "safekeeper 2 does not have its log"),
            (V.UNDER_REPLICATED, "safekeeper 3 does not have its log"),
            (V.UNAVAILABLE, "safekeepers [1] alone have its log: no majority"),
        ],
    ),
    "one has failed": (
        FIVE,
        logs({1: WHOLE, 2: FAILED, 3: WHOLE}),
        [
            (
                V.UNDER_REPLICATED,
                "safekeeper 2 has given its log up: wal/0: bad CRC; to move it: stelae safekeeper "
                "migrate --tablet t0 --to",
            )
        ],
    ),
    "one is behind": (
        FIVE,
        logs({1: WHOLE, 2: WHOLE, 3: held(FIVE, 7, 5)}),
        [(V.UNDER_REPLICATED, "safekeeper 3 is 2 entries of its log behind")],
    ),
    "one knows an older generation": (
        FIVE,
        logs({1: WHOLE, 2: WHOLE, 3: held(at(4, (1, 2, 4), (1, 2, 3)))}),
        [(V.RECOVERING, "safekeeper 3 knows its members of generation 4, and not those of 5")],
    ),
    "they know a newer generation": (
        FIVE,
        logs({1: held(at(6, (1, 2, 3), (1, 2, 4))), 2: WHOLE, 3: None}),
        [(V.RECOVERING, "safekeepers know generation 6 of its log, and the masters 5 yet")],
    ),
    "one generation has other members": (
        FIVE,
        logs({1: WHOLE, 2: WHOLE, 3: held(at(5, (3, 4, 5)))}),
        [(V.MISMATCH, "has the members [1, 2, 3] by the masters, and [3, 4, 5] by safekeeper 3")],
    ),
    "members are no list": (
        FIVE,
        logs({1: WHOLE, 2: WHOLE, 3: held(at(5, (3, 2, 1)))}),
        [],
    ),
    "new members are being brought up": (
        at(6, (1, 2, 3), (1, 2, 4)),
        logs({**dict.fromkeys((1, 2, 3), held(at(6, (1, 2, 3), (1, 2, 4)))), 4: None}),
        [(V.RECOVERING, "its log moves to safekeepers [1, 2, 4]")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_log_is_whole_on_all_its_members(case: str) -> None:
    """By what each member says, in the newest configuration; each lack is told with its member."""
    timeline, facts, expected = CASES[case]
    (judged,) = judge_tablets(status_of(tablet(timeline)), facts)
    assert [verdict for verdict, _ in judged.reasons] == [verdict for verdict, _ in expected]
    for (_, text), (_, wanted) in zip(judged.reasons, expected, strict=True):
        assert wanted in text


def test_a_move_that_does_not_go_on_says_why() -> None:
    """Its problems are those of the master that drives it."""
    joint = at(6, (1, 2, 3), (1, 2, 4))
    timeline = TimelineId(TableId("w"), TABLET)
    members = joint.sk_set
    problems = {"copy the timeline to 4": "no space"}
    progress = MigrationProgress(
        timeline, 5, "pull", 6, members, None, (), problems, started_s=0.0, moved_s=0.0
    )
    (judged,) = judge_tablets(status_of(tablet(joint), moves=(progress,)))
    assert judged.reasons == (
        (
            V.RECOVERING,
            "its log moves to safekeepers [1, 2, 4]; copy the timeline to 4: no space",
        ),
    )


@pytest.mark.parametrize(
    ("dead", "hint"), [((3,), False), ((3, 4), False), ((3, 4, 5), True), ((3, 5), False)]
)
def test_a_lost_member_that_nobody_can_replace_is_told_so(
    dead: tuple[int, ...], hint: bool
) -> None:
    """Masters take another by themselves, if there is one."""
    (judged,) = judge_tablets(status_of(tablet(FIVE), dead=dead))
    ((verdict, text),) = judged.reasons
    assert verdict is V.UNDER_REPLICATED
    assert text.endswith(NO_SPARE) is hint


def test_what_is_left_where_it_should_not_be_is_a_note_with_its_repair() -> None:
    """Only what is older than what the masters know: a newer one is the next step of a move."""
    facts = logs({4: held(at(4, (1, 2, 4))), 5: held(at(6, (1, 2, 5)))})
    found = judge_logs(status_of(tablet(FIVE)), facts)
    assert [(each.subject, each.severity) for each in found] == [
        ("k1", Severity.WARNING),
        ("k2", Severity.WARNING),
        ("k3", Severity.WARNING),
        ("k4", Severity.NOTE),
    ]
    assert "does not say which logs it has: silence" in found[0].text
    assert "has 1 logs of which it is no member" in found[3].text
    assert found[3].hint.endswith("stelae safekeeper scrub 4")
    joint = at(5, (1, 2, 3), (1, 2, 5))
    assert not judge_logs(
        status_of(tablet(joint)), logs(dict.fromkeys(range(1, 6), held(at(4, (1,)))))
    )


def test_a_report_with_logs_is_well_and_shows_them_where_they_are_not() -> None:
    """The document has what each member of an unwell log holds."""
    status = status_of(tablet(FIVE), tablet(None, OTHER, 1))
    facts = Facts((), status, logs=logs({**dict.fromkeys((1, 2, 4, 5), WHOLE), 3: None}))
    document = msgspec.json.decode(msgspec.json.encode(judge(facts).document()))
    (shown,) = document["tablets"]
    assert [each["safekeeper"] for each in shown["log"]] == [1, 2, 3]
    assert [each["held"] and each["held"]["flush_lsn"] for each in shown["log"]] == [9, 9, None]


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (
            keeper(1, live=False, silent_s=9.0),
            ["is dead: silent for 9 s"],
        ),
        (keeper(1, live=False, status="offline"), ["is away, and set offline"]),
        (
            keeper(1, live=False, status="decommissioned"),
            ["is away for good: it is decommissioned"],
        ),
        (keeper(1, status="offline"), ["is set offline: it gets no new logs"]),
        (
            keeper(1, status="decommissioned", timelines=2),
            ["is decommissioned: 2 logs are left"],
        ),
        (keeper(1, status="decommissioned"), ["is decommissioned: it may be stopped"]),
        (keeper(1), []),
    ],
)
def test_a_safekeeper_may_be_away_if_operators_said_so(
    server: ServerFacts, expected: list[str]
) -> None:
    """Only one that should be there is missed."""
    needed = (
        ServerFacts("tserver", "t", ServerUuid("t"), "live"),
        ServerFacts("backup", "b", ServerUuid("b"), "live"),
    )
    found = judge_servers(StatusFacts("c", 1, (*needed, server), (), ()))
    assert [each.text for each in found] == expected
    for each in found:
        is_missed = each.severity is not Severity.NOTE
        assert each.hint.endswith("stelae safekeeper set-status 1 decommissioned") == is_missed
    is_missed = server.status == "active" and not server.is_live
    assert [each.severity for each in found] == (
        [Severity.WARNING if is_missed else Severity.NOTE] * len(expected)
    )


# ---- asking -------------------------------------------------------------------------------------


def page(number: int, *lists: HeldTimeline, more: bool = False) -> TimelineList:
    return TimelineList(SafekeeperId(number), lists, more)


def ask(world: Scripted, status: StatusFacts) -> LogFacts | None:
    return asyncio.run(ask_logs(world, status, 1.0))  # type: ignore[arg-type]


def test_nobody_is_asked_where_no_table_has_a_log_on_safekeepers() -> None:
    """There would be nothing to judge."""
    world = Scripted()
    assert ask(world, status_of(tablet(None))) is None
    assert not world.peers.calls


def test_all_pages_of_all_that_live_are_read_and_silence_is_no_error() -> None:
    """A page begins after the last timeline of the one before; who is dead is not asked."""
    world = Scripted()
    second = msgspec.structs.replace(WHOLE, tablet_id=OTHER)
    world.peers.script(LIST_TIMELINES.name, page(1, WHOLE, more=True), Unavailable("k2", "no"))
    world.peers.otherwise[LIST_TIMELINES.name] = lambda order: (
        page(1, second) if order.after else page(3, WHOLE)
    )
    found = ask(world, status_of(tablet(at(5, (1, 3))), dead=(4, 5)))
    assert found is not None
    assert [(a.safekeeper_id, sorted(a.held)) for a in found.answers] == [
        (1, [TABLET, OTHER]),
        (2, []),
        (3, [TABLET]),
    ]
    assert "no" in found.answers[1].error
    assert not world.clock.sleeps, "nobody was behind"


@pytest.mark.parametrize(("later", "lacks"), [(50, False), (41, True)])
def test_one_that_seems_to_be_behind_is_asked_again_a_while_later(later: int, lacks: bool) -> None:
    """A log grows between two questions: behind is who then still lacks what was committed."""
    world, status = Scripted(), status_of(tablet(at(5, (1, 2))), dead=(3, 4, 5))
    one = at(5, (1, 2))
    world.peers.script(
        LIST_TIMELINES.name,
        page(1, held(one, 40, 39)),
        page(2, held(one, 45, 45)),
        page(1, held(one, later, later)),
        page(2, held(one, 60, 60)),
    )
    facts = ask(world, status)
    assert facts is not None
    assert world.clock.sleeps == [BEHIND_S]
    (judged,) = judge_tablets(status, facts)
    assert [verdict for verdict, _ in judged.reasons] == ([V.UNDER_REPLICATED] if lacks else [])
