"""Who is cancelled while a thread works on files waits for the thread, and is cancelled then."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from stelae.runtime.files import LocalDisk


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("fails", [False, True])
async def test_neither_the_result_nor_the_error_of_the_work_hides_it(
    tmp_path: Path, times: int, fails: bool
) -> None:
    """So whoever loops over such calls ends, however often it is told to."""
    disk = LocalDisk(tmp_path, sync_in_thread=True)
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert may_end.wait(10.0)
        if fails:
            raise OSError("no room")
        (tmp_path / "done").touch()

    async def loop() -> None:
        while True:
            await disk._run(work)

    task = asyncio.create_task(loop())
    await asyncio.to_thread(begun.wait, 10.0)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done(), "the thread still works on the files"
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10.0)
    assert (tmp_path / "done").exists() is not fails
    disk.close()
