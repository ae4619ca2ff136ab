"""Bodies of the HTTP API, as pydantic models: what requests are held to, and what OpenAPI shows."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

Json = Any


class Body(BaseModel):
    """Base of request bodies: unknown members are refused, nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", strict=True)


class FieldProblem(BaseModel):
    path: str = Field(examples=["columns.0.type"])
    message: str = Field(examples=["Field required"])


class Problem(BaseModel):
    """An RFC 9457 problem document. `type` is stable; `error`, `args` rebuild the error."""

    type: str = Field(examples=["/problems/row-exists"])
    title: str = Field(examples=["A row with that key exists"])
    status: int = Field(examples=[409])
    detail: str = Field(
        examples=["insert into 'flights': a row with key (42,) exists already (version 7)"]
    )
    error: str | None = Field(default=None, examples=["RowExists"])
    args: list[Json] | None = Field(default=None, examples=[["flights", "(42,)", 7]])
    notes: list[str] | None = None
    errors: list[FieldProblem] | None = None
    request_id: str | None = Field(default=None, examples=["5f0c6e0b1d2a4c77"])


class Column(Body):
    name: str = Field(examples=["id"])
    type: str = Field(
        examples=["int64"],
        description="An Arrow type: int8 … uint64, bool, string, binary, float, double, "
        "date32, timestamp[us], timestamp[us, tz=UTC], decimal128(10, 2), …",
    )
    nullable: bool = True


class Hash(Body):
    columns: list[str] = Field(min_length=1, examples=[["id"]])
    buckets: int = Field(ge=1, le=1024, examples=[8])


class Range(Body):
    columns: list[str] = Field(min_length=1)
    splits: list[list[Json]] = Field(
        description="Ascending; each has one value for each column: the first key of a range."
    )


class Partition(Body):
    hash: Hash | None = None
    range: Range | None = None


class SegmentsModel(Body):
    segments: list[str] = Field(
        examples=[["disk", "disk"]],
        description="The medium of each segment replica; empty: rows live in memory only.",
    )


class ReplicasModel(Body):
    replicas: int = Field(
        examples=[3],
        description="Replicas of each tablet, on as many tablet servers; a majority acknowledges.",
    )


class WalModel(Body):
    wal: int = Field(
        examples=[3],
        description="Safekeepers that keep the log of each tablet; a majority acknowledges.",
    )
    segments: list[str] = Field(
        examples=[["disk", "disk"]],
        description="The medium of each replica of a sealed segment: at least one.",
    )


def _kind(given: Any) -> str | None:
    """Which of the durabilities is meant, so that only what is wrong with that one is told."""
    members = given if isinstance(given, dict) else getattr(given, "model_fields_set", ())
    return next((name for name in ("replicas", "wal", "segments") if name in members), None)


DurabilityModel: TypeAlias = Annotated[
    Annotated[SegmentsModel, Tag("segments")]
    | Annotated[ReplicasModel, Tag("replicas")]
    | Annotated[WalModel, Tag("wal")],
    Discriminator(
        _kind,
        custom_error_type="durability",
        custom_error_message='give {"segments": ["disk", "disk"]}, {"replicas": 3} or '
        '{"wal": 3, "segments": ["disk"]}',
    ),
]


class CreateTableRequest(Body):
    """Either `columns` or `arrow_schema`."""

    name: str = Field(examples=["flights"])
    columns: list[Column] | None = None
    arrow_schema: str | None = Field(
        default=None, description="An Arrow schema as an IPC message, in base64: for any type."
    )
    key: list[str] = Field(min_length=1, examples=[["id"]])
    partition: Partition | None = None
    indexes: list[str] = Field(
        default=[], examples=[["dest"]], description="Columns that get an index each."
    )
    durability: DurabilityModel | None = Field(
        default=None,
        description='`{"segments": ["disk", "disk"]}` if absent; or `{"replicas": 3}`, '
        'or `{"wal": 3, "segments": ["disk"]}`.',
    )

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "name": "flights",
                    "columns": [
                        {"name": "id", "type": "int64", "nullable": False},
                        {"name": "dest", "type": "string"},
                        {"name": "departed", "type": "timestamp[us, tz=UTC]"},
                    ],
                    "key": ["id"],
                    "partition": {"hash": {"columns": ["id"], "buckets": 8}},
                    "durability": {"segments": ["disk", "disk"]},
                    "indexes": ["dest"],
                }
            ]
        },
    )


class IndexedColumn(BaseModel):
    id: str = Field(
        examples=["0c2f61b07d1e4a34a0b4f2b6b4f0a1c2"],
        description="Of the index; never given twice.",
    )
    column: str = Field(examples=["dest"])


class TableInfo(BaseModel):
    id: str = Field(examples=["fc6d8924dc9e48ca933adf9eb0904179"])
    name: str = Field(examples=["flights"])
    columns: list[Column]
    arrow_schema: str = Field(
        examples=["/////3gAAAA…"], description="The Arrow schema as an IPC message, in base64."
    )
    arrow_defaults: str = Field(
        description="Default values as an Arrow IPC stream of two rows, in base64: what rows from "
        "before a column show for it, and what new rows get that leave it out; empty: none."
    )
    defaults: dict[str, Json] = Field(
        examples=[{"dest": "?"}], description="What rows get that leave these columns out."
    )
    column_ids: list[int] = Field(
        examples=[[1, 2, 3]], description="Of the columns in order; never given twice."
    )
    next_column_id: int = Field(examples=[4])
    key: list[str] = Field(examples=[["id"]])
    partition: Partition
    durability: DurabilityModel
    becoming: DurabilityModel | None = Field(
        default=None, description="While the durability is altered: the one that tablets get."
    )
    indexes: list[IndexedColumn] = Field(description="Columns with an index; see `/indexes`.")
    schema_version: int
    state: Literal["running", "altering"] = Field(
        description="altering: some tablets do not have the newest schema, or the durability that "
        "they are to have, yet."
    )
    generation: int
    tablets: int = Field(examples=[8], description="How many tablets it is cut into.")
    tablet_states: dict[str, int] | None = Field(
        default=None,
        examples=[{"running": 8}],
        description="How many tablets are creating, running, recovering; of one table only.",
    )


class NewColumn(Column):
    """Of existing rows and of new ones that leave it out the value is its default (`defaults`)."""


class AlterTableRequest(Body):
    """Drops first, then renames, then additions; all of it or nothing. Key columns stay."""

    name: str | None = Field(default=None, description="The table's new name.")
    add_columns: list[NewColumn] = Field(
        default=[],
        examples=[[{"name": "seats", "type": "int16", "nullable": False}]],
        description="A column that may not be null needs a default.",
    )
    add_arrow_schema: str | None = Field(
        default=None, description="Columns to add as an Arrow schema in base64: for any type."
    )
    drop_columns: list[str] = Field(default=[], examples=[["dest"]])
    rename_columns: dict[str, str] = Field(default={}, examples=[{"departed": "departure"}])
    defaults: dict[str, Json] = Field(
        default={},
        examples=[{"seats": 180}],
        description="What new rows get that leave a column out, by its name afterwards; of a "
        "column added now also what the rows there show. null: no default any more.",
    )
    durability: DurabilityModel | None = Field(
        default=None,
        examples=[{"replicas": 5}, {"wal": 3, "segments": ["disk"]}],
        description="Another durability, or another number of replicas: tablet by tablet, while "
        "reads and writes go on. Altered back before it is done, it is taken back.",
    )
    wait: bool = Field(default=True, description="Answer once all tablets follow.")

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "add_columns": [{"name": "seats", "type": "int16", "nullable": False}],
                    "defaults": {"seats": 180},
                }
            ]
        },
    )


class TableListing(BaseModel):
    tables: list[TableInfo]


class ReplicaInfo(BaseModel):
    uuid: str = Field(examples=["7968d2b5ee974889b7e465e26be732d9"])
    address: str = Field(
        examples=["10.0.0.7:39311"], description="Empty if its server is not live."
    )
    voter: bool
    leader: bool


class TabletInfo(BaseModel):
    tablet: dict[str, Json] = Field(
        examples=[{"tablet_id": "ed0b89d0047c40a28c937001d0a25357", "number": 0, "term": 1}],
        description="Its record: id, table, number, state, term, …",
    )
    address: str = Field(
        examples=["10.0.0.7:39311"], description="Where it is served; empty if it is not."
    )
    problem: str = Field(description="Why not: offline, deleted, replaced by another tablet.")
    replicas: list[ReplicaInfo] = Field(description="Of a table with `replicas`; else empty.")


class TabletListing(BaseModel):
    tablets: list[TabletInfo]


class WriteRequest(Body):
    op: Literal["insert", "upsert", "update", "delete"] = "upsert"
    rows: list[dict[str, Json]] = Field(
        examples=[[{"id": 42, "dest": "LAX"}]],
        description="delete: the key columns; update: the key and the columns to change, "
        "the same in all rows.",
    )
    if_versions: list[int] | None = Field(
        default=None, description="For each row the version that it must have; 0: be absent."
    )


class WriteReply(BaseModel):
    versions: list[int] | None = Field(
        default=None, examples=[[7]], description="Of each row, in the order given."
    )
    rows: int | None = Field(
        default=None, description="With `stream=true`, in place of versions: how many were written."
    )


class RowReply(BaseModel):
    version: int = Field(examples=[7])


class GetRequest(Body):
    keys: list[Json] = Field(
        examples=[[42, 43]],
        description="Each a value, an array (composite key), or an object of the key columns.",
    )
    columns: list[str] | None = Field(default=None, min_length=1)
    with_versions: bool = Field(default=False, description="Adds `_version` to each row.")


class RowsReply(BaseModel):
    rows: list[dict[str, Json]] = Field(
        description="Those found, in the order of their keys.", examples=[[{"id": 42}]]
    )


class ScanRequest(Body):
    columns: list[str] | None = Field(default=None, min_length=1)
    where: list[Json] | None = Field(
        default=None,
        examples=[[["dest", "=", "LAX"]]],
        description="`[[column, operator, value], …]`: all hold; or a list of such lists: any of "
        "them holds. Operators: = == != < <= > >= in, not in, and without a value `is null`, "
        "`is not null`.",
    )
    limit: int | None = Field(
        default=None, ge=0, le=1 << 53, description="Rows in all; not with `page_rows`."
    )
    with_versions: bool = Field(default=False, description="Adds `_version` to each row.")
    page_rows: int | None = Field(
        default=None,
        ge=0,
        le=1 << 53,
        description="Answer with a page: at most so many rows (or about 32 MiB), and `next`. 0, "
        "with `after`: the scan is not read any further, and the servers release its rows.",
    )
    after: str | None = Field(
        default=None,
        max_length=20_000,
        description="`next` of the page before, within five minutes; the rest of the request as "
        "it was. The same `after` again gets the same page. 410: begin anew, without `after`.",
    )

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {"columns": ["id", "dest"], "where": [["dest", "=", "LAX"]], "limit": 100},
                {"page_rows": 1000},
            ]
        },
    )


class ScanReply(RowsReply):
    next: str | None = Field(
        default=None, description="Of a page: for `after` of the next request; null: that was all."
    )


class Health(BaseModel):
    status: Literal["ok"]
