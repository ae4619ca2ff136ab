"""What a cluster should be: the models behind ``cluster.yaml`` (design §12).

A `ClusterSpec` is valid when it exists: every field is checked by itself and against the others.
``ClusterSpec()`` is the default cluster, and the ``cluster.yaml`` of the repository spells it out.
Reading files, and turning what pydantic says into sentences with file, line and field, is the work
of `stelae.core.config.spec_file`, whose `load_spec` is what callers use.

Attributes carry their unit (``memory_bytes``); in the file the field is what people write
(``memory: 1GiB``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from stelae.core.addresses import NODE_ADDRESS
from stelae.core.config.peer_tls import PeerTls, TlsMode
from stelae.core.config.settings import Settings
from stelae.core.config.store_url import check_store_url, origin_of
from stelae.core.config.units import format_size, parse_duration, parse_size

MIB = 1 << 20
SEGMENTS_PER_MEDIUM = 4
SEGMENTS_PER_SERVER = 8

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_RAY_ADDRESS = re.compile(r"local|auto|(ray://)?[A-Za-z0-9_.\[\]:-]+:\d{1,5}")
_IS_HTTP = re.compile(r"https?://")
_DEFAULTS = Settings()


class RelationErrors(ValueError):
    """Fields that are well by themselves and contradict each other: (path in the spec, text)."""

    def __init__(self, problems: list[tuple[tuple[str, ...], str]]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(f"{'.'.join(path)} {text}" for path, text in self.problems)


def _name(value: Any) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError(
        "must consist of lower-case letters, digits, - and _, start with a letter and have "
        f"63 characters at most, got {value!r}"
    )


def _ray_address(value: Any) -> str:
    if isinstance(value, str) and _RAY_ADDRESS.fullmatch(value):
        return value
    raise ValueError(f"must be local, auto, host:port or ray://host:port, got {value!r}")


def _store_url(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, got {value!r}")
    check_store_url(value)
    return value


def _collector(value: Any) -> str:
    """Its text never shows what was given: it may have a password in it."""
    if not isinstance(value, str):
        raise ValueError("must be text")
    try:
        parts = urlsplit(value)
        is_sane = parts.port != 0 and bool(parts.hostname) and value.isascii()
    except ValueError:
        is_sane = False
    if not is_sane or not value.isprintable() or " " in value or not _IS_HTTP.match(value):
        raise ValueError("must be the URL of a collector, such as http://collector:4318")
    if "@" in value or "?" in value or "#" in value:
        raise ValueError("must have no user, password, ? or # in it")
    return value.rstrip("/")


def _text(value: Any) -> str:
    if isinstance(value, str) and value.strip() and "\0" not in value:
        return value
    raise ValueError(f"must be text that is not empty, got {value!r}")


_SIZE_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*([KMGT]i?)?B\s*$"},
    ],
    "examples": ["512MiB", "1GiB"],
}
_STORE_SCHEMA = {"type": "string", "examples": ["sqlite:///cas.db", "postgresql://me@host/db"]}
_COLLECTOR_SCHEMA = {"type": "string", "examples": ["http://collector:4318"]}
_NAME_SCHEMA = {"type": "string", "pattern": f"^{_NAME.pattern}$"}
_DURATION_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(us|ms|s|m|min|h|d)\s*$"},
    ],
    "examples": ["250ms", "2s"],
}
Name = Annotated[str, BeforeValidator(_name), WithJsonSchema(_NAME_SCHEMA)]
Collector = Annotated[str, BeforeValidator(_collector), WithJsonSchema(_COLLECTOR_SCHEMA)]
StoreUrl = Annotated[str, BeforeValidator(_store_url), WithJsonSchema(_STORE_SCHEMA)]
Text = Annotated[str, BeforeValidator(_text)]
RayAddress = Annotated[str, BeforeValidator(_ray_address)]


def _size_or_off(value: Any) -> int:
    if value is False or value in ("off", 0):  # YAML reads off as a boolean
        return 0
    size_bytes = parse_size(value)
    if size_bytes < MIB:
        raise ValueError(f"must be off, or {format_size(MIB)} or more, got {value!r}")
    return size_bytes


Size = Annotated[int, BeforeValidator(parse_size), WithJsonSchema(_SIZE_SCHEMA)]
SizeOrOff = Annotated[
    int,
    BeforeValidator(_size_or_off),
    WithJsonSchema({"anyOf": [*_SIZE_SCHEMA["anyOf"], {"enum": ["off", False]}]}),
]
"""A size of at least 1 MiB; 0: off."""


def _tls_mode(value: Any) -> Any:
    return "off" if value is False else value  # YAML reads off as a boolean


PeerTlsMode = Annotated[
    TlsMode,
    BeforeValidator(_tls_mode),
    WithJsonSchema({"enum": [*get_args(TlsMode), False]}),
]
Duration = Annotated[float, BeforeValidator(parse_duration), WithJsonSchema(_DURATION_SCHEMA)]


class Section(BaseModel):
    """Base of all sections: frozen, unknown fields refused, nothing converted silently."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _spread(value: Any) -> Any:
    if value == "node":
        return value
    is_pair = isinstance(value, list | tuple) and len(value) == 2 and value[0] == "node"
    if not is_pair or not isinstance(value[1], str) or value[1] in ("", "node"):
        raise ValueError(f"must be node, or [node, LABEL], got {value!r}")
    return tuple(value)


Spread = Annotated[Literal["node"] | tuple[Literal["node"], str], BeforeValidator(_spread)]


class RaySpec(Section):
    """Which Ray: ``local`` starts one, ``auto`` joins a running one, else its address."""

    address: RayAddress = "local"
    num_cpus: int | None = Field(default=None, ge=1, le=4096)
    """Logical CPUs of a Ray that Stelae starts; None: as many as the machine has."""


class PlacementSpec(Section):
    """Servers over the machines of a Ray with several nodes. A server stays on the machine that it
    was first put on, as its disk is there."""

    spread: Spread | None = None
    """``node``: each of Ray's nodes is a machine, known by its address, which has to stay.
    ``[node, rack]``: the same, and the second word is a label of Ray's nodes (``ray start --labels
    rack=r1``). Copies go to nodes that differ in it, as long as there are such. A node without the
    label is a rack of its own."""
    label: Text | None = None
    """Label of Ray's nodes each value of which is a machine (``ray start --labels disk=a``)."""
    replace_after_s: Duration | None = Field(default=None, alias="replace_after", ge=10)
    """Time after which servers of a machine that stays away, but for masters, are started on other
    machines, empty and with new UUIDs. None: never. Ray starts a node again within some seconds: a
    shorter time would give up the disks of a machine whose Ray is started again."""

    @model_validator(mode="after")
    def _one_way(self) -> PlacementSpec:
        if (self.spread is None) == (self.label is None):
            text = "takes either spread: node or spread: [node, RACK], or a label of Ray's nodes"
            raise RelationErrors([(("spread",), text)])
        return self

    @property
    def machine_label(self) -> str:
        """Label of Ray's nodes whose values are the machines; `NODE_ADDRESS`: their addresses."""
        return self.label or NODE_ADDRESS

    @property
    def rack_label(self) -> str:
        """Label of Ray's nodes whose values are the racks; empty: each node is one."""
        return self.spread[1] if isinstance(self.spread, tuple) else ""


class PeerTlsSpec(Section):
    """TLS between the cluster's own processes, and to its clients, wherever bytes leave a machine.
    HTTP has its own: ``serve.tls``."""

    mode: PeerTlsMode = "off"
    """``internal``: each process makes its certificate, by the cluster's secret; needs
    ``stelae[tls]``. ``files``: from the files named here."""
    certificate: Text | None = None
    """File in PEM on every machine: the certificate, and the chain above it."""
    key: Text | None = None
    """File in PEM on every machine: its private key, without a passphrase."""
    authority: Text | None = None
    """File in PEM on every machine: the certificates of those who sign the cluster's."""

    @model_validator(mode="after")
    def _files(self) -> PeerTlsSpec:
        files = {"certificate": self.certificate, "key": self.key, "authority": self.authority}
        problems: list[tuple[tuple[str, ...], str]] = []
        for name, path in files.items():
            if self.mode != "files":
                if path is not None:
                    text = f"is for tls.mode files; the mode is {self.mode}"
                    problems.append(((name,), text))
            elif path is None:
                text = "is missing: tls.mode files needs certificate, key and authority"
                problems.append(((name,), text))
            elif not os.path.isabs(path):
                text = f"must be an absolute path, the same on every machine, got {path!r}"
                problems.append(((name,), text))
        if problems:
            raise RelationErrors(problems)
        return self

    @property
    def peer_tls(self) -> PeerTls:
        """The section as plans carry it."""
        return PeerTls(self.mode, self.certificate or "", self.key or "", self.authority or "")


class MastersSpec(Section):
    count: int = Field(default=3, ge=1, le=7)
    """Odd: an even number of masters survives no more failures than one master fewer."""

    @model_validator(mode="after")
    def _odd(self) -> MastersSpec:
        if self.count % 2 == 0:
            raise RelationErrors([(("count",), f"must be odd (1, 3, 5 or 7), got {self.count}")])
        return self


class TserversSpec(Section):
    count: int = Field(default=3, ge=1, le=1000)
    memory_bytes: Size = Field(default=1024 * MIB, alias="memory", ge=MIB)
    """Of each tserver, for rows and index; beyond it, writes get `OutOfMemory`."""
    quarantine_keep_s: Duration = Field(
        default=_DEFAULTS.quarantine_keep_s, alias="quarantine_keep", ge=0
    )
    """Files of deleted replicas are removed for good after so long; 0: only by operators."""


class BackupsSpec(Section):
    count: int = Field(default=3, ge=0, le=1000)
    copysets: int = Field(default=0, ge=0, le=100)
    """Backups in a group, in which all replicas of a segment lie; 0: they lie anywhere. With groups
    the loss of several machines at once seldom loses anything, and more if it does."""
    rereplication_bytes_per_s: Size = Field(
        default=_DEFAULTS.rereplication_bytes_per_s, alias="rereplication", ge=0
    )
    """Bytes a second that each tablet server sends, at most, to make lost replicas anew; 0: any."""


class SafekeepersSpec(Section):
    """Servers that keep the logs of tables with ``wal(n)``: at least n, best one more."""

    count: int = Field(default=0, ge=0, le=1000)
    evict_after_s: Duration = Field(default=_DEFAULTS.evict_after_s, alias="evict_after", ge=0)
    """The log of a tablet that nobody has written to for so long goes from the safekeepers to the
    backups, until it is needed; 0: never."""
    evict_copies: int = Field(default=_DEFAULTS.evict_copies, ge=1, le=100)
    """Backups that each file of such a log goes to, from each safekeeper."""


class CasStoreSpec(Section):
    """A server that keeps the configurations of ``wal(n)`` tables' logs, in place of the masters.

    While it is away nothing is created or migrated; everybody reads and writes.
    """

    url: StoreUrl
    """``sqlite:///cas.db``: a file in the server's folder, each write synced. Or the URL of a
    PostgreSQL database, which several clusters may share; it has no password, but a passfile."""

    @property
    def origin(self) -> str:
        """What must stay the same for as long as the cluster is there. A database may move."""
        return origin_of(self.url)


class Medium(Section):
    """Where a backup keeps segment replicas: a folder (``path``) or memory (``size``)."""

    path: Text | None = None
    """Folder inside each backup's own data directory, or an absolute one."""
    size_bytes: Size | None = Field(default=None, alias="size", ge=1)
    """Most bytes of segment replicas in one backup; a medium in memory must have it."""
    sync: Literal["always", "on_seal"] | None = None
    """When a folder's writes are made durable: before each answer, or when a segment is sealed."""

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("path") is not None:
            return {"sync": "always", **value}
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> Medium:
        if self.path is None and self.size_bytes is None:
            raise RelationErrors([((), "needs a path (a folder) or a size (memory)")])
        if self.path is None and self.sync is not None:
            raise RelationErrors([(("sync",), "is for media with a path; this one is memory")])
        return self


def _default_media() -> dict[str, Medium]:
    return {"disk": Medium(path="disk", sync="always"), "ram": Medium(size=512 * MIB)}


class TlsSpec(Section):
    """HTTPS: files in PEM, on every node with a proxy, and readable there."""

    cert: Text
    """The chain, the server's own first."""
    key: Text


class LimitsSpec(Section):
    """What each replica of the front takes on; what is more is refused before it is begun."""

    body_bytes: Size = Field(default=64 * MIB, alias="body", ge=1024, le=64 * MIB)
    """Of one request; beyond it, 413."""
    bodies_bytes: Size = Field(default=256 * MIB, alias="bodies", ge=1024, le=64 << 30)
    """Of all requests in hand; beyond it, 429."""
    requests: int = Field(default=256, ge=1, le=10_000)
    """In hand at once; beyond it, 429."""
    rows: int = Field(default=1_000_000, ge=1, le=10_000_000)
    """Of one call or page; beyond it, 400."""
    timeout_s: Duration = Field(default=30.0, alias="timeout", ge=0.1, le=600)
    """Of a call that does not say how long it may take; scans have the longest."""
    timeout_max_s: Duration = Field(default=600.0, alias="timeout_max", ge=0.1, le=600)
    """The longest that a call may ask for."""
    audit_keep_s: Duration = Field(default=90 * 86400.0, alias="audit_keep", ge=60, le=3650 * 86400)
    """How long the audit table keeps a call."""
    audit_rows: int = Field(default=50_000, ge=100, le=1_000_000)
    """Of the audit table at most; the oldest go."""

    @model_validator(mode="after")
    def _in_order(self) -> LimitsSpec:
        problems: list[tuple[tuple[str, ...], str]] = []
        if self.bodies_bytes < self.body_bytes:
            problems.append((("bodies",), "holds less than one body (serve.limits.body)"))
        if self.timeout_max_s < self.timeout_s:
            problems.append((("timeout_max",), "is shorter than serve.limits.timeout"))
        if problems:
            raise RelationErrors(problems)
        return self


class ServeSpec(Section):
    """The HTTP front door on Ray Serve."""

    host: Text = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    """0: any free port, told by ``stelae status``."""
    replicas: int = Field(default=1, ge=1, le=100)
    tls: TlsSpec | None = None
    limits: LimitsSpec = LimitsSpec()


class SparkSpec(Section):
    """The Spark session that recovery and `stelae.spark` share, started on demand or warm."""

    executors: int = Field(default=2, ge=1, le=1000)
    cores: int = Field(default=1, ge=1, le=256)
    memory_bytes: Size = Field(default=1024 * MIB, alias="memory", ge=512 * MIB)
    warm: bool = False
    """Start it with the cluster: a recovery then saves the 10–30 s that a start takes."""


class TracesSpec(Section):
    """Where traces go: a collector that takes OTLP over HTTP. Needs ``stelae[traces]``."""

    endpoint: Collector
    """Without ``/v1/traces``, as OpenTelemetry's variables have it. Where a process has one of
    these, it wins."""


class RecoverySpec(Section):
    engine: Literal["auto", "native", "spark"] = "auto"
    metadata_first: bool = True
    """Serve a recovered tablet once its summaries are there, and load its rows then."""
    load_rate_bytes: Size = Field(
        default=int(_DEFAULTS.load_bytes_per_s), alias="load_rate", ge=MIB
    )
    """Bytes a second that a tablet server loads so, at most."""
    split_above_bytes: SizeOrOff = Field(default=_DEFAULTS.split_above_bytes, alias="split_above")
    """A tablet whose log on each backup is longer is split when it is recovered, if there are other
    servers; so is one larger than any server's memory. ``off``: none is, whatever its rows."""
    split_above_rows: int = Field(default=_DEFAULTS.split_above_rows, ge=1)
    """The same, of rows."""


class TimingsSpec(Section):
    """Advanced. What heartbeats, leases and control calls take; shorter is not always better."""

    heartbeat_s: Duration = Field(default=_DEFAULTS.heartbeat_s, alias="heartbeat", ge=0.01, le=60)
    lease_s: Duration = Field(default=_DEFAULTS.lease_s, alias="lease", ge=0.03, le=600)
    dead_after_s: Duration = Field(
        default=_DEFAULTS.dead_after_s, alias="dead_after", ge=0.03, le=3600
    )
    call_timeout_s: Duration = Field(
        default=_DEFAULTS.call_timeout_s, alias="call_timeout", ge=0.1, le=600
    )

    @model_validator(mode="after")
    def _relations(self) -> TimingsSpec:
        problems: list[tuple[tuple[str, ...], str]] = []
        if self.lease_s < 3 * self.heartbeat_s:
            least = f"{3 * self.heartbeat_s:g}s"
            text = f"must be at least three heartbeats ({least}), got {self.lease_s:g}s"
            problems.append((("lease",), text))
        if self.dead_after_s < self.lease_s:
            text = f"must not be below the lease ({self.lease_s:g}s), got {self.dead_after_s:g}s"
            problems.append((("dead_after",), text))
        if problems:
            raise RelationErrors(problems)
        return self


PROFILES: dict[str, dict[str, Any]] = {
    "default": {},
    "small": {
        "masters": {"count": 1},
        "tservers": {"count": 1, "memory": 256 * MIB},
        "backups": {"count": 2},
        "serve": None,
        "spark": None,
    },
}
"""Values of the fields that a spec leaves out, by profile; whatever is in none is as by default."""


def _with_preset(given: Mapping[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, and what the preset has of the rest, also within sections. Pure."""
    found = dict(given)
    for name, value in preset.items():
        if name not in found:
            found[name] = value
        elif isinstance(value, Mapping) and isinstance(found[name], Mapping):
            found[name] = _with_preset(found[name], value)
    return found


class ClusterSpec(Section):
    """A whole cluster. ``launch`` takes it as an object, a dict, or the path of a file."""

    api_version: Literal["stelae/v1"] = Field(default="stelae/v1", alias="apiVersion")
    kind: Literal["Cluster"] = "Cluster"
    profile: Literal["default", "small"] = "default"
    """``small``: for notebooks and CI. One master, one tablet server with 256MiB, two backups, no
    Spark and no HTTP, as Ray Serve takes as much memory as all of these. Tables have segments on up
    to two backups; while the master restarts, nothing is created or recovered. Fields that are
    given go over those of the profile."""
    cluster: Name = "demo"
    ray: RaySpec = RaySpec()
    placement: PlacementSpec | None = None
    """None: all servers run on the node of whoever launches them."""
    tls: PeerTlsSpec = PeerTlsSpec()
    data_dir: Text = ""
    """Of all servers, one folder each; ``.stelae/<cluster>`` if absent; made absolute on load."""
    masters: MastersSpec = MastersSpec()
    tservers: TserversSpec = TserversSpec()
    safekeepers: SafekeepersSpec = SafekeepersSpec()
    cas_store: CasStoreSpec | None = None
    """None: the masters keep what it would."""
    backups: BackupsSpec = BackupsSpec()
    media: dict[Name, Medium] = Field(default_factory=_default_media)
    segment_size_bytes: Size = Field(
        default=_DEFAULTS.segment_bytes, alias="segment_size", ge=MIB // 16, le=256 * MIB
    )
    serve: ServeSpec | None = ServeSpec()
    """None: no HTTP."""
    spark: SparkSpec | None = SparkSpec()
    """None: no Spark."""
    traces: TracesSpec | None = None
    """None: as OpenTelemetry's variables say."""
    recovery: RecoverySpec = RecoverySpec()
    timings: TimingsSpec = TimingsSpec()

    @model_validator(mode="before")
    @classmethod
    def _default_folder(cls, value: Any) -> Any:
        if isinstance(value, dict) and "data_dir" not in value:
            return {**value, "data_dir": f".stelae/{value.get('cluster', 'demo')}"}
        return value

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, value: Any) -> Any:
        profile = value.get("profile") if isinstance(value, dict) else None
        if not isinstance(profile, str) or profile not in PROFILES:
            return value  # absent, or refused by its field
        return _with_preset(value, PROFILES[profile])

    @model_validator(mode="after")
    def _relations(self) -> ClusterSpec:
        problems = [*self._memory_problems(), *self._media_problems()]
        keepers = self.safekeepers
        if keepers.evict_after_s and keepers.evict_copies > self.backups.count:
            text = f"must not be above the number of backups ({self.backups.count})"
            problems.append((("safekeepers", "evict_copies"), text))
        if self.backups.copysets > self.backups.count:
            text = f"must not be above the number of backups ({self.backups.count})"
            problems.append((("backups", "copysets"), text))
        if self.ray.num_cpus is not None and self.ray.address != "local":
            text = f"is for a Ray that Stelae starts; that at {self.ray.address!r} has its own"
            problems.append((("ray", "num_cpus"), text))
        if self.placement is not None and self.ray.address == "local":
            text = "is for a Ray with several nodes; one that Stelae starts is one machine"
            problems.append((("placement",), text))
        if self.recovery.engine == "spark" and self.spark is None:
            problems.append((("recovery", "engine"), "is spark, and there is no spark section"))
        if problems:
            raise RelationErrors(problems)
        return self

    def _memory_problems(self) -> list[tuple[tuple[str, ...], str]]:
        least = SEGMENTS_PER_SERVER * self.segment_size_bytes
        if self.tservers.memory_bytes >= least:
            return []
        text = f"must hold {SEGMENTS_PER_SERVER} segments ({format_size(least)} or more)"
        return [(("tservers", "memory"), text)]

    def _media_problems(self) -> list[tuple[tuple[str, ...], str]]:
        problems: list[tuple[tuple[str, ...], str]] = []
        least = SEGMENTS_PER_MEDIUM * self.segment_size_bytes
        name_by_path: dict[str, str] = {}
        for name, medium in self.media.items():
            if medium.size_bytes is not None and medium.size_bytes < least:
                text = f"must hold {SEGMENTS_PER_MEDIUM} segments ({format_size(least)} or more)"
                problems.append((("media", name, "size"), text))
            if medium.path is None:
                continue
            other = name_by_path.setdefault(medium.path.rstrip("/"), name)
            if other != name:
                text = f"is the folder of the medium {other!r} too; each needs its own"
                problems.append((("media", name, "path"), text))
        return problems

    @property
    def traces_endpoint(self) -> str:
        """Empty: the file names none."""
        return "" if self.traces is None else self.traces.endpoint

    @property
    def others_count(self) -> int:
        """Servers that are no masters."""
        stores = int(self.cas_store is not None)
        return self.tservers.count + self.safekeepers.count + self.backups.count + stores

    def settings(self) -> Settings:
        """What the servers run with: this spec's timings and segment size, else the defaults."""
        return Settings(
            heartbeat_s=self.timings.heartbeat_s,
            lease_s=self.timings.lease_s,
            dead_after_s=self.timings.dead_after_s,
            call_timeout_s=self.timings.call_timeout_s,
            segment_bytes=self.segment_size_bytes,
            quarantine_keep_s=self.tservers.quarantine_keep_s,
            evict_after_s=self.safekeepers.evict_after_s,
            evict_copies=self.safekeepers.evict_copies,
            copyset_size=self.backups.copysets,
            rereplication_bytes_per_s=self.backups.rereplication_bytes_per_s,
            metadata_first=self.recovery.metadata_first,
            load_bytes_per_s=float(self.recovery.load_rate_bytes),
            split_above_bytes=self.recovery.split_above_bytes,
            split_above_rows=self.recovery.split_above_rows,
        )

    def document(self) -> dict[str, Any]:
        """The spec as a dict with the field names of the file; `load_spec` reads it back."""
        return self.model_dump(by_alias=True, exclude_none=False)


def spec_json_schema() -> dict[str, Any]:
    """JSON schema of ``cluster.yaml``, for editors."""
    return ClusterSpec.model_json_schema(by_alias=True)
