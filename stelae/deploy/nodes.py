"""Asks Ray's nodes something about themselves: a short task on each that is meant. Needs Ray.

A node that does not answer in time (it is busy, or just going) is told apart from one that does:
whoever asked says that it was not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import ray

from stelae.actors.ray_host.node_selector import node_options
from stelae.core.errors import StelaeError

T = TypeVar("T")
ANSWER_TIMEOUT_S = 20.0
"""A node that has no worker at hand starts one first."""


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """What nodes said, by the names that they were asked under."""

    answers: Mapping[str, T]
    silent: Mapping[str, str]
    """Those that did not answer, and why."""


def ask(
    work: Callable[..., T],
    selectors: Mapping[str, Mapping[str, str]],
    arguments: Mapping[str, tuple[Any, ...]],
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Told[T]:
    """Call ``work`` on a node for each name, all at once.

    ``selectors``: which node (`node_selector`). Raises StelaeError: what ``work`` raised.
    """
    task = ray.remote(work)
    asked = {
        name: task.options(
            num_cpus=0, max_retries=0, enable_task_events=False, **node_options(selector)
        ).remote(*arguments[name])
        for name, selector in selectors.items()
    }
    if asked:
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=timeout_s)
    answers: dict[str, T] = {}
    silent: dict[str, str] = {}
    for name, each in asked.items():
        try:
            answers[name] = ray.get(each, timeout=0)
        except ray.exceptions.GetTimeoutError:
            silent[name] = f"no answer within {timeout_s:g} s"
            ray.cancel(each, force=True)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, StelaeError):
                raise error.cause from None
            silent[name] = str(error.cause)
        except ray.exceptions.RayError as error:
            silent[name] = str(error).partition("\n")[0]
    return Told(answers, silent)
