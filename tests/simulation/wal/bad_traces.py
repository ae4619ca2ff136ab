"""Traces of timelines that each break one condition of one action of `spec/`."""

from __future__ import annotations

from stelae.simulation.timelines import events as trace
from tests.simulation.wal.timeline_stories import (
    FINAL,
    FIRST,
    JOINT,
    BadTrace,
    altered,
    answer,
    at,
    before,
    both,
    by,
    configuration,
    index,
    without,
)

BACK = configuration(3, [1, 2, 3])
SECOND_JOINT = configuration(4, [1, 2, 3], [1, 2, 4])
ABORT = (trace.AbortChange, {"server": "n", "configuration": BACK})
START_AGAIN = (trace.StartChange, {"server": "n", "configuration": SECOND_JOINT})
FINISH_AGAIN = (
    trace.FinishChange,
    {"server": "m", "configuration": configuration(5, [1, 2, 4])},
)
P_WINS = by("p", 1, 1, voters=(1, 2), last_log_term=0, flush_lsn=0)
P_APPENDS = (trace.AppendEntry, at(1, 1, 1, 1, 3, proposer="p", first_lsn=3))
BUMP_1 = (trace.BumpTerm, at(1, 1, 3, 1, 2))
EMPTY_COPY = altered("4 pulls", last_log_term=0, flush_lsn=0)

ELECTIONS = [
    BadTrace(
        "one vote in a term",
        before(
            "p leads",
            (trace.RestartProposer, by("q", 1, 1)),
            (trace.Vote, at(1, 1, 1, 0, 0, proposer="q")),
        ),
        "a term that it knows",
    ),
    BadTrace("votes are asked for", without("p campaigns"), "never asked for votes"),
    BadTrace(
        "votes within one generation",
        before("q leads", (trace.Vote, at(3, 1, 2, 1, 3, proposer="q"))),
        "another generation",
    ),
    BadTrace(
        "votes of members",
        before(
            "3 goes",
            (trace.RestartProposer, by("s", 3, 4)),
            (trace.SwitchConf, at(3, 3, 1, 1, 3, configuration=FINAL)),
            (trace.Vote, at(3, 3, 4, 1, 3, proposer="s")),
        ),
        "not a member",
    ),
    BadTrace(
        "votes of who has a copy",
        before(
            "4 restarts",
            (trace.RestartProposer, by("s", 3, 4)),
            (trace.Vote, at(3, 3, 4, 1, 3, proposer="s")),
        ),
        "no copy",
    ),
    BadTrace("a majority of votes", altered("p leads", voters=(1,)), "too few votes"),
    BadTrace("a majority of the old set too", altered("q leads", voters=(4,)), "too few votes"),
    BadTrace("votes that were given", altered("p leads", voters=(1, 3)), "nobody gave"),
    BadTrace("the best log of the votes", altered("q leads", flush_lsn=1), "the best log"),
    BadTrace("elected once", before("1 hears p", (trace.BecomeLeader, P_WINS)), "elected twice"),
    BadTrace("leaders know their generation", altered("p leads", generation=2), "other conf"),
    BadTrace(
        "no second campaign in a term won",
        before("1 hears p", (trace.RestartProposer, by("p", 1, 1))),
        "a term it has won",
    ),
    BadTrace("no campaign in term 0", altered("p campaigns", term=0), "term 0 is nobody's"),
    BadTrace("a stored configuration", altered("p campaigns", generation=9), "never was"),
]

REPLICATION = [
    BadTrace(
        "only leaders are heard",
        before("p leads", (trace.Elected, at(1, 1, 1, 0, 0, proposer="p"))),
        "has not won",
    ),
    BadTrace(
        "a deposed leader is not heard",
        before("m starts", BUMP_1, (trace.Elected, at(1, 1, 1, 1, 2, proposer="p"))),
        "a deposed leader",
    ),
    BadTrace("logs are cut where they part", altered("2 hears q", flush_lsn=1), "should be"),
    BadTrace("Elected before append", without("1 hears p"), "before Elected"),
    BadTrace("no gap", altered("1 takes 1-2", first_lsn=2), "a gap or an overlap"),
    BadTrace("what the leader wrote", without("p writes 1-3"), "entries of nobody"),
    BadTrace("appends of one term", before("m starts", BUMP_1, P_APPENDS), "another term"),
    BadTrace("appends of one generation", before("m hears 1", P_APPENDS), "another generation"),
    BadTrace("commits are agreed", altered("p commits 2", commit_lsn=3), "agreed is only 2"),
    BadTrace(
        "both sets agree on commits",
        without("4 takes 3", "2 hears q", "2 takes 3"),
        "agreed is only 0",
    ),
    BadTrace("commits of one's own generation", altered("p commits 2", generation=2), "other conf"),
    BadTrace("logs of leaders grow", altered("q writes 3", last_lsn=2), "did not grow"),
]

STORE = [
    BadTrace("Init comes first", without("init"), "Init is the first line"),
    BadTrace(
        "the first is not joint", altered("init", configuration=JOINT), "no first configuration"
    ),
    BadTrace(
        "a CAS from the generation before",
        altered("m starts", configuration=configuration(3, [1, 2, 3], [1, 2, 4])),
        "the CAS compared another generation",
    ),
    BadTrace(
        "no change within a change",
        before(
            "1 joins",
            (
                trace.StartChange,
                {"server": "n", "configuration": configuration(3, [1, 2, 3], [1, 2, 5])},
            ),
        ),
        "a change within a change",
    ),
    BadTrace(
        "a change keeps the old set",
        altered("m starts", configuration=configuration(2, [1, 2], [1, 2, 4])),
        "the old set changed",
    ),
    BadTrace(
        "a change changes",
        altered("m starts", configuration=configuration(2, [1, 2, 3], [3, 2, 1])),
        "nothing changes",
    ),
    BadTrace(
        "abort goes back",
        before("1 joins", (trace.AbortChange, {"server": "n", "configuration": FINAL})),
        "back to the old set",
    ),
    BadTrace(
        "a change goes through a joint configuration",
        altered("m starts", configuration=configuration(2, [1, 2, 4])),
        "a change within a change",
    ),
    BadTrace(
        "abort ends a change",
        before(
            "m starts",
            (trace.AbortChange, {"server": "n", "configuration": configuration(2, [1, 2, 3])}),
        ),
        "no change to end",
    ),
]

MIGRATORS = [
    BadTrace("old_joined: a majority", without("m hears 2"), "before step 4 is done"),
    BadTrace("old_joined: in the joint configuration", without("1 joins"), "never was there"),
    BadTrace(
        "new_caught_up",
        both(EMPTY_COPY, before("4 votes q", (trace.Confirm, answer("m", 4, 2, 1, 0, 0)))),
        "has not reached sync_position",
    ),
    BadTrace(
        "new_term_bumped",
        both(
            altered("m hears 1", term=3),
            lambda steps: [
                *steps[: index(steps, "m hears 1")],
                ("", trace.BumpTerm, at(1, 2, 3, 1, 2)),
                *steps[index(steps, "m hears 1") : index(steps, "4 votes q")],
                ("", trace.Confirm, answer("m", 4, 2, 1, 1, 2)),
            ],
        ),
        "has not reached sync_term 3",
    ),
    BadTrace(
        "no finish before step 4 is done",
        without("m hears 2", "m confirms 1", "m confirms 4"),
        "no majority of the old set had the joint configuration",
    ),
    BadTrace("new_joined: a majority", without("m confirms 4"), "no majority of the new set"),
    BadTrace(
        "new_joined: in the joint configuration",
        altered("m confirms 4", generation=1),
        "nothing to migrate",
    ),
    BadTrace(
        "cas: the change that it worked on",
        before("m finishes", ABORT, START_AGAIN, FINISH_AGAIN),
        "did not work on that change",
    ),
    BadTrace(
        "the new set takes over",
        altered("m finishes", configuration=configuration(3, [1, 2, 5])),
        "another set than the new one",
    ),
    BadTrace("step 4 asks the old set", altered("m hears 2", safekeeper=4), "in the old set"),
    BadTrace("step 7 asks the new set", altered("m confirms 4", safekeeper=3), "in the new set"),
    BadTrace(
        "one change at a time",
        before("m finishes", ABORT, START_AGAIN, (trace.Collect, answer("m", 1, 4, 2, 2, 3))),
        "one change at a time",
    ),
    BadTrace("answers of a generation that was", altered("m hears 1", generation=7), "never was"),
]

SAFEKEEPERS = [
    BadTrace("one first copy", before("p leads", (trace.Create, {"server": 1})), "a second copy"),
    BadTrace(
        "first copies are of members",
        before("p leads", (trace.Create, {"server": 4})),
        "no member of the first",
    ),
    BadTrace(
        "only stored configurations",
        altered("1 joins", configuration=configuration(2, [1, 2, 3], [7])),
        "never was in the store",
    ),
    BadTrace(
        "configurations only grow",
        before("m hears 1", (trace.SwitchConf, at(1, 2, 1, 1, 2, configuration=JOINT))),
        "not a higher one",
    ),
    BadTrace("terms only grow", altered("4 is bumped", term=2), "only grows"),
    BadTrace("terms come from campaigns", altered("4 is bumped", term=9), "nobody ever asked"),
    BadTrace(
        "no pull over a copy as far ahead",
        before("4 votes q", (trace.Pull, at(4, 2, 1, 1, 2, donor=2, configuration=JOINT))),
        "the copy here is as far ahead",
    ),
    BadTrace(
        "no pull over a copy of a higher generation",
        before("4 pulls", (trace.Pull, at(1, 1, 1, 1, 3, donor=3, configuration=FIRST))),
        "of a higher generation",
    ),
    BadTrace("what the donor had", altered("4 pulls", flush_lsn=4), "the donor never had that"),
    BadTrace("donors are members", altered("4 pulls", donor=5), "the donor is no member"),
    BadTrace("pulls are for members", altered("4 pulls", server=5), "for who is no member"),
    BadTrace(
        "only what is committed is left out",
        before("m starts", (trace.BeginAfter, at(2, 1, 1, 1, 3))),
        "not committed",
    ),
    BadTrace(
        "nothing that is there is left out",
        before("m starts", (trace.BeginAfter, at(2, 1, 1, 1, 2))),
        "gives up entries",
    ),
    BadTrace(
        "no pull below a tombstone",
        before(
            "4 votes q",
            ABORT,
            (trace.Exclude, {"server": 4, "configuration": BACK}),
            (trace.Pull, at(4, 2, 1, 1, 2, donor=2, configuration=JOINT)),
        ),
        "deleted under that generation",
    ),
    BadTrace(
        "members are not deleted",
        before("3 goes", (trace.Exclude, {"server": 1, "configuration": FINAL})),
        "deleted from a member",
    ),
    BadTrace(
        "no deletion within a change",
        altered("3 goes", configuration=JOINT),
        "deleted within a change",
    ),
    BadTrace(
        "no deletion under a lower generation",
        before("4 votes q", (trace.Exclude, {"server": 4, "configuration": FIRST})),
        "under a lower generation",
    ),
    BadTrace("a restart keeps the log", altered("4 restarts", flush_lsn=2), "what was durable"),
    BadTrace("a restart keeps the vote", altered("4 restarts", voted_for=""), "not the vote"),
    BadTrace("a restart makes no vote", altered("4 restarts", voted_for="r"), "not the vote"),
    BadTrace(
        "a term without a vote stays so",
        before("m starts", BUMP_1, (trace.RestartSafekeeper, at(1, 1, 3, 1, 2, voted_for="r"))),
        "not the vote",
    ),
    BadTrace("a restart keeps the term", altered("4 restarts", term=1), "term was forgotten"),
    BadTrace(
        "a restart keeps the configuration",
        altered("4 restarts", generation=2),
        "configuration was forgotten",
    ),
    BadTrace("steps say where they lead", altered("1 votes q", flush_lsn=1), "should be"),
]

BAD = [*ELECTIONS, *REPLICATION, *STORE, *MIGRATORS, *SAFEKEEPERS]
