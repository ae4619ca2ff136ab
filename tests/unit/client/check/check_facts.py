"""Facts as `stelae check` finds them, changed a little for each case."""

from __future__ import annotations

import msgspec

from stelae.client.check.facts import (
    Severity,
    Verdict,
)

NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR
V = Verdict
change = msgspec.structs.replace
