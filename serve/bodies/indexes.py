"""Bodies of the HTTP API about indexes, as pydantic models."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from stelae.serve.bodies.models import Body, Json


class FindRequest(Body):
    """Either `value` or `between`."""

    column: str = Field(examples=["dest"])
    value: Json = Field(default=None, examples=["LAX"], description="null: rows with null there.")
    between: list[Json] | None = Field(
        default=None,
        min_length=2,
        max_length=2,
        examples=[["A", "M"]],
        description="First and last, both included; null: no bound. Rows with null are left out.",
    )
    limit: int | None = Field(default=None, ge=1, le=1 << 53, description="Rows of one answer.")
    after: str | None = Field(
        default=None, description="`next` of the answer before: the rows after those."
    )
    columns: list[str] | None = Field(default=None, min_length=1)
    reverse: bool = Field(default=False, description="The greatest value first.")
    with_versions: bool = Field(default=False, description="Adds `_version` to each row.")
    if_filling: Literal["wait", "scan"] = Field(
        default="wait",
        description="While the index is made (anew): wait for it, or scan the table.",
    )

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {"column": "dest", "value": "LAX", "limit": 100},
                {"column": "dest", "between": ["A", "M"], "reverse": True},
            ]
        },
    )


class FoundReply(BaseModel):
    rows: list[dict[str, Json]] = Field(
        examples=[[{"id": 42, "dest": "LAX"}]], description="In the order of value and key."
    )
    next: str | None = Field(description="For `after` of the next request; null: that was all.")


class CreateIndexRequest(Body):
    column: str = Field(
        examples=["dest"],
        description="Integers, bool, string, binary, date, timestamp, decimal128 or float.",
    )
    unique: bool = Field(
        default=False,
        description="true is refused: tablets cannot check rows against each other without a "
        "transaction. The problem says what to do in its place.",
    )
    wait: bool = Field(default=True, description="Answer once it is filled.")


class IndexletInfo(BaseModel):
    id: str = Field(examples=["5b1c9e3ad2f04f7c8a61f0c2d3e4b5a6"])
    state: Literal["filling", "serving"]
    term: int
    low: str = Field(description="Its first entry, in hex; empty: no bound.")
    high: str = Field(description="The first entry after it, in hex; empty: no bound.")
    server: str = Field(examples=["tserver-2"])
    address: str = Field(
        examples=["10.0.0.7:39311"], description="Empty if its server is not live."
    )
    progress: str = Field(description="What its server says; empty: nothing yet.")
    entries: int
    memory_bytes: int
    tablets_filled: int = Field(description="Tablets that have given all that they have.")
    tablets: int
    successors: int = Field(description="It is being split or moved to so many.")
    copied_entries: int
    problem: str


class IndexInfo(BaseModel):
    id: str = Field(examples=["0c2f61b07d1e4a34a0b4f2b6b4f0a1c2"])
    table: str = Field(examples=["flights"])
    column: str = Field(examples=["dest"])
    state: Literal["filling", "serving"]
    filled: float = Field(ge=0, le=1, examples=[0.75])
    entries: int
    problem: str = Field(description="What it waits for.")
    indexlets: list[IndexletInfo]


class IndexListing(BaseModel):
    indexes: list[IndexInfo]
