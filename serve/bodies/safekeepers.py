"""Bodies of the API of safekeepers. Names are the seed's: *tenant* is the table, *timeline* the
tablet, *node* the safekeeper. (seed 004, "API")"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field

from stelae.core.records.configurations import MEMBERS_MAX
from stelae.serve.bodies.models import Body

U32_MAX = (1 << 32) - 1

NodeId: TypeAlias = Annotated[int, Field(ge=0, le=U32_MAX)]
Status: TypeAlias = Literal["active", "offline", "decommissioned"]


class UpsertSafekeeperRequest(Body):
    """A safekeeper registers itself, with its first heartbeat, which gives it its id for ever, and
    says where it is with each: so there is nothing to insert here, and of its fields the status
    alone is anybody else's to set. Where it is may be named, and must be right then."""

    id: NodeId = Field(examples=[1])
    status: Status | None = Field(default=None, description="As it is, if absent.")
    host: str | None = Field(default=None, description="Must be the one that it says itself.")
    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None, description="Must be the one that it says itself."
    )


class SafekeeperStatusRequest(Body):
    status: Status = Field(
        examples=["offline"],
        description="offline: it is expected back, and gets nothing new. decommissioned: it never "
        "comes back, and others take its timelines over.",
    )


class MigrateSafekeeperRequest(Body):
    src_sk: NodeId = Field(examples=[1])
    dst_sk: NodeId = Field(examples=[4])
    limit: Annotated[int, Field(ge=1, le=U32_MAX)] | None = Field(
        default=None, description="So many timelines; all if absent."
    )


class MigrateRequest(Body):
    desired_set: list[NodeId] = Field(
        min_length=1,
        max_length=MEMBERS_MAX,
        examples=[[2, 3, 4]],
        description="As many as the table's wal(n) says, each once.",
    )


class SafekeeperInfo(BaseModel):
    id: int = Field(examples=[1])
    name: str = Field(examples=["safekeeper-0"])
    uuid: str = Field(examples=["7968d2b5ee974889b7e465e26be732d9"])
    node: str = Field(examples=["node-a"], description="The machine that it ran on last.")
    address: str = Field(description="Where it was heard last; empty: not by this leader master.")
    status: Status
    live: bool
    silent_s: float | None
    timelines: int = Field(description="Of which it is a member.")
    broken: int = Field(description="Of these, so many do nothing any more: its disk failed.")


class Configuration(BaseModel):
    generation: int
    sk_set: list[int] = Field(examples=[[1, 2, 3]])
    new_sk_set: list[int] | None = Field(
        examples=[[2, 3, 4]], description="While the members change; else null."
    )


class Scheduled(BaseModel):
    tenant_id: str = Field(examples=["flights"])
    timeline_id: str = Field(examples=["ed0b89d0047c40a28c937001d0a25357"])
    desired_set: list[int] = Field(examples=[[2, 3, 4]])
    reason: str


class Migration(BaseModel):
    """A request under way."""

    tenant_id: str = Field(examples=["flights"])
    timeline_id: str = Field(examples=["ed0b89d0047c40a28c937001d0a25357"])
    step: int = Field(description="Of the procedure, from 1; 0: it waits for its turn.")
    step_name: str
    generation: int
    sk_set: list[int] = Field(examples=[[1, 2, 3]])
    desired_set: list[int] | None
    waits_for: list[str]
    problems: dict[str, str] = Field(description="What failed last, by what was tried.")
    sync_position: dict[str, Any] | None = Field(
        description="What a majority of the new members has to reach: last_log_term, flush_lsn."
    )
    verdict: str = Field(description="Empty until it is decided.")


class MigrationResult(BaseModel):
    """How a request ended."""

    tenant_id: str = Field(examples=["flights"])
    timeline_id: str = Field(examples=["ed0b89d0047c40a28c937001d0a25357"])
    request: str
    verdict: str = Field(examples=["done", "aborted", "refused", "unreachable", "under way"])
    reason: str
    generation: int
    finished: bool = Field(description="false: something is left to be done, and will be.")
    at: float


class TimelineInfo(BaseModel):
    tenant_id: str = Field(examples=["flights"])
    timeline_id: str = Field(examples=["ed0b89d0047c40a28c937001d0a25357"])
    configuration: Configuration = Field(description="Of the configuration store.")
    catalog_generation: int = Field(description="What the masters' catalog has been told of.")
    unfinished: list[str] = Field(description="What is left to be done of the last change.")
    store_problem: str = Field(description="Why the store did not answer; empty: it did.")
    migration: Migration | None = Field(description="The request under way, if there is one.")
    last_result: MigrationResult | None


class MigrationListing(BaseModel):
    running: list[Migration]
    ended: list[MigrationResult] = Field(description="The newest last.")


class TimelineName(BaseModel):
    tenant_id: str = Field(examples=["flights"])
    timeline_id: str = Field(examples=["ed0b89d0047c40a28c937001d0a25357"])


class Scrubbed(BaseModel):
    held: int
    removed: list[TimelineName]
    unknown: list[str] = Field(description="The store knows nothing of them: left alone.")
    problems: dict[str, str] = Field(description="What could not be removed, and why.")
