"""A forked child of a process that uses Ray leaves its parent's Ray alone, also when it exits.

Ray registers exit handlers that disconnect the driver and end the processes of a Ray that it
started. A child inherits them, together with the connections to Ray's processes. So a child that
ends by ``sys.exit`` would take its parent's cluster down. Nothing of Ray works in a forked child:
its threads are in the parent. Stelae's own connections do (`stelae.client.connection`).
"""

from __future__ import annotations

import atexit
import ctypes
import sys

import ray

from stelae.core.errors import InvalidArgument
from stelae.core.forks import forget_in_children, keep_for_ever


class ParentsRay:
    """Whether this process was forked from one that used Ray."""

    def __init__(self) -> None:
        self.is_inherited = False
        forget_in_children(self)

    def forget(self) -> None:
        """See `stelae.core.forks.OfOneProcess`."""
        if not ray.is_initialized():
            return
        self.is_inherited = True
        module = ray._private.worker
        worker = module.global_worker
        for inherited in (
            module._global_node,
            getattr(worker, "core_worker", None),
            getattr(worker, "gcs_client", None),
            ray._private.state.state._global_state_accessor,
        ):
            # It would disconnect the parent, or wait for threads that are in the parent and crash.
            if inherited is not None:
                keep_for_ever(inherited)
        module._global_node = None
        worker.set_is_connected(False)
        worker.set_mode(None)  # type: ignore[arg-type]  # as Ray's own shutdown does
        atexit.unregister(module.shutdown)
        if (raydp := sys.modules.get("raydp.context")) is not None:
            atexit.unregister(raydp.stop_spark)  # it would stop the parent's Spark
        _skip_parents_c_handlers()

    def refuse(self, what: str) -> None:
        """Raise InvalidArgument in a process that was forked from one that used Ray."""
        if self.is_inherited:
            raise InvalidArgument(
                f"{what} needs Ray, which does not work in a process that was forked from one that "
                "uses it: use the Database that was connected before the fork, connect by data_dir "
                'or URL, or start this process otherwise (multiprocessing\'s "spawn")'
            )


def _skip_parents_c_handlers() -> None:
    """Have this process end before exit handlers of C libraries that its parent registered.

    Ray's core worker has one; it waits for threads that are in the parent only. glibc calls
    handlers in reverse order, so those that the child registers from now on are called.
    """
    c_library = ctypes.CDLL(None)
    c_library.on_exit(c_library._exit, None)


parents_ray = ParentsRay()
