"""`stelae.coordinator.catalog.catalog`: one entry per operation, all or nothing, exactly once."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.coordinator.catalog.catalog import (
    MAX_CLIENTS,
    MAX_HTTP_CLIENTS,
    MAX_RESULTS,
    Applied,
    Catalog,
    CatalogBatch,
    Conflict,
)
from stelae.core.errors import KeyReused, Overloaded, StaleRequest, TooLarge
from stelae.core.ids import (
    ClientId,
    RequestId,
    ServerUuid,
    TableId,
    TabletId,
    gateway_client,
    keyed_client,
)
from stelae.core.records.records import TableRecord, TableState, TabletRecord, TabletState
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])


def table(table_id: str, name: str, **changes: object) -> TableRecord:
    """A live table of generation 1."""
    record = TableRecord(
        TableId(table_id), name, SCHEMA, Partitioning(), segments("disk"), TableState.RUNNING
    )
    return msgspec.structs.replace(record, **changes)


def tablet(tablet_id: str, table_id: str, **changes: object) -> TabletRecord:
    """A tablet being created, of generation 1, owned by s1."""
    record = TabletRecord(
        TabletId(tablet_id), TableId(table_id), 0, TabletState.CREATING, 1, ServerUuid("s1"), 1
    )
    return msgspec.structs.replace(record, **changes)


def request(sequence: int, first_incomplete: int = 0, client: str = "c") -> RequestId:
    return RequestId(ClientId(client), sequence, first_incomplete)


def apply(catalog: Catalog, batch: CatalogBatch) -> object:
    return catalog.apply(1, 1, batch.encode())


def create(name: str = "t", table_id: str = "T", sequence: int = 1) -> CatalogBatch:
    return CatalogBatch(
        (table(table_id, name),),
        (tablet(table_id + "0", table_id), tablet(table_id + "1", table_id, number=1)),
        request(sequence),
        TableId(table_id),
    )


def test_a_table_appears_with_all_its_tablets_in_one_entry() -> None:
    """One logical operation, one entry."""
    catalog = Catalog()
    assert apply(catalog, create()) == Applied(TableId("T"))
    found = catalog.find("t")
    assert found is not None
    assert [t.tablet_id for t in catalog.tablets_of(found.table_id)] == ["T0", "T1"]
    assert [t.tablet_id for t in catalog.owned_by(ServerUuid("s1"), 1)] == ["T0", "T1"]


def test_a_batch_made_from_an_outdated_look_changes_nothing() -> None:
    """Compare-and-set on every record: the good half of a bad batch is not applied either."""
    catalog = Catalog()
    apply(catalog, create())
    runs = tablet("T0", "T", state=TabletState.RUNNING, generation=2)
    apply(catalog, CatalogBatch(tablets=(runs,)))
    before = catalog.snapshot()
    stale = tablet("T0", "T", term=9, generation=2)
    fresh = tablet("T1", "T", term=9, number=1, generation=2)
    for batch in (
        CatalogBatch(tablets=(fresh, stale)),
        CatalogBatch((table("U", "u"),), (stale,)),
        CatalogBatch((table("T", "t"),)),
        CatalogBatch((table("U", "t"),), (tablet("U0", "U"),), request(2), TableId("U")),
    ):
        assert isinstance(apply(catalog, batch), Conflict)
        assert catalog.snapshot() == before


def test_a_repeated_request_gets_the_first_answer_and_changes_nothing() -> None:
    """Exactly once, even where two copies were both replicated."""
    catalog = Catalog()
    apply(catalog, create())
    again = create(table_id="U")  # the retry drew other ids
    assert apply(catalog, again) == Applied(TableId("T"))
    assert "U" not in catalog.tables
    assert catalog.result_of(request(1)) == "T"


def test_results_are_forgotten_once_the_client_has_them() -> None:
    """And late copies of such requests are refused, before and after replication."""
    catalog = Catalog()
    apply(catalog, create())
    batch = CatalogBatch((table("U", "u"),), (), request(2, first_incomplete=2), TableId("U"))
    apply(catalog, batch)
    with pytest.raises(StaleRequest):
        catalog.result_of(request(1))
    assert isinstance(apply(catalog, create("v", "V", 1)), Conflict)
    assert catalog.result_of(request(3)) is None


def test_a_client_that_confirms_nothing_is_refused_in_time() -> None:
    """The bound on kept results never breaks exactly-once: it refuses instead."""
    catalog = Catalog()
    for n in range(MAX_RESULTS):
        apply(catalog, create(f"t{n}", f"T{n}", n))
    with pytest.raises(Overloaded):
        catalog.result_of(request(MAX_RESULTS))
    assert catalog.result_of(request(MAX_RESULTS, first_incomplete=5)) is None
    assert catalog.result_of(request(3)) == "T3"


def test_a_key_stands_for_one_request() -> None:
    """Another one is refused before it is replicated, and where both were; so after a snapshot."""
    catalog = Catalog()
    first = RequestId(keyed_client("k"), 5, 0)
    other = RequestId(keyed_client("k"), 6, 0)
    apply(catalog, msgspec.structs.replace(create(), request=first))
    loaded = Catalog()
    loaded.restore(catalog.snapshot())
    for each in (catalog, loaded):
        assert each.result_of(first) == "T"
        with pytest.raises(KeyReused):
            each.result_of(other)
        late = msgspec.structs.replace(create("v", "V"), request=other)
        assert isinstance(apply(each, late), Conflict)
        assert each.find("v") is None


def test_results_of_the_clients_that_spoke_last_are_kept() -> None:
    """Bounded by number of clients, the same on every master."""
    catalog = Catalog()
    for n in range(MAX_CLIENTS + 1):
        batch = CatalogBatch((), (), request(1, client=f"c{n}"), TableId("T"))
        apply(catalog, batch)
    assert catalog.result_of(request(1, client="c0")) is None
    assert catalog.result_of(request(1, client="c1")) == "T"


def test_clients_and_keys_of_http_make_no_other_client_forgotten() -> None:
    """However many there are: they have their share, of which the oldest go."""
    catalog = Catalog()
    apply(catalog, CatalogBatch((), (), request(1, client="native"), TableId("T")))
    names = [make(str(n)) for n in range(MAX_CLIENTS) for make in (keyed_client, gateway_client)]
    for name in names:
        apply(catalog, CatalogBatch((), (), request(1, client=name), TableId("T")))
    assert catalog.result_of(request(1, client="native")) == "T"
    gone, kept = names[:-MAX_HTTP_CLIENTS], names[-MAX_HTTP_CLIENTS:]
    assert all([catalog.result_of(request(1, client=name)) is None for name in gone])
    assert all([catalog.result_of(request(1, client=name)) == "T" for name in kept])


def test_deleted_records_stay_and_free_their_name() -> None:
    """A tablet the catalog does not know is never mistaken for a deleted one."""
    catalog = Catalog()
    apply(catalog, create())
    gone = CatalogBatch(
        (table("T", "t", state=TableState.DELETED, generation=2),),
        (
            tablet("T0", "T", state=TabletState.DELETED, generation=2),
            tablet("T1", "T", number=1, state=TabletState.DELETED, generation=2),
        ),
        request(2),
        TableId("T"),
    )
    assert isinstance(apply(catalog, gone), Applied)
    assert catalog.find("t") is None
    assert catalog.tablets[TabletId("T0")].state is TabletState.DELETED
    assert list(catalog.live_tablets()) == []
    assert list(catalog.owned_by(ServerUuid("s1"), 1)) == []
    assert apply(catalog, create("t", "U", 3)) == Applied(TableId("U"))
    assert catalog.tables[TableId("T")].state is TableState.DELETED


def test_a_batch_too_large_to_replicate_is_refused_up_front() -> None:
    """Before the log sees it."""
    with pytest.raises(TooLarge):
        CatalogBatch(tablets=tuple(tablet("x" * 1000, "T") for _ in range(5000))).encode()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=30))
def test_a_restored_catalog_goes_on_like_the_original(steps: list[tuple[str, int, bool]]) -> None:
    """Snapshot and restore at any point; then the same entries give the same answers and state."""
    one, other = Catalog(), Catalog()
    for number, (name, sequence, delete) in enumerate(steps):
        found = one.find(name)
        if delete and found is not None:
            record = msgspec.structs.replace(
                found, state=TableState.DELETED, generation=found.generation + 1
            )
            batch = CatalogBatch((record,), (), request(100 + number), found.table_id)
        else:
            batch = create(name, f"{name}{number}", sequence)
        copy = Catalog()
        copy.restore(other.snapshot())
        other = copy
        assert apply(one, batch) == apply(other, batch)
        assert one.snapshot() == other.snapshot()
        assert one.live_tables() == other.live_tables()
        assert list(one.owned_by(ServerUuid("s1"), 1)) == list(other.owned_by(ServerUuid("s1"), 1))
