"""What holds for all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

# A busy machine is no failure: whoever wants a bound on time sets it in the test.
settings.register_profile("stelae", deadline=None)
settings.load_profile("stelae")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that say ``slow(minutes=...)`` come first, the longest of all at the very beginning:
    one that began last would leave the other cores without work to its end."""
    items.sort(key=_minutes, reverse=True)


def _minutes(item: pytest.Item) -> float:
    slow = item.get_closest_marker("slow")
    return 0.0 if slow is None else float(slow.kwargs.get("minutes", 0.0))
