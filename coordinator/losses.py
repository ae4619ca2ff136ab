"""What is missing of logs, as operators are told it, and their word that it is lost for good. Pure.

The word is one catalog entry: the loss is on record for ever, and the tablet is recovered in the
next term from what is kept, and from nothing else (`KeptLog`). So what comes back afterwards, or at
the same moment, changes nothing: the backups refuse the former term, the plan does not read it, and
once the tablet runs its owner has it freed.

Source: design §13 (when the promise does not hold, the cluster says which data is missing).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from stelae.coordinator.catalog import Catalog, CatalogBatch
from stelae.core.durability import media_of
from stelae.core.errors import InvalidArgument
from stelae.core.ids import RequestId, TableId, TabletId
from stelae.core.losses import AcceptLoss, Assessment, KeptLog, LossRecord, TabletLoss
from stelae.core.records import TabletRecord, TabletState

NAME_MAX = 200


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A tablet whose log is not complete, and the record that it had when it was looked at."""

    tablet: TabletRecord
    found: Assessment


def waiting_tablets(catalog: Catalog) -> list[TabletRecord]:
    """Tablets that are being recovered from backups, or from these and a timeline, by table and
    number."""
    found = [
        tablet
        for tablet in catalog.opening_tablets()
        if tablet.state is TabletState.RECOVERING and media_count(catalog, tablet)
    ]
    return sorted(found, key=lambda t: (t.table_id, t.number, t.tablet_id))


def media_count(catalog: Catalog, tablet: TabletRecord) -> int:
    """How many replicas its segments have."""
    return len(media_of(catalog.tables[tablet.table_id].durability_of(tablet)))


def losses_of(catalog: Catalog, incomplete: Mapping[TabletId, Incomplete]) -> list[TabletLoss]:
    """For people, and for the record."""
    return [
        TabletLoss(
            tablet_id,
            each.tablet.table_id,
            catalog.tables[each.tablet.table_id].name,
            each.tablet.number,
            each.tablet.term,
            each.found.missing,
            each.found.is_end_lost,
            each.found.is_digest_known,
            len(each.found.kept),
            each.found.kept_bytes,
        )
        for tablet_id, each in incomplete.items()
    ]


def fingerprint(losses: list[TabletLoss]) -> str:
    """Stands for exactly these."""
    return hashlib.blake2b(msgspec.msgpack.encode(losses), digest_size=8).hexdigest()


def draft_accept(
    catalog: Catalog,
    order: AcceptLoss,
    incomplete: Mapping[TabletId, Incomplete],
    now_wall: float,
) -> CatalogBatch | None:
    """The losses on record, and their tablets in the next term with what is kept. None: this very
    request was carried out before.

    Raises:
        InvalidArgument: nothing is lost, or not what the operator was told, or not of these.
        StaleRequest: nobody waits for the answer any more.
    """
    if catalog.result_of(order.request) is not None:
        return None
    by = order.accepted_by.strip()
    if not by or len(by) > NAME_MAX:
        raise InvalidArgument(f"who accepts the loss? A name of at most {NAME_MAX} characters")
    current = {t: each for t, each in incomplete.items() if catalog.tablets[t] == each.tablet}
    if not current:
        raise InvalidArgument("nothing is lost: no tablet waits for segments that are missing")
    losses = losses_of(catalog, current)
    if fingerprint(losses) != order.fingerprint:
        raise InvalidArgument("what is missing is not what was shown: look again, then accept that")
    unknown = [tablet for tablet in order.tablets if tablet not in current]
    if unknown:
        raise InvalidArgument(f"nothing is lost of tablet {unknown[0]}")
    records: list[LossRecord] = []
    tablets: list[TabletRecord] = []
    for loss in losses:
        if order.tablets and loss.tablet_id not in order.tablets:
            continue
        number = len(catalog.backups.losses) + len(records) + 1
        records.append(LossRecord(number, loss, now_wall, by))
        tablets.append(_kept(current[loss.tablet_id], number))
    numbers = TableId(f"{records[0].number} {records[-1].number}")
    return CatalogBatch(
        tablets=tuple(tablets), request=order.request, result=numbers, losses=tuple(records)
    )


def accepted_by(catalog: Catalog, request: RequestId) -> tuple[LossRecord, ...]:
    """What this request put on record, now or when it came for the first time."""
    first, _, last = (catalog.result_of(request) or "").partition(" ")
    return tuple(catalog.backups.losses[int(first) - 1 : int(last)]) if last else ()


def _kept(incomplete: Incomplete, number: int) -> TabletRecord:
    """Its recovery begins anew in the next term, where nothing of the former one counts."""
    tablet, found = incomplete.tablet, incomplete.found
    if tablet.timeline is None:
        kept = KeptLog(number, found.kept, skips_versions=found.is_end_lost)
    else:
        before = tablet.kept.given_up if tablet.kept is not None else ()
        kept = KeptLog(number, (), given_up=(*before, *(s.segment_id for s in found.missing)))
    return msgspec.structs.replace(
        tablet,
        term=tablet.term + 1,
        kept=kept,
        generation=tablet.generation + 1,
    )
