"""Snapshots are held for as long as Spark can use the DataFrames that were made of them.

A DataFrame in Python is a name for one in the JVM, and what is derived from it lives there alone:
so it is the JVM that is asked, by a weak reference to the function that reads the rows, which every
plan that was made of the DataFrame shares. A JVM that does not answer once may well answer the next
time: it has gone if it fails to several times in a row, or if the gateway to it is closed. Knows of
Spark only what Py4J shows.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any

from stelae.connectors.data_tasks import Held

logger = logging.getLogger(__name__)

LOOK_S = 15.0
FAILURES_MAX = 4
"""So many in a row, and the JVM has gone."""


@dataclass(slots=True)
class _Hold:
    reference: Any
    held: Held
    failures: int = 0

    def is_over(self) -> bool:
        """Let go what nobody can read any more, or whose JVM has gone."""
        try:
            if self.reference is None or not self.reference.refersTo(None):
                self.failures = 0
                return False
        except Exception:  # whatever Py4J raises when nobody is there
            self.failures += 1
            logger.debug("Spark's JVM does not answer", exc_info=True)
            if self.failures < FAILURES_MAX and not _is_closed(self.reference):
                return False
        self.held.end()
        return True


def _is_closed(reference: Any) -> bool:
    """Whether the gateway to its JVM was closed: nobody will ever answer."""
    client = getattr(reference, "_gateway_client", None)
    return not getattr(client, "is_connected", True)


class _Watch:
    """Looks at all weak references from one thread, which ends when there is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[_Hold] = []

    def add(self, reference: Any, held: Held) -> None:
        with self._lock:
            self._held.append(_Hold(reference, held))
            if len(self._held) == 1:
                threading.Thread(target=self._look, daemon=True, name="stelae holds").start()

    def _look(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(LOOK_S)
            with self._lock:
                self._held = [one for one in self._held if not one.is_over()]
                if not self._held:
                    return


_watch = _Watch()


def hold_for(frame: Any, held: Held) -> None:
    """Keep a snapshot as long as the function of this ``mapInArrow`` is in use in the JVM."""
    jvm = frame.sparkSession.sparkContext._jvm
    function = frame._jdf.queryExecution().logical().functionExpr().func()
    reference = jvm.java.lang.ref.WeakReference(function)
    try:
        reference.refersTo(None)
    except Exception:  # Py4J: Java before 16 has no such method
        reference = None  # held until this process ends
    _watch.add(reference, held)
