"""Gray faults: masters and other servers see different things of one server, or of one link."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import msgspec
import pytest

from stelae.core.errors import OutcomeUnknown, Unavailable
from stelae.core.ids import ServerUuid
from stelae.core.rpc import Call, Handlers, Method, Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks
from stelae.simulation import Options, World
from stelae.simulation.nemesis import Action, Nemesis, draw_gray_faults, draw_schedule
from stelae.simulation.runner import derive_seeds, kept_seeds, run_seed, run_seeds
from stelae.simulation.scenarios import GRAY, NODES, PLAIN, SCENARIOS, load_scenario

MASTERS = ("m1", "m2")
OTHERS = ("a", "b", "c")
CLIENT = "client"
EVERYBODY = (*MASTERS, *OTHERS, CLIENT)
CALL_S = 0.5
DURATION_S = 400.0
DRAWN = Options(gray_gap_mean_s=2.0, gray_duration_mean_s=5.0)


class Empty(msgspec.Struct, frozen=True, array_like=True):
    pass


HELLO = Method("hello", Empty, Empty, "of a story, with fixed servers")


class Greeter:
    """Answers whoever greets it."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.tasks = Tasks()
        self.runtime = runtime
        self._name = name

    async def start(self) -> None:
        handlers: Handlers = {HELLO: self._greet}
        await self.runtime.peers.listen(ServerUuid(self._name), handlers)

    async def stop(self) -> None:
        await self.runtime.peers.close()

    async def _greet(self, call: Call[Empty]) -> Reply[Empty]:
        return Reply(call.body)


@dataclass(frozen=True, slots=True)
class GreeterFixture:
    """A world of greeters, which fails by itself in nothing."""

    world: World
    nemesis: Nemesis

    async def unanswered(self) -> set[tuple[str, str]]:
        """All (caller, receiver) of which the caller has no answer."""
        pairs = [(one, other) for one in EVERYBODY for other in EVERYBODY[:-1] if one != other]
        found = await asyncio.gather(*[self._greets(*pair) for pair in pairs])
        return {pair for pair, answered in zip(pairs, found, strict=True) if not answered}

    async def _greets(self, caller: str, receiver: str) -> bool:
        runtime = self.world.nodes[caller].runtime
        assert runtime is not None
        address = self.world.address(receiver)
        try:
            await runtime.peers.call(address, HELLO, Empty(), timeout_s=CALL_S)
        except (OutcomeUnknown, Unavailable):
            return False
        return True


def tell(story: Callable[[GreeterFixture], Awaitable[None]]) -> None:
    """Run a story of two masters, three other servers, and a client."""
    world = World(1, Options(unnoticed_end_rate=0.0))

    async def main() -> None:
        for name in EVERYBODY[:-1]:
            kind = "master" if name in MASTERS else "tserver"
            world.start(name, partial(Greeter, name=name), kind=kind)
        world.client(CLIENT)
        await world.wait_ready()
        await story(GreeterFixture(world, Nemesis(world, [])))

    world.run(main())


def drawn(options: Options = DRAWN, seed: int = 1) -> list[Action]:
    """The gray faults of the same servers."""
    servers = {"master": list(MASTERS), "tserver": list(OTHERS)}
    return draw_gray_faults(options, random.Random(seed), servers, [CLIENT], DURATION_S)


def way_of(action: Action) -> str:
    """Which of the gray faults it is, by what it says itself."""
    if action.kind == "lose_calls":
        return "unled" if set(action.nodes) == set(MASTERS) else "hangs"
    return "cut off" if len(action.others) > 1 else action.kind


def one_of(way: str) -> Action:
    """The first that was drawn and that lasts for longer than a call."""
    faults = [action for action in drawn() if action.duration_s > 2 * CALL_S]
    return next(action for action in faults if way_of(action) == way)


def both_ways(one: str, others: set[str]) -> set[tuple[str, str]]:
    return {(one, other) for other in others} | {(other, one) for other in others}


@pytest.mark.parametrize("way", ["hangs", "cut off", "unled", "split", "one_way"])
def test_each_fault_does_what_it_says_and_ends(way: str) -> None:
    """Who has no answer of whom, while it lasts; nobody else notices anything."""
    action = one_of(way)
    one = action.nodes[0]
    if way in ("hangs", "unled"):
        (one,) = action.others
    assert way in ("split", "one_way") or one in OTHERS, "masters are heard"
    rest = {*OTHERS, CLIENT} - {one}
    expected = {
        "hangs": {(other, one) for other in rest},
        "cut off": both_ways(one, rest - {CLIENT}),
        "unled": {(master, one) for master in MASTERS},
        # A call has no answer also if only that is cut.
        "split": both_ways(one, set(action.others)),
        "one_way": both_ways(one, set(action.others)),
    }[way]

    async def story(here: GreeterFixture) -> None:
        assert await here.unanswered() == set()
        here.nemesis.strike(action)
        assert await here.unanswered() == expected
        await asyncio.sleep(action.duration_s)
        assert await here.unanswered() == set()

    tell(story)


def test_one_way_of_a_link_carries_what_the_other_does_not() -> None:
    """The request arrives, and its answer does not; or the request does not."""
    action = one_of("one_way")
    (one,), (other,) = action.nodes, action.others

    async def story(here: GreeterFixture) -> None:
        here.nemesis.strike(action)
        network = here.world.network
        assert network.is_blocked(one, other)
        assert not network.is_blocked(other, one)

    tell(story)


def test_two_faults_of_one_pair_end_one_by_one() -> None:
    """Calls are carried again once nobody loses them."""
    faults = [Action(0.0, "lose_calls", ("b",), ("a",), duration_s) for duration_s in (2.0, 5.0)]

    async def story(here: GreeterFixture) -> None:
        for fault in faults:
            here.nemesis.strike(fault)
        await asyncio.sleep(3.0)
        assert await here.unanswered() == {("b", "a")}
        await asyncio.sleep(3.0)
        assert await here.unanswered() == set()

    tell(story)


def test_whatever_lasts_ends_with_the_faults() -> None:
    """What is judged in the end is a world that has healed."""
    fault = Action(0.0, "lose_calls", ("b",), ("a",), 1e6)

    async def story(here: GreeterFixture) -> None:
        here.nemesis.strike(fault)
        here.nemesis.strike(fault)
        await here.nemesis.finish()
        assert await here.unanswered() == set()

    tell(story)


def test_every_kind_is_drawn_and_the_seed_fixes_all() -> None:
    """As often and as long as the options say, within the time there is."""
    faults = drawn()
    assert set(map(way_of, faults)) == {"hangs", "cut off", "unled", "split", "one_way"}
    assert faults == drawn()
    assert faults != drawn(seed=2)
    assert faults == sorted(faults, key=lambda action: action.at_s)
    assert faults[-1].at_s < DURATION_S
    assert DURATION_S / len(faults) == pytest.approx(DRAWN.gray_gap_mean_s, rel=0.2)
    lasting_s = sum(action.duration_s for action in faults) / len(faults)
    assert lasting_s == pytest.approx(DRAWN.gray_duration_mean_s, rel=0.2)


def test_without_masters_only_links_are_cut() -> None:
    """Nobody could hear what others do not."""
    servers = {"server": ["a", "b"]}
    faults = draw_gray_faults(DRAWN, random.Random(1), servers, [], DURATION_S)
    assert {action.kind for action in faults} == {"split", "one_way"}
    assert not draw_gray_faults(DRAWN, random.Random(1), {"server": ["a"]}, [], DURATION_S)


def test_a_plain_scenario_draws_none() -> None:
    """Its runs do not depend on the gray ones: same options, same other faults, no call is lost."""
    for name in PLAIN:
        plain, gray = load_scenario(name), load_scenario(GRAY + name)
        assert (plain.name, gray.name) == (name, GRAY + name)
        assert (plain.run, plain.limit_s) == (gray.run, gray.limit_s)
        for seed in derive_seeds(name, 5):
            options = plain.options(seed)
            assert options.gray_gap_mean_s == 0.0
            assert not drawn(options)
            assert gray.options(seed) == options.gray(seed)
            assert gray.options(seed).gray_gap_mean_s > 0.0
            names = ("gray_gap_mean_s", "gray_duration_mean_s")
            back = {each: getattr(options, each) for each in names}
            assert gray.options(seed).but(**back) == options
    others = {name for name in SCENARIOS if not name.startswith(NODES)}
    assert others == {*PLAIN, *(GRAY + name for name in PLAIN)}


def test_a_gray_scenario_has_the_faults_of_the_plain_one_and_its_own() -> None:
    """The same seed gives the same run; what is added comes from a stream of its own."""
    counts: Counter[str] = Counter()
    for seed in derive_seeds("gray", 4):
        plain = run_seed(load_scenario("counter"), seed)
        gray, again = (run_seed(load_scenario("gray_counter"), seed) for _ in range(2))
        assert gray.failure is None, gray.failure
        assert (gray.digest, gray.schedule) == (again.digest, again.schedule)
        assert gray.digest != plain.digest
        counts.update(action.kind for action in gray.schedule)
        added = list(gray.schedule)
        for action in plain.schedule:
            added.remove(action)
        assert added
        assert not any(action.kind == "lose_calls" for action in plain.schedule)
    assert counts["lose_calls"]


def test_faults_that_are_drawn_for_masters_are_gray_as_well() -> None:
    """That scenario draws its schedule by itself."""
    seed = derive_seeds("gray_masters", 1)[0]
    gray, plain = (run_seed(load_scenario(n), seed) for n in ("gray_masters", "masters"))
    assert gray.failure is None, gray.failure
    assert set(plain.schedule) < set(gray.schedule)


def test_a_stream_of_its_own_leaves_all_other_faults_where_they_were() -> None:
    """Kept seeds fail again as they did."""
    options = Options(crash_every_s=2.0, partition_every_s=3.0)
    servers = {"master": list(MASTERS), "tserver": list(OTHERS)}
    gray = options.gray(1)
    both = [
        draw_schedule(each, random.Random(1), servers, [CLIENT], DURATION_S)
        for each in (options, gray)
    ]
    assert both[0] == both[1]


def test_a_call_that_is_lost_ends_by_its_deadline_as_unknown() -> None:
    """As for a server that hangs: its connection stands."""

    async def story(here: GreeterFixture) -> None:
        here.world.network.lose_calls("b", "a")
        runtime = here.world.nodes["b"].runtime
        assert runtime is not None
        began_s, address = here.world.loop.time(), here.world.address("a")
        with pytest.raises(OutcomeUnknown):
            await runtime.peers.call(address, HELLO, Empty(), timeout_s=CALL_S)
        assert here.world.loop.time() == pytest.approx(began_s + CALL_S)

    tell(story)


GATE = ("gray_durabilities", "gray_indexes", "gray_replicas", "gray_tables", "gray_wal")
"""Scenarios of which the gate runs a gray seed besides the kept ones: each kind of table."""


@pytest.mark.parametrize(
    "name",
    [each for each in SCENARIOS if each in GATE or (each.startswith(GRAY) and kept_seeds(each))],
)
def test_whole_clusters_come_to_rest_after_gray_faults(name: str) -> None:
    """The kept seeds, and for some scenarios a fixed one."""
    outcomes = run_seeds(load_scenario(name), int(name in GATE))
    kinds = {action.kind for outcome in outcomes for action in outcome.schedule}
    assert kinds & {"lose_calls", "split", "one_way"}
