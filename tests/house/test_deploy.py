"""The files of ``deploy/``: what Ray and Stelae say of them. Nobody runs Kubernetes here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from stelae.core.config.spec_file import load_spec
from stelae.serve.environment import serve_environment

DEPLOY = Path(__file__).parents[2] / "deploy"


def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    """The map of files, and the cluster."""
    found = list(yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text()))
    by_kind = {document["kind"]: document for document in found}
    assert len(by_kind) == len(found) == 2
    return by_kind["ConfigMap"], by_kind["RayCluster"]["spec"]


def test_kuberays_file_has_a_cluster_that_stelae_takes(tmp_path: Path) -> None:
    """Its disks are where the pods have them, its label is what workers are started with."""
    files, cluster = documents()
    path = tmp_path / "cluster.yaml"
    path.write_text(files["data"]["cluster.yaml"])
    spec = load_spec(path)
    assert spec.ray.address == "auto"
    assert spec.placement is not None
    groups = cluster["workerGroupSpecs"]
    assert len(groups) >= spec.backups.count
    labels = [group["rayStartParams"]["labels"] for group in groups]
    assert len(set(labels)) == len(groups)
    assert all(label.partition("=")[0] == spec.placement.label for label in labels)
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert any(Path(spec.data_dir).is_relative_to(mount) for mount in mounts)


def test_kuberays_pods_keep_their_address_their_host_and_their_disk() -> None:
    """Masters are found where they were, also after a pod was made anew; and there is one pod for
    each disk, so nobody gets another's."""
    _, cluster = documents()
    pods = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for pod in pods:
        spec = pod["template"]["spec"]
        assert spec["hostNetwork"]
        assert list(spec["nodeSelector"]) == ["stelae.dev/disk"]
        assert any("hostPath" in volume for volume in spec["volumes"])
    for group in cluster["workerGroupSpecs"]:
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 1
        disk = group["template"]["spec"]["nodeSelector"]["stelae.dev/disk"]
        assert group["rayStartParams"]["labels"] == f"disk={disk}"
    hosts = [pod["template"]["spec"]["nodeSelector"]["stelae.dev/disk"] for pod in pods]
    assert len(set(hosts)) == len(hosts), "two Rays on one host's network"
    assert not cluster["enableInTreeAutoscaling"]


def test_rays_launcher_takes_its_file() -> None:
    """By its own schema; workers are labelled by what stays with a machine."""
    config = yaml.safe_load((DEPLOY / "ray-up.yaml").read_text())
    validate_config(prepare_config(config))
    assert any("--labels=disk=$(hostname)" in c for c in config["worker_start_ray_commands"])


def test_every_ray_is_started_with_haproxy_before_serve() -> None:
    """The variable counts when Ray starts, on each node; the admin socket is this user's alone."""
    _, cluster = documents()
    for pod in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = pod["template"]["spec"]["containers"]
        values = {each["name"]: each["value"] for each in container["env"]}
        assert values["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    assert "\nENV RAY_SERVE_ENABLE_HA_PROXY=1" in (DEPLOY / "Dockerfile").read_text()
    config = yaml.safe_load((DEPLOY / "ray-up.yaml").read_text())
    (written,) = [c for c in config["setup_commands"] if "printf" in c]
    names = set(re.findall(r"RAY_SERVE_\w+", written))
    assert "RAY_SERVE_ENABLE_HA_PROXY=1" in written
    assert names <= serve_environment("data").keys()
    assert "RAY_SERVE_HAPROXY_SOCKET_PATH=$HOME/.haproxy/" in written
    assert any("chmod 700 ~/.haproxy" in c for c in config["setup_commands"])
    for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"]):
        (start,) = [command for command in commands if "ray start" in command]
        assert start.startswith(". ~/.haproxy/environment && ")


def test_the_image_and_the_file_are_of_the_same_ray() -> None:
    """As the lock has it."""
    (pinned,) = [
        line.partition("==")[2]
        for line in (DEPLOY.parent / "constraints.txt").read_text().splitlines()
        if line.startswith("ray==") or line.startswith("ray[")
    ]
    _, cluster = documents()
    assert cluster["rayVersion"] == pinned
    assert f"FROM rayproject/ray:{pinned}-py311" in (DEPLOY / "Dockerfile").read_text()


def test_the_image_has_a_wheel_with_the_jar_for_spark() -> None:
    """It is compiled where a compiler and PySpark are, and the build ends where there is none."""
    wheel, _, image = (DEPLOY / "Dockerfile").read_text().rpartition("\nFROM ")
    assert "openjdk-17-jdk-headless" in wheel
    assert "--no-build-isolation" in wheel, "an isolated build has no PySpark"
    assert "pyspark --constraint" in wheel
    assert "grep -q stelae/connectors/java/stelae-spark.jar" in wheel
    assert "COPY --from=wheel" in image
    assert ".whl)[tls]" in image, "tls: {mode: internal} needs a library of its own"
