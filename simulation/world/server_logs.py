"""The logs of servers in a simulated world: events of its story, not lines on the terminal.

While a world runs, the records of the loggers below ``stelae`` go to the story of the world, with
the virtual time and the node that logged them, and nowhere else. Logs do not change the digest: two
runs with differently worded messages are the same run.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from stelae.simulation.world.process import PROCESS
from stelae.simulation.world.story import Story

LOGGER = "stelae"
"""The logger above those of all servers."""


class StoryHandler(logging.Handler):
    """Turns log records into events; those from outside of all processes belong to the world."""

    def __init__(self, story: Story) -> None:
        super().__init__()
        self._story = story

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        text = f"logs {record.levelname.lower()}: {record.getMessage()}"
        # A traceback names files of this machine; the error alone is the same everywhere.
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f": {type(error).__name__}: {error}"
        self._story.log(
            "world" if process is None else process.name,
            text.replace("\n", "\\n"),
            is_evidence=record.levelno >= logging.WARNING,
        )


@contextlib.contextmanager
def logs_into(story: Story) -> Iterator[None]:
    """Send the logs of all servers to ``story`` meanwhile, from INFO on if it has a trace."""
    logger, handler = logging.getLogger(LOGGER), StoryHandler(story)
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False  # or pytest, or the handler of last resort, would print them
    logger.setLevel(logging.INFO if story.has_trace else logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.propagate = propagates
        logger.removeHandler(handler)
