"""`stelae.core.messages.reports`: incremental reports, lost, doubled and reordered."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.reports import (
    Picture,
    Report,
    Reporter,
    log_fingerprint,
    tablet_fingerprint,
)
from stelae.core.messages.servers import (
    FULL,
    NO_REPORT,
    Heartbeat,
    HeartbeatReply,
    TabletProgress,
    TabletReport,
)
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.runtime import ProcessIdentity

SERVER = ServerInfo(
    ServerKind.TSERVER, "s", ServerUuid("s"), 1, Address("s:1"), ProcessIdentity("n", 1, 0)
)
Held = dict[TabletId, TabletReport]


def report(name: str, term: int = 1, progress: str = "serving", rows: int = 0) -> TabletReport:
    return TabletReport(TabletId(name), term, TabletProgress(progress), row_count=rows)


def held(*reports: TabletReport) -> Held:
    return {each.tablet_id: each for each in reports}


def beat(told: Report[TabletReport]) -> Heartbeat:
    return Heartbeat(
        SERVER,
        float(told.number),
        tuple(value for _, value in told.changed),
        number=told.number,
        since=told.since,
        removed=told.removed,
        digest=told.digest,
    )


def answer(processed: bool, is_leader: bool = True) -> HeartbeatReply:
    return HeartbeatReply(is_leader, 1, 0.0, processed=processed)


def test_after_a_full_report_only_changes_are_told() -> None:
    """Golden conversation: all, nothing, one changed and one gone, nothing again."""
    reporter, picture = Reporter(tablet_fingerprint), Picture()
    steps = [
        (held(report("a"), report("b")), FULL, ["a", "b"], []),
        (held(report("a"), report("b")), 1, [], []),
        (held(report("a", term=2)), 2, ["a"], ["b"]),
        (held(report("a", term=2)), 3, [], []),
    ]
    for now, since, changed, removed in steps:
        told = reporter.next(now)
        assert told.since == since
        assert [name for name, _ in told.changed] == changed
        assert list(told.removed) == removed
        assert picture.take(beat(told), 0.0)
        assert picture.reports == now
        assert not reporter.answered(told, answer(True))


def test_a_report_whose_answer_is_lost_is_made_up_for_even_by_a_change_back() -> None:
    """The master has taken in what the server does not know it has: both ends agree again."""
    reporter, picture = Reporter(tablet_fingerprint), Picture()
    first = reporter.next(held(report("a")))
    picture.take(beat(first), 0.0)
    reporter.answered(first, answer(True))
    picture.take(beat(reporter.next(held(report("a", progress="opening")))), 0.0)
    again = reporter.next(held(report("a")))
    assert [name for name, _ in again.changed] == ["a"]
    assert picture.take(beat(again), 0.0)
    assert picture.reports == held(report("a"))


def test_a_follower_is_told_nothing_and_a_new_leader_everything_until_it_has_taken_it() -> None:
    """Full at start; then liveness only; full again for who leads, at once but in no rush."""
    reporter: Reporter[TabletReport] = Reporter(tablet_fingerprint)
    now = held(report("a"))
    told = reporter.next(now)
    assert told.since == FULL
    assert not reporter.answered(told, answer(False, is_leader=False))
    told = reporter.next({})
    assert (told.since, told.changed) == (NO_REPORT, ())
    assert reporter.answered(told, answer(False)), "the new leader wants everything now"
    told = reporter.next(now)
    assert (told.since, len(told.changed)) == (FULL, 1)
    assert not reporter.answered(told, answer(False)), "no second time at once"
    told = reporter.next(now)
    assert told.since == FULL, "until one is accepted"
    reporter.answered(told, answer(True))
    assert reporter.next(now).since == told.number


def test_who_does_not_answer_is_told_everything_for_it_may_lead_by_now() -> None:
    """A server that hears nobody still says what it holds; a leader's changes are not lost."""
    reporter: Reporter[TabletReport] = Reporter(tablet_fingerprint)
    now = held(report("a"))
    reporter.answered(reporter.next(now), answer(False, is_leader=False))
    reporter.next({})
    reporter.unanswered()
    told = reporter.next(now)
    assert (told.since, len(told.changed)) == (FULL, 1)
    reporter.answered(told, answer(True))
    reporter.next(now)
    reporter.unanswered()
    assert reporter.next(now).since == told.number


def test_what_does_not_fit_the_digest_is_asked_for_in_full() -> None:
    """Should a change ever go missing, the very next heartbeat shows it."""
    reporter, picture = Reporter(tablet_fingerprint), Picture()
    first = reporter.next(held(report("a")))
    assert picture.take(beat(first), 0.0)
    reporter.answered(first, answer(True))
    picture.reports.clear()
    picture._digest = 0
    second = reporter.next(held(report("a")))
    assert not picture.take(beat(second), 0.0)
    assert not picture.is_exact
    assert reporter.answered(second, answer(False))
    assert picture.take(beat(reporter.next(held(report("a")))), 0.0)
    assert picture.reports == held(report("a"))


def test_changes_to_a_report_that_was_never_processed_are_refused() -> None:
    """A leader that knows nothing of a server does not take a part for the whole."""
    picture = Picture()
    assert not picture.take(Heartbeat(SERVER, 1.0, (report("a"),), number=5, since=4), 0.0)
    assert picture.reports == {}


def test_a_hint_lasts_until_the_next_report() -> None:
    """What came between two heartbeats is used, and does not disturb what they say."""
    reporter, picture = Reporter(tablet_fingerprint), Picture()
    first = reporter.next(held(report("a", progress="opening")))
    picture.take(beat(first), 0.0)
    reporter.answered(first, answer(True))
    picture.hint(report("a", progress="prepared"))
    picture.hint(report("b", progress="prepared"))
    assert [r.progress.value for r in picture.reports.values()] == ["prepared", "prepared"]
    sent_before = reporter.next(held(report("a", progress="opening")))
    assert picture.take(beat(sent_before), 3.0)
    assert picture.reports == held(report("a", progress="opening"))
    assert picture.vanished_at == {TabletId("b"): 3.0}, "not missing for long, but since now"
    reporter.answered(sent_before, answer(True))
    after = reporter.next(held(report("a", progress="prepared"), report("b", progress="prepared")))
    assert picture.take(beat(after), 4.0)
    assert sorted(picture.reports) == ["a", "b"]


def test_growth_is_no_news() -> None:
    """A tablet that only has more rows makes nobody look at anything."""
    picture = Picture()
    picture.take(Heartbeat(SERVER, 1.0, (report("a"),), number=1), 0.0)
    version = picture.version
    picture.take(Heartbeat(SERVER, 2.0, (report("a", rows=5),), number=2, since=1), 0.0)
    assert picture.version == version
    assert picture.reports[TabletId("a")].row_count == 5


def test_a_backups_logs_are_told_by_changes_too() -> None:
    """The same sequence numbers, the same digest."""
    reporter: Reporter[None] = Reporter(log_fingerprint)
    picture = Picture()
    for logs in (["x", "y"], ["y", "z"], []):
        told = reporter.next({TabletId(log): None for log in logs})
        sent = Heartbeat(
            SERVER,
            float(told.number),
            logs=tuple(log for log, _ in told.changed),
            number=told.number,
            since=told.since,
            removed=told.removed,
            digest=told.digest,
        )
        assert picture.take(sent, 0.0)
        reporter.answered(told, answer(True))
        assert sorted(picture.logs) == logs


states = st.dictionaries(
    st.sampled_from([TabletId(name) for name in "abcd"]),
    st.tuples(st.integers(1, 3), st.sampled_from(["opening", "prepared", "serving"])),
)


@settings(max_examples=300)
@given(st.lists(st.tuples(states, st.sampled_from(["fine", "lost", "unanswered", "late"]))))
def test_no_loss_doubling_or_reordering_hides_a_change(
    steps: list[tuple[dict[TabletId, tuple[int, str]], str]],
) -> None:
    """Whatever the network does: once a report is processed, the master sees what is there."""
    reporter, picture = Reporter(tablet_fingerprint), Picture()
    late: list[Heartbeat] = []
    for state, fate in steps:
        now = {i: TabletReport(i, term, TabletProgress(p)) for i, (term, p) in state.items()}
        told = reporter.next(now)
        sent = beat(told)
        if fate == "late":
            late.append(sent)
            continue
        if fate == "lost":
            continue
        processed = picture.take(sent, 0.0)
        if processed:
            assert picture.reports == now
        for old in late:
            assert picture.take(old, 0.0) or not processed
        late = []
        if processed:
            assert picture.reports == now, "an overtaken report changed something"
        if fate == "fine":
            reporter.answered(told, answer(processed))
