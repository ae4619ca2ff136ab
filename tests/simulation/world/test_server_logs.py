"""`stelae.simulation.world.server_logs`: what servers log is in the story, not on the terminal."""

from __future__ import annotations

import asyncio
import io
import logging

import pytest

from stelae.core.tasks import Tasks
from stelae.simulation import SimulationFailure, World
from stelae.simulation.world.instance import SimRuntime

logger = logging.getLogger("stelae.actors.of.a.test")


class Logging:
    """A server that logs once it has started."""

    def __init__(self, runtime: SimRuntime, word: str, error: Exception | None) -> None:
        self.tasks = Tasks()
        self._runtime = runtime
        self._word = word
        self._error = error

    async def start(self) -> None:
        await self._runtime.clock.sleep(1.0)
        logger.debug("debug %s", self._word)
        logger.info("info %s", self._word)
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logger.warning("warning %s", self._word, exc_info=True)
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """Nothing is open."""


def run(word: str, trace: io.StringIO | None = None, error: Exception | None = None) -> World:
    """Run a world with one such server for two seconds."""
    world = World(1, trace=trace)
    world.start("s1", lambda runtime: Logging(runtime, word, error))

    async def main() -> None:
        await asyncio.sleep(2.0)
        logger.info("from no server")

    world.run(main())
    return world


def test_logs_are_events_of_the_trace(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A record from INFO on is a line with virtual time and node; the terminal and pytest's own
    report get none. Logging is afterwards as it was."""
    root = logging.getLogger("stelae")
    before = root.level, root.propagate, list(root.handlers)
    trace = io.StringIO()
    run("word", trace)
    logs = [line for line in trace.getvalue().splitlines() if " logs " in line]
    assert logs == [
        "    1.000000 s1           logs info: info word",
        "    1.000000 s1           logs warning: warning word: ValueError: two\\nlines",
        "    2.000000 world        logs info: from no server",
    ]
    assert not caplog.records
    assert capfd.readouterr() == ("", "")
    assert (root.level, root.propagate, root.handlers) == before


def test_logs_do_not_count_for_the_digest() -> None:
    """Neither the words of a log nor whether there is a trace makes another run."""
    assert run("one").digest() == run("another").digest() == run("one", io.StringIO()).digest()


def test_warnings_are_evidence_of_a_failure() -> None:
    """The text of a failure shows what servers warned of, among the events."""
    with pytest.raises(SimulationFailure) as failure:
        run("word", error=AssertionError("a rule"))
    text = str(failure.value)
    assert "logs warning: warning word" in text
    assert "logs info" not in text
    assert text.index("starts, life 1") < text.index("logs warning") < text.index("FAILS")
