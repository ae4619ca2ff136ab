"""The calls that find rows: whoever makes them, they are called in the same way."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import stelae
from stelae.client.finds import calls as find_calls
from stelae.client.finds.calls import Asked
from stelae.client.http.table import HttpTable
from stelae.client.table.table import AsyncTable
from stelae.core.errors import InvalidArgument

HANDLES = (stelae.Table, AsyncTable, HttpTable)
CALLS = ("find", "find_page", "find_pages")


@pytest.mark.parametrize("handle", HANDLES, ids=lambda handle: handle.__name__)
@pytest.mark.parametrize("call", CALLS)
def test_each_handle_takes_what_the_definition_says_and_tells_so(handle: type, call: str) -> None:
    """Its parameters, their defaults and types, and what help() shows."""
    pattern, method = getattr(find_calls, call), getattr(handle, call)
    wanted, found = inspect.signature(pattern), inspect.signature(method)
    first, *others = found.parameters.values()
    assert first.name == "self"
    assert others == list(wanted.parameters.values())
    assert method.__doc__ == pattern.__doc__
    assert method.__name__ == call
    assert found.return_annotation != wanted.return_annotation


@pytest.mark.parametrize("handle", HANDLES, ids=lambda handle: handle.__name__)
def test_coroutines_stay_what_they_are(handle: Any) -> None:
    """`stelae.client.aio.Bridged` and users tell by it."""
    is_asynchronous = handle is not stelae.Table
    assert inspect.iscoroutinefunction(handle.find) is is_asynchronous
    assert inspect.iscoroutinefunction(handle.find_page) is is_asynchronous


def test_what_is_given_is_what_is_asked() -> None:
    """Each parameter comes to its own place, and all that is left out to its default."""
    everything: dict[str, Any] = {
        "between": (1, 2),
        "columns": ["a"],
        "reverse": True,
        "with_versions": True,
        "if_filling": "scan",
        "timeout": 7.0,
    }
    rest = ((1, 2), ["a"], True, True, "scan", 7.0)

    def parts(asked: Asked) -> tuple[Any, ...]:
        return (
            asked.between,
            asked.columns,
            asked.reverse,
            asked.with_versions,
            asked.if_filling,
            asked.timeout_s,
        )

    found = find_calls.find("c", limit=3, **everything)
    page = find_calls.find_page("c", limit=3, after="t", **everything)
    pages = find_calls.find_pages("c", page_rows=3, **everything)
    for asked, after in ((found, None), (page, "t"), (pages, None)):
        assert (asked.column, asked.limit, asked.after, *parts(asked)) == ("c", 3, after, *rest)
    assert find_calls.find("c", 1).limit is None
    assert find_calls.find_page("c", 1).limit == find_calls.PAGE_ROWS
    assert find_calls.find_pages("c", 1).limit == find_calls.PAGE_ROWS


@pytest.mark.parametrize("limit", [-1, 1.5, True, "7"])
def test_limits_that_are_none_are_refused(limit: Any) -> None:
    """Of look-ups, and of pages, which have a row at least."""
    with pytest.raises(InvalidArgument, match="limit="):
        find_calls.find("c", 1, limit=limit).check()
    with pytest.raises(InvalidArgument, match="limit="):
        find_calls.find_page("c", 1, limit=limit).check_page()
    with pytest.raises(InvalidArgument, match="at least one row"):
        find_calls.find_page("c", 1, limit=0).check_page()
    find_calls.find("c", 1, limit=0).check()


def test_a_way_of_waiting_that_there_is_not_is_refused() -> None:
    """And the ones that there are, are named."""
    with pytest.raises(InvalidArgument, match='"wait" or "scan"'):
        find_calls.find("c", 1, if_filling="hope").check()  # type: ignore[arg-type]
