"""The versions of its table's schema that a tablet understands, and requests made with each.

The catalog's record of the table says all of it: the present schema, and a few earlier ones. A
request with one of those is answered as before the alter (`SchemaView`); with an older one it is
refused, and its client loads the schema anew; with a newer one it waits until the masters' word of
the alter has come here too.
"""

from __future__ import annotations

from stelae.core.errors import SchemaChanged, TabletNotReady
from stelae.core.ids import TabletId
from stelae.core.records.records import TableRecord
from stelae.core.schema.schema import TableSchema
from stelae.storage.rows.versions import SchemaView


class TabletSchemas:
    """What `table` says of its schema, and views for callers that know less."""

    def __init__(self, tablet_id: TabletId, table: TableRecord) -> None:
        self._tablet_id = tablet_id
        self._views: dict[int, SchemaView] = {}
        self.table = table

    @property
    def present(self) -> TableSchema:
        return self.table.schema

    def adopt(self, table: TableRecord) -> bool:
        """Take a newer record of the table over; whether its schema is another one.

        An older one changes nothing: orders arrive twice and late, and of former leaders.
        """
        newer = table.schema.version > self.present.version
        if newer or table.generation > self.table.generation:
            self.table = table
            self._views.clear()
        return newer

    def found(self, table: TableRecord) -> None:
        """Begin anew with this record, whatever was known before."""
        self.table = table
        self._views.clear()

    def view(self, version: int) -> SchemaView | None:
        """How a caller with this version sees the table; None: as it is. 0: the caller does not
        say, and has the present one.

        Raises:
            SchemaChanged: the version is too old to be understood.
            TabletNotReady: it is newer than what the tablet knows of yet.
        """
        present = self.table.schema
        if version == present.version or not version:
            return None
        view = self._views.get(version)
        if view is None:
            if version > present.version:
                raise TabletNotReady(
                    self._tablet_id, f"to hear of version {version} of its table's schema"
                )
            asked = next((s for s in self.table.history if s.version == version), None)
            if asked is None:
                raise SchemaChanged(self.table.name, version, present.version)
            view = self._views[version] = SchemaView(asked, present, self.table.name)
        return view

    def asked(self, version: int) -> TableSchema:
        """The schema of this version. Raises as `view` does."""
        view = self.view(version)
        return self.present if view is None else view.asked
