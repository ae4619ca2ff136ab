"""What forked children forget, and that a fault in one object's part does not keep another's."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import signal
import sys
import threading
from typing import Any

import pytest

from stelae.core.forks import close_quietly, forget_in_children


class Owner:
    """Counts in which process it was made, and how often it forgot that."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.forgot = 0
        forget_in_children(self)

    def forget(self) -> None:
        self.forgot += 1
        if self.fails:
            raise OSError("planted")


def test_each_owner_forgets_in_a_child_and_none_in_the_parent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also those after one that fails, which is logged; one that is gone is not called."""
    owners = [Owner(fails=n == 1) for n in range(3)]
    gone = Owner()
    del gone
    answer, written = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            failures = [r for r in caplog.records if r.levelno == logging.ERROR]
            os.write(written, bytes([*[owner.forgot for owner in owners], len(failures)]))
        finally:
            os._exit(0)
    os.close(written)
    with os.fdopen(answer, "rb") as file:
        assert list(file.read()) == [1, 1, 1, 1]
    os.waitpid(pid, 0)
    assert [owner.forgot for owner in owners] == [0, 0, 0]


def test_numbers_of_closed_descriptors_stay_taken() -> None:
    """The other end of a pipe sees its end, and no file that is opened later gets the number."""
    answer, written = os.pipe()
    close_quietly([written])
    assert os.read(answer, 1) == b""
    assert os.readlink(f"/proc/self/fd/{written}") == os.devnull
    assert not os.get_inheritable(written)
    for descriptor in (answer, written):
        os.close(descriptor)


def test_a_child_does_not_wait_for_an_import_of_another_thread() -> None:
    """The lock of a module that is being imported at the fork is nobody's in the child."""
    within, over = threading.Event(), threading.Event()
    name = "a_module_that_loads_slowly"

    class Slow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, wanted: str, path: Any, target: Any = None) -> Any:
            return importlib.machinery.ModuleSpec(name, self) if wanted == name else None

        def exec_module(self, module: Any) -> None:
            within.set()
            over.wait()

    finder = Slow()
    importer = threading.Thread(target=importlib.import_module, args=(name,))
    sys.meta_path.insert(0, finder)
    try:
        importer.start()
        within.wait()
        pid = os.fork()
        if not pid:
            signal.alarm(30)
            importlib.import_module(name)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        over.set()
        importer.join()
        sys.meta_path.remove(finder)
        sys.modules.pop(name, None)
