"""Protections of copies in different racks: the rule, and who goes by it."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_PLACEMENT = "tests/unit/coordinator/placement"

MUTANTS = [
    *mutants_of(
        "core/places.py",
        ("tests/unit/core/test_places.py",),
        [
            ("is_here or (self.rack", "is_here and (self.rack"),
            ('self.rack != "" and other', "other"),
            ("        return on_node, in_rack\n", "        return in_rack, on_node\n"),
            ('f"rack {self.rack}" if', "self.node if"),
        ],
    ),
    *mutants_of(
        "core/records/records.py",
        ("tests/unit/core/test_places.py",),
        [("        return Place(self.process.node, rack)\n", "        return Place(rack, rack)\n")],
    ),
    *mutants_of(
        "actors/server/identity.py",
        ("tests/simulation/nodes/test_nodes.py",),
        [("rack=runtime.rack or msgspec.UNSET", "rack=msgspec.UNSET")],
    ),
    *mutants_of(
        "actors/tserver/segments/placement.py",
        ("tests/unit/actors/tserver/test_placement.py",),
        [
            (
                "_least_crowded(_least_crowded(among, used_places), [home])",
                "_least_crowded(_least_crowded(among, [home]), used_places)",
            ),
            ("_least_crowded(_least_crowded(among, used_places), [home])", "among"),
        ],
    ),
    *mutants_of(
        "coordinator/placement/assignment.py",
        ("tests/unit/coordinator/groups/test_group_creation.py",),
        [("(failed, crowd, *first,", "(failed, crowd[0], *first,")],
    ),
    *mutants_of(
        "coordinator/placement/copysets.py",
        (f"{_PLACEMENT}/test_copysets.py",),
        [
            ("server.place.crowd(used), -count[rack]", "-count[rack]"),
            ("            count.subtract(best.place.units)\n", ""),
        ],
    ),
    *mutants_of(
        "coordinator/placement/rebalance.py",
        (f"{_PLACEMENT}/test_rebalance.py",),
        [
            (
                "    return nodes[target].crowd(others) <= nodes[source].crowd(others)\n",
                "    return True\n",
            ),
            ("or left >= (on_node, in_rack):", "or left > (on_node, in_rack):"),
            (
                "                if not may_take(tablet, target):\n                    continue\n"
                "                evens = sizes.gain(source, target, tablet.size_bytes)\n"
                "                gain = ",
                "                evens = sizes.gain(source, target, tablet.size_bytes)\n"
                "                gain = ",
            ),
        ],
    ),
    *mutants_of(
        "coordinator/groups/healing.py",
        ("tests/unit/coordinator/groups/test_healing.py",),
        [("-on_node, -in_rack, -held", "-on_node, -held")],
    ),
    *mutants_of(
        "coordinator/timelines/safekeepers.py",
        ("tests/unit/coordinator/timelines/test_safekeepers.py",),
        [("one.place.crowd(used),", "one.place.crowd(used)[0],")],
    ),
    *mutants_of(
        "stelae/deploy/machines.py",
        ("tests/unit/stelae/deploy/test_machines.py",),
        [
            ("found, racks)\n    masters", "found)\n    masters"),
            ("if rack_label and not racks and not state.machines:", "if False:"),
            ("not racks and not state.machines:", "not racks:"),
        ],
    ),
]
