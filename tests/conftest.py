"""Settings of hypothesis, and what is done after each test."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.left_tasks import end_left_tasks

# Examples follow from the test alone, so that the same code passes or fails every time. A busy
# machine is no failure either: a test that wants a bound on time sets it itself.
settings.register_profile("gate", deadline=None, derandomize=True, database=None)
# Other examples in each run, for `make soak-tests`; failures stay in .hypothesis for the next one.
settings.register_profile("fresh", deadline=None)
# Many, for `make fuzz`.
settings.register_profile(
    "fuzz", deadline=None, max_examples=int(os.environ.get("STELAE_FUZZ_EXAMPLES", "5000"))
)
# For `make mutants`: that a test fails is all there is to know, so nothing is shrunk.
settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile("gate")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A warning and no failure: a loop in another thread may be closed just now."""
    for task in end_left_tasks():
        warnings.warn(f"{item.nodeid} left a task on a closed loop: {task}", stacklevel=1)


def pytest_make_parametrize_id(config: pytest.Config, val: Any, argname: str) -> str | None:
    """Names cases of bytes by argument and number, for the workers must name the same tests.

    Bytes may differ between processes: the header of gzip has the second in which it was written.
    """
    return argname if isinstance(val, bytes) else None
