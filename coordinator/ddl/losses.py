"""The operator's word that what is missing of logs is lost for good. Pure.

Before it, every backup that the cluster knows has to have said what it holds: one that is away, or
was not heard by this leader master yet, may bring back what is missing. A backup is counted on no
more only if the operator says by name that it never returns; that is in the same entry.

The word is one catalog entry: the loss is permanently on record, and the tablet is recovered in the
next term from what is kept, and from nothing else (`KeptLog`). So what comes back afterwards, or at
the same moment, changes nothing: the backups refuse the former term, the plan does not read it, and
once the tablet runs its owner has it freed.

A tablet that is served while rows of it are elsewhere yet may lack segments too. Its log goes on
until the backups are fenced in the next term, so its record says what is given up, not what is
kept; its owner recovers it again, and until it has closed the former term nobody else may
(`stelae.coordinator.decide`).

Source: design §13 (when the promise does not hold, the cluster says which data is missing).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from stelae.coordinator.catalog.backups import BackupChanges
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.placement.known_backups import find_gone
from stelae.core.errors import InvalidArgument, RetryLater
from stelae.core.ids import RequestId, TableId, TabletId
from stelae.core.records.losses import (
    AcceptLoss,
    Assessment,
    KeptLog,
    LossRecord,
    SilentBackup,
    TabletLoss,
)
from stelae.core.records.records import TabletRecord, TabletState

NAME_MAX = 200
NAMED_MAX = 20
"""Backups that a refusal names one by one."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A tablet whose log is not complete, and the record that it had when it was looked at."""

    tablet: TabletRecord
    found: Assessment


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
            each.tablet.state is TabletState.RUNNING,
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
    silent: Sequence[SilentBackup] = (),
) -> CatalogBatch | None:
    """The losses on record, and their tablets in the next term with what is kept. None: this very
    request was carried out before. ``silent``: known backups that did not say what they hold.

    Raises:
        InvalidArgument: nothing is lost, or not what the operator was told, or not of these; or a
            backup is away that nobody says is gone for good.
        RetryLater: a live backup has not been asked.
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
    gone = _check_gone(catalog, order, silent)
    records: list[LossRecord] = []
    tablets: list[TabletRecord] = []
    for loss in losses:
        if order.tablets and loss.tablet_id not in order.tablets:
            continue
        number = len(catalog.backups.losses) + len(records) + 1
        names = tuple(f"{each.name} ({each.uuid})" for each in gone)
        records.append(LossRecord(number, loss, now_wall, by, names))
        tablets.append(_kept(current[loss.tablet_id], number))
    numbers = TableId(f"{records[0].number} {records[-1].number}")
    return CatalogBatch(
        tablets=tuple(tablets),
        request=order.request,
        result=numbers,
        losses=tuple(records),
        backups=BackupChanges((), tuple(each.uuid for each in gone)) if gone else None,
    )


def _check_gone(
    catalog: Catalog, order: AcceptLoss, silent: Sequence[SilentBackup]
) -> list[SilentBackup]:
    """Backups that never return, by the order. Raises InvalidArgument, RetryLater: another one may
    hold what is missing."""
    gone = find_gone(catalog, silent, order.gone)
    left = [each for each in silent if each not in gone]
    if not left:
        return gone
    words = "; ".join(each.words for each in left[:NAMED_MAX])
    if more := len(left) - NAMED_MAX:
        words += f"; and {more} more" if more > 0 else ""
    if all(each.is_live for each in left):
        raise RetryLater(f"{words}: look again")
    raise InvalidArgument(
        f"{words}: what is missing may be there. Start it, and wait; or, if it never returns, say "
        f"so by its name: --gone {next(e.name for e in left if not e.is_live)}"
    )


def accepted_by(catalog: Catalog, request: RequestId) -> tuple[LossRecord, ...]:
    """What this request put on record, now or when it came for the first time."""
    first, _, last = (catalog.result_of(request) or "").partition(" ")
    return tuple(catalog.backups.losses[int(first) - 1 : int(last)]) if last else ()


def _kept(incomplete: Incomplete, number: int) -> TabletRecord:
    """Its recovery begins anew in the next term, where nothing of the former one counts."""
    tablet, found = incomplete.tablet, incomplete.found
    if tablet.timeline is None and tablet.state is TabletState.RECOVERING:
        kept = KeptLog(number, found.kept, skips_versions=found.is_end_lost)
    else:
        before = tablet.kept.given_up if tablet.kept is not None else ()
        kept = KeptLog(number, (), given_up=(*before, *(s.segment_id for s in found.missing)))
    return msgspec.structs.replace(
        tablet,
        state=TabletState.RECOVERING,
        term=tablet.term + 1,
        kept=kept,
        generation=tablet.generation + 1,
    )
