"""What is missing of tables' logs, and the operator's word that it is lost for good.

A tablet whose log is not complete waits, and comes back by itself when a backup does that holds
what is missing. To accept the loss is the only other way, and cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stelae.client.routing.masters import MastersClient
from stelae.client.routing.session import Session
from stelae.core.ids import TabletId, segment_name
from stelae.core.records.losses import (
    ACCEPT_LOSS,
    GET_LOSSES,
    AcceptLoss,
    GetLosses,
    LossRecord,
    LossReport,
    LostSegment,
    SilentBackup,
    TabletLoss,
)

LOOK_TIMEOUT_S = 30.0
"""All live backups are asked for it."""


class LossCalls:
    """The part of `AsyncDatabase` that is about missing data."""

    _masters: MastersClient
    _session: Session

    async def losses(self, *, timeout: float = LOOK_TIMEOUT_S) -> LossReport:
        """What tablets wait for, and what was ever accepted as lost; all live backups are asked."""
        return await self._masters.call(GET_LOSSES, GetLosses(), timeout_s=timeout)

    async def accept_loss(
        self,
        report: LossReport,
        *,
        by: str,
        tablets: Sequence[str] = (),
        gone: Sequence[str] = (),
        timeout: float = LOOK_TIMEOUT_S,
    ) -> tuple[LossRecord, ...]:
        """Give up for good what ``report`` says is missing, of these tablets or of all of them.

        They are recovered at once from what is left, and what comes back later is not used any
        more. ``by``: who says so; it stays on record. ``gone``: backups (name or UUID) that are
        away, and never return: without that word each may bring back what is missing.

        Raises:
            InvalidArgument: nothing is lost, or not exactly what the report says; or a known
                backup is away, and not among ``gone``.
            RetryLater: a live backup did not answer.
        """
        with self._session.request() as request:
            order = AcceptLoss(
                request,
                report.fingerprint,
                by,
                tuple(TabletId(tablet) for tablet in tablets),
                tuple(gone),
            )
            reply = await self._masters.call(ACCEPT_LOSS, order, timeout_s=timeout)
        return reply.records


# ---- for people and programs ----------------------------------------------------------------


def report_document(report: LossReport) -> dict[str, Any]:
    """For JSON."""
    return {
        "waiting": [loss_document(loss) for loss in report.waiting],
        "fingerprint": report.fingerprint,
        "silent_backups": list(report.silent_backups),
        "silent": [silent_document(backup) for backup in report.silent],
        "accepted": [record_document(record) for record in report.accepted],
    }


def silent_document(backup: SilentBackup) -> dict[str, Any]:
    """A backup that may hold what is missing; null: not heard since this leader master began."""
    return {
        "name": backup.name,
        "uuid": backup.uuid,
        "machine": backup.machine,
        "live": backup.is_live,
        "silent_s": backup.silent_s if backup.silent_s >= 0 else None,
    }


def record_document(record: LossRecord) -> dict[str, Any]:
    """One accepted loss."""
    return {
        "number": record.number,
        "accepted_at": record.accepted_at,
        "accepted_by": record.accepted_by,
        "backups_gone": list(record.gone),
        **loss_document(record.loss),
    }


def loss_document(loss: TabletLoss) -> dict[str, Any]:
    """What one tablet lacks; figures that nobody knows are null."""
    return {
        "tablet": loss.tablet_id,
        "table": loss.table,
        "number_in_table": loss.number,
        "term": loss.term,
        "segments": [_segment_document(segment) for segment in loss.segments],
        "end_lost": loss.is_end_lost,
        "digest_known": loss.is_digest_known,
        "kept_segments": loss.kept_segments,
        "kept_bytes": loss.kept_bytes,
        "served": loss.is_served,
    }


def _segment_document(segment: LostSegment) -> dict[str, Any]:
    def known(value: int) -> int | None:
        return value if value >= 0 else None

    return {
        "segment": segment_name(segment.segment_id),
        "rows": known(segment.rows),
        "bytes": known(segment.size_bytes),
        "versions_below": known(segment.next_version),
        "kept_bytes": segment.kept_bytes,
    }


def words_of(loss: TabletLoss) -> list[str]:
    """What one tablet lacks, a line for each thing."""
    lines = [_segment_words(segment) for segment in loss.segments]
    if lines:
        lines.append("what these rows and deletes had replaced may be seen again")
    if loss.is_end_lost:
        lines.append("the end of its log: whatever was written last, an unknown number of rows")
    if not loss.is_digest_known:
        lines.append(
            "the list of its segments: all that are found are taken, also such as were cleaned "
            "away long ago"
        )
    return lines


def _segment_words(segment: LostSegment) -> str:
    text = f"segment {segment_name(segment.segment_id)}"
    if segment.rows >= 0:
        size = f"{segment.size_bytes:,} bytes"
        text += f": {segment.rows:,} rows, {size}, versions below {segment.next_version:,}"
    else:
        text += ": how much it held is not known"
    return text + (f"; its first {segment.kept_bytes:,} bytes are kept" * bool(segment.kept_bytes))
