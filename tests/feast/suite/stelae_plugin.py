"""A pytest plugin with which Feast's own tests run on Stelae: see test_feast_suite.py.

Packages for containers and clouds, which Feast's helpers import, need not be there; repositories
that would be on SQLite are on Stelae; what is left out is said, each with its reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import feast.infra.online_stores.sqlite
import pytest
import yaml

from stelae.feast import StelaeOnlineStoreConfig

NO_VECTORS = "search by vectors, which Stelae has not"
NEEDS_DYNAMODB = "DynamoDB in a container; the test of other async stores runs"
OTHERS = "of SQLite's or Milvus's own search by vectors"
LEFT_OUT = {
    "test_connection_pool_online_stores": "settings of PostgreSQL's driver",
    "test_entity_ttl_online_store": "a setting of Redis's; rows of Stelae's do not expire",
    "test_async_online_retrieval_with_event_timestamps_dynamo": NEEDS_DYNAMODB,
    "test_push_features_and_read_async_dynamodb": NEEDS_DYNAMODB,
    "test_retrieve_online_documents": NO_VECTORS,
    "test_retrieve_online_milvus_documents": NO_VECTORS,
    "test_retrieve_online_image_search_hybrid": NO_VECTORS,
    "test_retrieve_online_documents_v2": NO_VECTORS,
    "test_retrieve_online_documents_v2_with_filters": NO_VECTORS,
    "test_openai_search": NO_VECTORS,
    "test_openai_search_no_embedding_config": NO_VECTORS,
    "test_openai_search_not_found": NO_VECTORS,
    "test_get_online_features_milvus": OTHERS,
    "test_sqlite_get_online_documents": OTHERS,
    "test_sqlite_vec_import": OTHERS,
    "test_sqlite_hybrid_search": OTHERS,
    "test_sqlite_get_online_documents_v2": OTHERS,
    "test_sqlite_get_online_documents_v2_search": OTHERS,
    "test_local_milvus": OTHERS,
    "test_milvus_lite_retrieve_online_documents_v2": OTHERS,
    "test_milvus_stored_writes_with_explode": OTHERS,
    "test_milvus_native_from_feast_data": OTHERS,
    "test_milvus_keyword_search": OTHERS,
    "test_milvus_update_preserves_collection_cache": OTHERS,
    "test_milvus_plan_returns_empty_list": OTHERS,
    "test_milvus_retrieve_online_documents_v2_missing_entity_key": OTHERS,
}
if find_spec("torch") is None:
    LEFT_OUT["test_get_online_features"] = "PyTorch; test_online_to_df reads the same repository"
ABSENT = (
    "boto3",
    "botocore",
    "google.cloud",
    "keycloak",
    "minio",
    "psycopg_pool",
    "sqlite_vec",
    "testcontainers",
)


class _Named(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Unusable(Exception, metaclass=_Named):
    """Stands for a class of a package that is not there: may be named, not made."""

    def __init__(self, *given: Any, **more: Any) -> None:
        raise AssertionError("a test asks for a container or a cloud: it is to be left out")


class _StandIn(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unusable


class _StandIns(MetaPathFinder, Loader):
    """Comes last, so a package that is there is itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if any(name == each or name.startswith(f"{each}.") for each in ABSENT):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


def _config_on_stelae(path: str) -> StelaeOnlineStoreConfig:
    """In place of SQLite's: where its file would be does not matter."""
    return StelaeOnlineStoreConfig(cluster=os.environ["STELAE_CLUSTER"])


def _put_repositories_on_stelae() -> None:
    """What `feast apply` finds in their ``feature_store.yaml``."""
    from tests.utils.cli_repo_creator import CliRunner  # Feast's tests, not ours

    run = CliRunner.run

    def run_on_stelae(
        self: Any, args: list[str], cwd: Path, *given: Any, **more: Any
    ) -> subprocess.CompletedProcess[bytes]:
        file = cwd / "feature_store.yaml"
        settings = yaml.safe_load(file.read_text())
        if settings["online_store"].keys() == {"path"}:  # SQLite is Feast's default
            settings["online_store"] = _config_on_stelae("").model_dump(exclude_none=True)
            file.write_text(yaml.safe_dump(settings))
        return run(self, args, cwd, *given, **more)  # type: ignore[no-any-return]

    CliRunner.run = run_on_stelae


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    sys.meta_path.append(_StandIns())
    feast.infra.online_stores.sqlite.SqliteOnlineStoreConfig = _config_on_stelae


def pytest_sessionstart(session: pytest.Session) -> None:
    _put_repositories_on_stelae()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Feast's own hook, which comes next, keeps integration tests or the others."""
    left_out = [item for item in items if item.originalname in LEFT_OUT]  # type: ignore[attr-defined]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        item.add_marker("integration")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    names = {item.originalname for item in terminalreporter.stats.get("deselected", [])}
    for name in sorted(names & LEFT_OUT.keys()):
        terminalreporter.write_line(f"LEFT OUT {name}: {LEFT_OUT[name]}")
