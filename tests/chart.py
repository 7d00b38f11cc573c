"""Check what Airflow's Helm chart makes of ``deploy/kubernetes/values.yaml`` against ``controller.yaml``.

    helm template airflow apache-airflow/airflow --version 1.22.0 --namespace airflow \
        --values deploy/kubernetes/values.yaml | python -m tests.chart

No part of ``make test``, which has neither Helm nor the chart.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import yaml

from tests.unit.deploy.test_deploy import objects, pod

Manifests = dict[tuple[str, str], dict[str, Any]]


def main() -> None:
    rendered = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(sys.stdin) if each}
    assert rendered, "there is nothing on the standard input"
    check_configuration(rendered)
    check_containers(rendered)
    check_git(rendered)
    check_secrets(rendered)
    print(f"{len(rendered)} objects fit controller.yaml")


def containers(manifests: Manifests) -> Iterator[tuple[str, dict[str, Any]]]:
    """The containers of all pods, with the names of what makes the pods."""
    for (_, name), manifest in manifests.items():
        spec = manifest.get("spec", {}).get("template", {}).get("spec", {})
        for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
            yield name, container


def check_configuration(rendered: Manifests) -> None:
    """The controller mounts a file that the chart makes, and its tasks call a service that the chart makes."""
    volumes = {each["name"]: each for each in pod()["volumes"]}
    [mounted] = [each for each in pod()["containers"][0]["volumeMounts"] if each["name"] == "airflow-cfg"]
    config = rendered["ConfigMap", volumes["airflow-cfg"]["configMap"]["name"]]
    assert mounted["subPath"] in config["data"]
    mounts = {each["mountPath"] for _, container in containers(rendered) for each in container.get("volumeMounts", ())}
    assert {each["mountPath"] for each in pod()["containers"][0]["volumeMounts"]} - mounts == {"/var/lib/lading"}
    url = objects()["ConfigMap", "lading-options"]["data"]["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    assert port in {str(each["port"]) for each in rendered["Service", host]["spec"]["ports"]}


def check_containers(rendered: Manifests) -> None:
    """Each container has a limit of memory, and each long-lived component of Airflow a probe."""
    image = pod()["containers"][0]["image"]
    sources = pod()["containers"][0]["envFrom"]
    for name, container in containers(rendered):
        assert container["resources"]["limits"]["memory"], f"{name} {container['name']}"
        if container["image"] == image and "groomer" not in container["name"]:
            assert container["envFrom"] == sources, f"{name} {container['name']}"
    probed = {container["name"] for _, container in containers(rendered) if "livenessProbe" in container}
    assert {"api-server", "scheduler", "dag-processor", "triggerer"} <= probed


def check_git(rendered: Manifests) -> None:
    """Chart and controller have the same Dags, by the same git-sync, at the same place."""
    ours = {each["name"]: each for each in (*pod()["initContainers"], *pod()["containers"])}
    synced = [container for _, container in containers(rendered) if container["name"] in ("git-sync", "git-sync-init")]
    assert len(synced) == 4, "those of Dag processor and triggerer"
    for container in synced:
        own = ours[container["name"]]
        assert container["image"] == own["image"]
        environment = {each["name"]: each["value"] for each in container["env"]}
        for each in own["env"]:
            if each["name"] != "GITSYNC_PERIOD":
                assert environment[each["name"]] == each["value"], each["name"]
        assert [each["mountPath"] for each in container["volumeMounts"]] == ["/git"]


def check_secrets(rendered: Manifests) -> None:
    """Secrets are those of ``lading-secrets``, and nobody has a password that the chart knows."""
    assert ("Job", "airflow-run-airflow-migrations") in rendered
    assert ("Job", "airflow-create-user") not in rendered
    # The chart makes that of Celery's broker whatever the executor.
    assert {name for kind, name in rendered if kind == "Secret"} <= {"airflow-broker-url"}
    for name, container in containers(rendered):
        taken = [each for each in container.get("env", ()) if "secretKeyRef" in each.get("valueFrom", {})]
        assert not taken, f"{name} {container['name']}"


if __name__ == "__main__":
    main()
