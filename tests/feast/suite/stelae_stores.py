"""Which stores Feast's universal tests run with: Stelae, on the cluster of the environment.

Feast finds this module by its ``FULL_REPO_CONFIGS_MODULE``. Its tests ask for stores by name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tests.universal.feature_repos.universal.data_sources.file import (  # Feast's tests, not ours
    FileDataSourceCreator,
)

if TYPE_CHECKING:
    from _collections_abc import dict_values

STELAE = {"type": "stelae.feast.StelaeOnlineStore", "cluster": os.environ["STELAE_CLUSTER"]}


class _OneStore(dict[str, Any]):
    """The same store under each name, and once among all."""

    def values(self) -> dict_values[str, Any]:
        return {"stelae": (STELAE, None)}.values()


# The names that tests ask for which any store could pass: what is newest, cleaning up, async.
AVAILABLE_ONLINE_STORES = _OneStore(dict.fromkeys(["sqlite", "redis", "mongodb"], (STELAE, None)))
AVAILABLE_OFFLINE_STORES = [("local", FileDataSourceCreator)]
