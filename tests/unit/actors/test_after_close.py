"""What tablets say while their server closes: its tasks have ended, and they have not yet."""

from __future__ import annotations

from typing import Any, cast

from stelae.actors.tserver.master_calls import ServerNews
from stelae.actors.tserver.tablet_copy.starter import CopyStarter
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.tasks import Tasks

NOBODY = cast(Any, None)


async def test_a_member_that_needs_a_copy_then_is_told_by_the_next_leader() -> None:
    """No order is begun, and nothing fails."""
    tasks = Tasks()
    starter = CopyStarter(NOBODY, NOBODY, tasks, NOBODY)
    await tasks.close()
    starter.needed(TabletId("t"), ServerUuid("s"))
    assert starter.wanted(TabletId("t")) == ()


async def test_news_of_tablets_and_indexlets_are_for_nobody_then() -> None:
    """Nothing is sent, and nothing fails."""
    tasks = Tasks()
    news = ServerNews(NOBODY, NOBODY, tasks, NOBODY, NOBODY)
    await tasks.close()
    news.tell_soon(NOBODY)
    news.tell_of_indexlet(NOBODY)
    assert tasks.is_closed
