"""Replaces one master by a new, empty one of its name, on Ray.

The masters' set is its fence: a master that has left the set votes no more. Rules:

- R1: within the cluster's turn, by a look that was made within it. Nothing is waited for in the
  turn but the steps themselves.
- R2: the others are a live majority, have all that is committed, and no tablet lacks anything.
- R3: the process ends first, then its folder is set aside, then the former master leaves the set,
  and then the new one is added. So a replacement that was interrupted goes on from the set and the
  actors alone: a name that is not in the set has no folder that anybody needs.
- R4: it is done once the new master votes, and has all that is committed.
- R5: the machine is there, and has room, before the process ends; by a look within the turn.

Decisions §81.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stelae.actors.ray_host.host import ServerPlan, cluster_actors
from stelae.applying.one_server import end_process, hand_over, wait_until
from stelae.applying.replacement import Replacement, ReplaceOrder, placed
from stelae.applying.replacing import empty_folders, machine_with_room
from stelae.applying.steps import what_is_unwell
from stelae.coordinator.apply.replaces import refusals_of_master
from stelae.core.errors import InvalidArgument
from stelae.deploy import launcher, machines
from stelae.deploy.changed import masters_status
from stelae.deploy.cluster_files import publish, refresh
from stelae.deploy.cluster_state import load_state
from stelae.deploy.masters import add_master, list_masters, remove_master
from stelae.deploy.restarts import what_is_missing


def replace_master(order: ReplaceOrder) -> Replacement:
    """Give a master's name to a new, empty one. Raises as `replace_server` of `replace_one`."""
    work = _ReplaceMaster(order)
    work.choose()  # before others wait for the turn
    while True:
        work.settle()
        work.check()
        with order.database.turn(f"server replace {order.name}") as sure:
            refresh(order.known.home, order.database.cluster)
            if work.unwell():  # R1
                continue
            work.check()
            target = work.choose()
            sure()
            found = work.carry_out(target)
        work.wait_whole(found.uuid)
        return found


class _ReplaceMaster:
    def __init__(self, order: ReplaceOrder) -> None:
        self._database = order.database
        self._known = order.known
        self._name = order.name
        self._elsewhere = order.elsewhere
        self._progress = order.progress
        self._deadline = order.deadline

    def choose(self) -> str:
        """The machine for a new master that is to be elsewhere; empty: it stays where it is. R5.

        Raises InvalidArgument, Unavailable: there is none, or its machine is away.
        """
        spec, state = self._known.spec, load_state(self._known.home)
        if spec.placement is None:
            if self._elsewhere:
                raise InvalidArgument("--elsewhere: all servers of this cluster are on one machine")
            return ""
        label, machine = spec.placement.machine_label, state.machines.get(self._name, "")
        live = machines.live_machines(label)
        if self._elsewhere:
            racks = machines.live_racks(label, spec.placement.rack_label)
            among = [each for each in live if each != machine]
            return machine_with_room(spec, state, self._name, among, racks)
        if machine not in live:
            raise InvalidArgument(
                f"{machines.described(label, machine)} of {self._name} is away: say --elsewhere, "
                "and the new server starts on another machine"
            )
        return ""

    def check(self) -> None:
        """R2. Raises InvalidArgument: all reasons why not; nothing has changed."""
        members = {each["name"]: each["uuid"] for each in list_masters(self._database)}
        wanted = self._known.spec.masters.count
        why = refusals_of_master(self._name, masters_status(self._database), members, wanted)
        if why:
            raise InvalidArgument(f"{self._name} is not replaced: {'; '.join(why)}")

    def unwell(self) -> str:
        """Why no master may be ended just now. R2."""
        status = masters_status(self._database)
        if status.get("heard_all") is not True:
            return "the leader master has just begun to hear the servers"
        return what_is_unwell(status) or others_are_behind(status, self._name)

    def settle(self) -> None:
        """R2. Raises RetryLater."""
        what = f"{self._name} is not replaced yet"
        wait_until(self.unwell, what, self._progress, self._deadline)

    def wait_whole(self, uuid: str) -> None:
        """R4. Raises RetryLater."""

        def missing() -> str:
            return what_is_missing(masters_status(self._database), uuid, -1)

        what = f"{self._name} is replaced"
        wait_until(missing, what, self._progress, self._deadline)

    def carry_out(self, target: str) -> Replacement:
        """R3. Raises StelaeError: the same again goes on."""
        database, name = self._database, self._name
        former = tuple(m["uuid"] for m in list_masters(database) if m["name"] == name)
        actor = cluster_actors(database.cluster).get(name)
        if actor is not None:
            hand_over(name, actor, self._progress)
            self._progress(f"{name} ends")
            end_process(self._known, name, actor)
        where = self._plan().machine
        aside = self._set_aside(is_elsewhere=bool(target))
        for folder in aside:
            self._progress(f"what {name} had is in {placed(folder, where)} now")
        for uuid in former:
            self._progress(f"{name} leaves the set: {uuid}")
            remove_master(database, uuid, timeout=self._left_s)
        if target:
            self._move(target)
        self._progress(f"{name} starts, empty, and gets its vote")
        found = add_master(database, name, timeout=self._left_s)
        (uuid,) = [each["uuid"] for each in found if each["name"] == name]
        machine = load_state(self._known.home).machines.get(name, "")
        return Replacement(name, former, uuid, machine, aside, (where,) * len(aside))

    @property
    def _left_s(self) -> float:
        return max(1.0, self._deadline - time.monotonic())

    def _set_aside(self, *, is_elsewhere: bool) -> tuple[str, ...]:
        """Raises Unavailable: its machine does not answer."""
        plan = self._plan()
        spec = self._known.spec
        if is_elsewhere:
            assert spec.placement is not None, "a machine was chosen"
            if plan.machine not in machines.live_machines(spec.placement.machine_label):
                self._progress(f"machine {plan.machine} is away: what is there is not set aside")
                return ()
        return empty_folders(plan)

    def _plan(self) -> ServerPlan:
        """Where its folder is; a master that has left the set has no plan of its own."""
        state = load_state(self._known.home)
        plans = launcher.plans(self._known.spec, state)
        selector = machines.selector(self._known.spec, state, self._name)
        return replace(
            plans[0],
            name=self._name,
            folder=str(Path(state.data_dir) / self._name),
            machine=state.machines.get(self._name, ""),
            selector=selector,
        )

    def _move(self, target: str) -> None:
        state = load_state(self._known.home)
        replace(state, machines={**state.machines, self._name: target}).save()
        publish(self._known.home, self._database.cluster)


def others_are_behind(status: Mapping[str, Any], name: str) -> str:
    """Which other masters do not live, or have not all that is committed; empty: none. Pure."""
    behind = [
        each["id"]
        for each in status["servers"]
        if each["kind"] == "master" and each["id"] != name
        if each["state"] != "live" or each["keeps_up"] is False
    ]
    return f"masters that do not live or are behind: {', '.join(behind)}" if behind else ""
