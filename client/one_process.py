"""What stays in the process that made it: objects over a `Runtime`, or over HTTP connections."""

from __future__ import annotations

from typing import NoReturn, Self

from stelae.core.errors import InvalidArgument

WAY_OUT = (
    "pickle the Database or Table of stelae.connect(…) or stelae.launch(…), or their .aio, which "
    "connect again where they are unpickled; or call stelae.connect(…) there, with the cluster's "
    "name, its data_dir or its URL"
)


class OneProcess:
    """An object that can be copied within its process, and not pickled."""

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument(
            f"a {type(self).__name__} is bound to the connections of this process and cannot be "
            f"pickled; {WAY_OUT}"
        )
