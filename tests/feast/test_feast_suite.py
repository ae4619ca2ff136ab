"""Feast's own online-store tests on Stelae, where its repository is at hand.

They are in none of Feast's packages (docs/decisions.md §49), so a checkout of it has to be named:
``make test-feast-own FEAST_SOURCE=folder``. What they ask is asked by test_feast_cases.py anyhow.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("feast", reason="Feast has an environment of its own: make test-feast")

SOURCE = os.environ.get("FEAST_SOURCE")
SUITE = Path(__file__).parent / "suite"
ONLINE = ("test_universal_online", "test_universal_online_types", "test_universal_e2e")
FILES = [
    *(f"tests/integration/online_store/{name}.py" for name in ONLINE),
    "tests/integration/online_store/test_push_features_to_online_store.py",
    "tests/unit/online_store/test_online_writes.py",
    "tests/unit/online_store/test_online_retrieval.py",
]
MUST_PASS = {
    "test_async_online_retrieval_with_event_timestamps",
    "test_e2e_consistency",
    "test_feature_get_online_features_types_match",
    "test_online_list_retrieval",
    "test_online_retrieval",
    "test_online_retrieval_success",
    "test_online_retrieval_with_event_timestamps",
    "test_online_retrieval_with_shared_batch_source",
    "test_online_store_cleanup",
    "test_online_to_df",
    "test_push_features_and_read",
    "test_push_features_and_read_async",
    "test_transform_on_write_pdf",
    "test_valid_dataframe",
    "test_write_to_online_store",
    "test_write_to_online_store_event_check",
}


@pytest.mark.ray
@pytest.mark.soak
@pytest.mark.skipif(SOURCE is None, reason="needs Feast's repository: make test-feast-own")
def test_feasts_own_tests_pass(database: Any, tmp_path: Path) -> None:
    """All that can run without containers, clouds and search by vectors."""
    report = tmp_path / "report.xml"
    environment = os.environ | {
        "FULL_REPO_CONFIGS_MODULE": "stelae_stores",
        "IS_TEST": "True",
        "PYTHONPATH": str(SUITE),
        "STELAE_CLUSTER": str(Path.cwd() / ".stelae" / "demo"),
    }
    options = ["-p", "stelae_plugin", "-p", "no:cacheprovider", "--integration", "-q"]
    own = ["-c", os.devnull, "--rootdir", ".", "-o", "asyncio_mode=auto"]  # theirs asks for plugins
    command = [sys.executable, "-m", "pytest", *own, *options, f"--junit-xml={report}", *FILES]
    folder = Path(str(SOURCE)) / "sdk" / "python"
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900.0
    )
    print(done.stdout[-8000:], done.stderr[-4000:], sep="\n")
    assert done.returncode == 0
    cases = ElementTree.parse(report).getroot().iter("testcase")
    passed = [case.attrib["name"].partition("[")[0] for case in cases if not len(case)]
    assert set(passed) >= MUST_PASS
    print(f"{len(passed)} of Feast's own tests passed")
