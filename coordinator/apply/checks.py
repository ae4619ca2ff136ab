"""Why a spec cannot be applied to a cluster: all reasons at once, before anything is changed. Pure.

- What a cluster was made with stays (its name, its folders, the size of a segment, …).
- Every table's promise can be held with what is left: backups for its media, servers for its
  replicas, safekeepers for its logs; also while one server after the other is started anew.
- What is in one server's memory only would go with its process: then nothing is restarted.
- There is room: memory of Ray's for what is added, of tablet servers for the tablets of the
  drained, on media for what is there (`stelae.coordinator.apply.room`).
- What cannot be changed yet while a cluster runs is said to be so.

Design §12; decisions §44.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stelae.coordinator.apply.plan import Act, Present, Step, TableIs
from stelae.coordinator.apply.room import Room, homeless, no_home, too_small
from stelae.core.config.peer_tls import OFF, PeerTls
from stelae.core.config.spec import ClusterSpec, PlacementSpec
from stelae.core.config.units import format_size
from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import Replicas, Segments, Wal, media_of

USABLE_SHARE = 0.95
"""Of tablet servers' memory."""
NAMED = 5
"""Tables, in a sentence."""


@dataclass(frozen=True, slots=True)
class Made:
    """What the servers that run were made with: that counts, and not what was asked for once."""

    cluster: str
    data_dir: str
    segment_size_bytes: int
    cas_store: str
    """URL; empty: the masters."""
    lease_s: float
    """The longest that any of them grants."""
    media: Mapping[str, str | None] = field(default_factory=dict)
    """Folders of backups' media, by name; None: in memory."""
    synced: frozenset[str] = frozenset()
    """Media of which some backup makes each write durable before it answers."""
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of tablet servers, by name."""
    sizes: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    """Of backups' media, by the backups' names; None: as much as there is."""
    tls: PeerTls = OFF
    """Of connections between servers."""
    ray_address: str = ""
    """As it was asked for last; empty: not known."""
    ray_num_cpus: int | None = None
    placement: PlacementSpec | None = None
    serve_tls: object = None
    """As these were asked for last."""


@dataclass(frozen=True, slots=True)
class Asked:
    made: Made
    """What there is."""
    spec: ClusterSpec
    """What is asked for now."""
    steps: Sequence[Step]
    present: Present
    tables: Sequence[TableIs]
    room: Room = field(default_factory=Room)
    accepts_loss: bool = False
    """Whoever asks knows that power failures may take what was acknowledged."""

    @property
    def silent(self) -> dict[str, ServerKind]:
        """Servers that are wanted and do not answer: nobody can count on them."""
        gone = {s.name for s in self.steps if s.act is Act.REMOVE}
        return {
            s.name: s.kind
            for s in self.present.servers
            if s.has_process and not s.answers and s.name not in gone
        }

    def there(self, kind: ServerKind, *, dead: bool) -> int:
        """How many of a kind stay as far as is known; ``dead``: with those that are so just now."""
        return sum(
            s.kind is kind and (s.live or (dead and s.is_known)) and not s.retiring
            for s in self.present.servers
        )

    def of(self, act: Act, kind: ServerKind) -> list[Step]:
        return [s for s in self.steps if s.act is act and s.kind == kind.value]


def refusals(asked: Asked) -> list[str]:
    """All reasons; empty: it can be done."""
    return [
        *_fixed(asked.made, asked.spec),
        *_media(asked),
        *_promises(asked),
        *_in_memory_only(asked),
        *_not_yet(asked),
        *_no_room(asked),
    ]


def _fixed(made: Made, spec: ClusterSpec) -> Iterable[str]:
    """What is chosen when a cluster is made, or when it comes up."""
    first = "it is chosen when a cluster is made"
    up = "it is chosen when a cluster comes up: `stelae down`, then `stelae up`"
    fields: list[tuple[str, object, object, str]] = [
        ("cluster", made.cluster, spec.cluster, first),
        ("data_dir", made.data_dir, spec.data_dir, first),
        ("segment_size", made.segment_size_bytes, spec.segment_size_bytes, first),
        ("cas_store", made.cas_store, _origin(spec), first),
        ("tls", made.tls, spec.tls.peer_tls, _why_tls_stays(made.tls, spec.tls.peer_tls)),
    ]
    if made.ray_address:
        fields.append(("placement", _where(made.placement), _where(spec.placement), first))
        before, after = _racks(made.placement), _racks(spec.placement)
        fields.append(("placement.spread's label of racks", before, after, up))
        fields.append(("ray.address", made.ray_address, spec.ray.address, up))
        fields.append(("ray.num_cpus", made.ray_num_cpus, spec.ray.num_cpus, up))
        if spec.serve is not None:  # whose proxy serves is settled when Ray starts
            renewed = f"{up}. A new certificate: replace the files, `stelae certificate renew`"
            has_both = made.serve_tls is not None and spec.serve.tls is not None
            why = renewed if has_both else up
            fields.append(("serve.tls", made.serve_tls, spec.serve.tls, why))
    if spec.timings.lease_s < made.lease_s:
        # A new leader master reckons with its own lease: who got a longer one would still answer.
        fields.append(("timings.lease", made.lease_s, spec.timings.lease_s, up))
    for name, old, new, why in fields:
        if old != new:
            yield f"{name} is {_shown(old)} and cannot become {_shown(new)}: {why}"


def _where(placement: PlacementSpec | None) -> str:
    """Which machines it names; when their servers are replaced may change."""
    if placement is None:
        return ""
    return "spread: node" if placement.label is None else f"label: {placement.label}"


def _racks(placement: PlacementSpec | None) -> str:
    return "" if placement is None else placement.rack_label


def _why_tls_stays(made: PeerTls, asked: PeerTls) -> str:
    """Servers with and without TLS, or with other authorities, do not understand each other."""
    up = "it is chosen when a cluster comes up: `stelae down`, then `stelae up`"
    if made.mode == asked.mode == "files":
        return f"{up}. A new certificate: replace the files where they are, nothing else is needed"
    return up


def _origin(spec: ClusterSpec) -> str:
    return "" if spec.cas_store is None else spec.cas_store.url


def _shown(value: object) -> str:
    return "none" if value in (None, "") else str(value)


def _media(asked: Asked) -> Iterable[str]:
    """A medium that tables are on stays where it is."""
    used = {
        medium
        for table in asked.tables
        for durability in table.durabilities
        for medium in media_of(durability)
    }
    for name in sorted(used):
        if name not in asked.made.media:
            continue  # nobody has it: what is there no more cannot be taken away
        old, new = asked.made.media[name], asked.spec.media.get(name)
        on_it = _named(t for t in asked.tables if any(name in media_of(d) for d in t.durabilities))
        if new is None:
            yield f"media.{name} cannot go: tables {on_it} have segments on it"
        elif old != new.path:
            where = f"{_shown(old)} to {_shown(new.path)}"
            yield f"media.{name} cannot move from {where}: tables {on_it} have segments there"
        elif name in asked.made.synced and new.sync == "on_seal" and not asked.accepts_loss:
            yield (
                f"media.{name}: with sync on_seal a power failure may take acknowledged writes of "
                f"tables {on_it}, which always keeps: --accept-loss, if that is meant"
            )


def _promises(asked: Asked) -> Iterable[str]:
    """Every table keeps as many servers as its durability names; those that do not answer do not
    count."""
    spec, silent = asked.spec, asked.silent
    for table in asked.tables:
        for durability in table.durabilities:
            whose = f"table {table.name!r} with {durability}"
            for kind, count, will_be in _needs(durability, spec):
                away = sorted(name for name, its in silent.items() if its is kind)
                has = will_be - len(away)
                # What is too few now is not made worse. That one is dead just now gives no leave to
                # take it away; and who does not answer keeps nobody who was not counted on before.
                all_of_them = min(count, asked.there(kind, dead=True))
                if will_be < all_of_them or has < min(count, asked.there(kind, dead=False)):
                    yield (
                        f"{kind.value}s.count {will_be} is too few"
                        + (f" while {', '.join(away)} does not answer" if away else "")
                        + f": {whose} needs {count}"
                    )


def _needs(
    durability: Segments | Replicas | Wal, spec: ClusterSpec
) -> Iterable[tuple[ServerKind, int, int]]:
    """(kind, how many it needs, how many there are to be)."""
    if isinstance(durability, Replicas):
        yield ServerKind.TSERVER, durability.count, spec.tservers.count
    if isinstance(durability, Wal):
        yield ServerKind.SAFEKEEPER, durability.count, spec.safekeepers.count
    if media := media_of(durability):
        yield ServerKind.BACKUP, len(media), spec.backups.count  # each has one of a segment


def _in_memory_only(asked: Asked) -> Iterable[str]:
    bound = [table for table in asked.tables if Segments(()) in table.durabilities]
    ending = (Act.RESTART, Act.DRAIN, Act.REMOVE)
    steps = [s for s in asked.steps if s.kind == ServerKind.TSERVER.value and s.act in ending]
    if bound and steps:
        yield (
            f"{', '.join(step.name for step in steps)} cannot be ended: tables {_named(bound)} "
            "with segments() may have rows in its memory only; copy or delete them first"
        )


def _not_yet(asked: Asked) -> Iterable[str]:
    """What cannot be done while a cluster runs, for now."""
    in_memory = {name for name, path in asked.made.media.items() if path is None}
    lost = [
        table
        for table in asked.tables
        if any(in_memory.intersection(media_of(d)) for d in table.durabilities)
    ]
    if lost and asked.of(Act.RESTART, ServerKind.BACKUP):
        yield f"backups cannot be started anew: tables {_named(lost)} have segments in their memory"
    if asked.of(Act.REMOVE, ServerKind.CAS_STORE) or asked.of(Act.ADD, ServerKind.CAS_STORE):
        yield "cas_store cannot come or go"


def _no_room(asked: Asked) -> Iterable[str]:
    spec, room = asked.spec, asked.room
    usable = USABLE_SHARE * spec.tservers.memory_bytes
    restarts = bool(asked.of(Act.RESTART, ServerKind.TSERVER))
    shrinks = bool(asked.of(Act.REMOVE, ServerKind.TSERVER))
    if (restarts or shrinks) and room.rows_bytes > usable * spec.tservers.count:
        yield (
            f"tservers: {spec.tservers.count} with {format_size(spec.tservers.memory_bytes)} each "
            f"cannot hold the {room.rows_bytes / 2**20:,.0f} MiB of rows that there are"
        )
    for step in asked.of(Act.RESTART, ServerKind.TSERVER):
        rows = room.rows_by_server.get(step.name, 0)
        if rows > usable:
            yield (
                f"tservers.memory: {step.name} has {rows / 2**20:,.0f} MiB of rows, and with "
                f"{format_size(spec.tservers.memory_bytes)} it has room for {usable / 2**20:,.0f} "
                "MiB; move tablets to others first (`stelae tablet move`, `stelae rebalance on`)"
            )
    yield from _no_home(asked)
    yield from _too_small(asked)
    yield from room.taken
    more = _more_memory(asked)
    if room.ray_free_bytes is not None and more > room.ray_free_bytes:
        yield (
            f"Ray has {room.ray_free_bytes / 2**20:,.0f} MiB of memory left for servers, and "
            f"{more / 2**20:,.0f} MiB more are asked for: tservers.count × tservers.memory"
        )


def _no_home(asked: Asked) -> Iterable[str]:
    """A tablet that would leave its server finds no other that has room for it."""
    usable = int(USABLE_SHARE * asked.spec.tservers.memory_bytes)
    going = dict.fromkeys(step.name for step in asked.of(Act.REMOVE, ServerKind.TSERVER))
    added = [s.name for s in asked.of(Act.ADD, ServerKind.TSERVER) if s.name not in asked.silent]
    there = [s.name for s in asked.present.servers if s.kind is ServerKind.TSERVER and s.live]
    held = asked.room.live_by_server
    stays = {name: usable - held.get(name, 0) for name in [*there, *added] if name not in going}
    tablet = homeless(going, stays, asked.room.hosted)
    if tablet is not None:
        yield no_home(tablet, stays)


def _too_small(asked: Asked) -> Iterable[str]:
    """A medium that is to be smaller than what some backup, that stays, has on it."""
    going = dict.fromkeys(step.name for step in asked.of(Act.REMOVE, ServerKind.BACKUP))
    for backup, sizes in asked.made.sizes.items():
        used = {} if backup in going else asked.room.used.get(backup, {})
        for medium, before in sizes.items():
            if (wanted := asked.spec.media.get(medium)) is not None:
                used_bytes = used.get(medium, 0)
                if why := too_small(backup, medium, before, wanted.size_bytes, used_bytes):
                    yield why


def _more_memory(asked: Asked) -> int:
    """Of Ray's, while the most servers are there: what is drained goes last. Who waits for room
    already is waited for, and keeps nobody else."""
    after, silent = asked.spec.tservers.memory_bytes, asked.silent
    added = [s for s in asked.of(Act.ADD, ServerKind.TSERVER) if s.name not in silent]
    restarted = asked.of(Act.RESTART, ServerKind.TSERVER)
    grown = sum(after - asked.made.memory_bytes.get(step.name, after) for step in restarted)
    return max(0, len(added) * after + max(0, grown))


def _named(tables: Iterable[TableIs]) -> str:
    names = sorted(table.name for table in tables)
    return ", ".join(names[:NAMED]) + (" …" if len(names) > NAMED else "")
