"""Answers about the state of the cluster, as OpenAPI shows them. More members may come."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stelae.serve.bodies.models import Json


class Document(BaseModel):
    """Members that are named here are always there; more may come."""

    model_config = ConfigDict(extra="allow")


class ServerStatus(Document):
    kind: str = Field(examples=["tserver"], description="master, tserver, backup, safekeeper, …")
    id: str = Field(examples=["tserver-0"], description="Its name.")
    uuid: str = Field(examples=["7968d2b5ee974889b7e465e26be732d9"])
    incarnation: int = Field(examples=[1], description="Grows with each start.")
    node: str = Field(examples=["node-a"])
    rack: str = Field(
        examples=["r1"], description="Of its node; empty: it has none, or is of a version before."
    )
    pid: int = Field(examples=[4711])
    address: str = Field(examples=["10.0.0.7:37565"])
    state: Literal["live", "dead"] = Field(examples=["live"])


class TableStatus(Document):
    id: str = Field(examples=["fc6d8924dc9e48ca933adf9eb0904179"])
    name: str = Field(examples=["flights"])
    durability: str = Field(examples=["segments('disk', 'disk')"])
    becoming: str | None = Field(examples=[None], description="While the durability is altered.")
    key: list[str] = Field(examples=[["id"]])
    schema_version: int = Field(examples=[1])
    tablets: int = Field(examples=[8])
    tablets_running: int = Field(examples=[8])
    state: str = Field(examples=["running"])
    rows: int | None = Field(examples=[336776], description="null: it is not known here.")
    memory_bytes: int | None = Field(examples=[52428800])
    indexes: list[str] = Field(examples=[["dest"]])


class TabletStatus(Document):
    id: str = Field(examples=["ed0b89d0047c40a28c937001d0a25357"])
    table: str = Field(examples=["flights"])
    number: int = Field(examples=[0])
    state: str = Field(examples=["running"])
    term: int = Field(examples=[1])
    leader: str = Field(examples=["tserver-2"])
    address: str = Field(examples=["10.0.0.7:39311"], description="Empty: it is not served.")
    durability: str = Field(examples=["segments('disk', 'disk')"])
    rows: int | None = Field(examples=[42097])
    memory_bytes: int | None = Field(examples=[6553600])
    problem: str = Field(examples=[""], description="Empty: there is none.")


class RecoveryStatus(Document):
    id: int = Field(examples=[1])
    server: str = Field(examples=["tserver-0"])
    cause: str = Field(examples=["tserver-0 is dead"])
    state: Literal["running", "done"] = Field(examples=["done"])
    engine: str = Field(examples=["native"])
    started: float = Field(examples=[1795752441.2], description="Seconds since 1970.")
    tablets_total: int = Field(examples=[2])
    tablets_running: int = Field(examples=[2])
    loaded: float = Field(examples=[1.0], description="Share of the rows that are in memory.")
    tablets: list[dict[str, Json]] = Field(
        examples=[[{"id": "92747de211da45be9317c4ab35827d75", "phase": "running", "rows": 128}]]
    )


class CopyStatus(Document):
    tablet: str = Field(examples=["ed0b89d0047c40a28c937001d0a25357"])
    table: str = Field(examples=["flights"])
    server: str = Field(examples=["tserver-4"], description="Who receives it.")
    source: str = Field(examples=["tserver-1"])
    state: str = Field(examples=["copying"])
    copied_bytes: int = Field(examples=[1048576])
    bytes: int = Field(examples=[6553600])
    problem: str = Field(examples=[""])


class Event(Document):
    id: int = Field(examples=[15])
    time: float = Field(examples=[1795752441.246])
    text: str = Field(examples=["table flights: 8 tablets served"])


class Cluster(Document):
    cluster: str = Field(examples=["demo"])
    time: float = Field(examples=[1795752444.26])
    term: int = Field(examples=[1], description="Of the masters.")
    servers: list[ServerStatus]
    tables: list[TableStatus]
    tablets: list[TabletStatus]
    recoveries: list[RecoveryStatus]
    events: list[Event]
    indexes: list[dict[str, Json]] = Field(
        examples=[[{"table": "flights", "column": "dest", "state": "serving"}]]
    )
    stopped: list[str] = Field(
        examples=[["tserver-3"]], description="Servers that an operator stopped."
    )
    away: dict[str, Json] | None = Field(
        examples=[{"since": {}, "there": {}, "servers": []}],
        description="Machines that Ray does not have, since when, with which servers, and what "
        "becomes of those; null: nothing is known.",
    )
    warnings: list[str] = Field(
        examples=[[]], description="Nodes or racks that are too few for the spread."
    )


class ServerListing(BaseModel):
    servers: list[ServerStatus]


class RecoveryListing(BaseModel):
    recoveries: list[RecoveryStatus]


class CopyListing(BaseModel):
    copies: list[CopyStatus]


class ProblemInfo(BaseModel):
    type: str = Field(examples=["/problems/row-exists"])
    title: str = Field(examples=["A row with that key exists"])
    status: int = Field(examples=[409])


class Finding(BaseModel):
    section: str = Field(examples=["servers"])
    subject: str = Field(examples=["tserver-0"], description="What it is about, by name.")
    text: str = Field(examples=["dead for 12 s"])
    severity: Literal["note", "warning", "error"] = Field(examples=["warning"])
    hint: str = Field(examples=["start it again"], description="What to do; empty: nothing.")


class CheckReport(Document):
    well: bool = Field(examples=[False])
    cluster: str | None = Field(examples=["demo"], description="null: no master answered.")
    findings: list[Finding]


class TabletRecordInfo(Document):
    tablet_id: str = Field(examples=["ed0b89d0047c40a28c937001d0a25357"])
    table_id: str = Field(examples=["fc6d8924dc9e48ca933adf9eb0904179"])
    number: int = Field(examples=[0])
    state: str = Field(examples=["running"])
    term: int = Field(examples=[3])
    generation: int = Field(examples=[7])


class TabletReply(BaseModel):
    tablet: TabletRecordInfo


class RetiredServer(BaseModel):
    name: str = Field(examples=["tserver-1"])
    uuid: str = Field(examples=["7968d2b5ee974889b7e465e26be732d9"])
    retiring: bool = Field(examples=[True])
    live: bool = Field(examples=[True])
    replicas: int = Field(examples=[4])
    tablets: int = Field(examples=[0])
    bound: int = Field(examples=[0], description="Tablets that nobody else may have yet.")
    indexlets: int = Field(examples=[1])
    segments: int = Field(examples=[0], description="Of a backup: replicas that are there yet.")
    problem: str = Field(examples=[""], description="What keeps it from being empty.")


class LostTablet(Document):
    tablet: str = Field(examples=["ed0b89d0047c40a28c937001d0a25357"])
    table: str = Field(examples=["flights"])
    number_in_table: int = Field(examples=[3])
    term: int = Field(examples=[2])
    segments: list[dict[str, Json]] = Field(
        examples=[[{"segment": "1.4", "rows": 5120, "bytes": 8388608}]],
        description="Figures that nobody knows are null.",
    )
    end_lost: bool = Field(examples=[False])
    served: bool = Field(examples=[False])


class AcceptedLoss(LostTablet):
    number: int = Field(examples=[1])
    accepted_at: float = Field(examples=[1795752444.26])
    accepted_by: str = Field(examples=["Ada, ticket 7 (token admin)"])
    backups_gone: list[str] = Field(examples=[["backup-2"]])


class SilentBackup(BaseModel):
    """A backup that may hold what is missing."""

    name: str = Field(examples=["backup-2"])
    uuid: str = Field(examples=["7968d2b5ee974889b7e465e26be732d9"])
    machine: str = Field(examples=["node-a"])
    live: bool = Field(examples=[False])
    silent_s: float | None = Field(
        examples=[42.5], description="null: it has not reported since this leader master began."
    )


class Losses(BaseModel):
    waiting: list[LostTablet]
    fingerprint: str = Field(examples=["8c2f61b07d1e9a34"], description="Empty: nothing waits.")
    silent_backups: list[str] = Field(examples=[["backup-2"]])
    silent: list[SilentBackup] = Field(description="The same backups, and what is known of each.")
    accepted: list[AcceptedLoss]


class Accepted(BaseModel):
    accepted: list[AcceptedLoss]
