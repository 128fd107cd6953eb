"""deploy/kubernetes/ray: the example with its texts generated on Ray, by KubeRay's schema and what Ray takes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from typing import Any

import pytest
import yaml

from service.settings import Settings
from tests.project.kustomize import Resource, containers, key_of, references, render
from tests.project.test_kubernetes import FOLDER, settings_map
from tests.repository import REPOSITORY

PAGE = (REPOSITORY / "docs" / "how-to" / "run-on-ray.md").read_text()
PART = {"app.kubernetes.io/part-of": "soup-ray"}
HEAD = "soup-ray-head-svc:6379"
STRICT = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
TOKEN = {"secretKeyRef": {"name": "soup-ray", "key": "auth_token"}}
PARSES = """
import json, sys
from ray.scripts.scripts import start
for arguments in json.load(sys.stdin):
    start.make_context("start", arguments)
"""


@cache
def resources() -> dict[tuple[str, str], Resource]:
    return {key_of(resource): resource for resource in render(FOLDER / "ray")}


def cluster() -> Resource:
    spec: Resource = resources()["RayCluster", "soup-ray"]["spec"]
    return spec


def templates() -> dict[str, Resource]:
    """The pods that are nodes of the cluster."""
    head, (worker,) = cluster()["headGroupSpec"], cluster()["workerGroupSpecs"]
    return {
        "head": head["template"],
        "worker": worker["template"],
        "api": resources()["Deployment", "soup-api"]["spec"]["template"],
        "deploy": resources()["Job", "soup-ray-deploy"]["spec"]["template"],
    }


def drivers() -> dict[str, tuple[Resource, Resource, Resource]]:
    """Of each pod that uses the cluster: its template, the container that does, and the node beside it."""
    by_name = {}
    for name in ("api", "deploy"):
        (driver,), (node,) = templates()[name]["spec"]["containers"], templates()[name]["spec"]["initContainers"]
        by_name[name] = templates()[name], driver, node
    return by_name


def start_of(node: Resource) -> list[str]:
    """The options with which a node beside a driver is started."""
    assert node["command"] == ["sh", "-c"]
    prefix, _, options = node["args"][0].partition("ray start ")
    assert prefix == "umask 0002 && exec "
    return options.split()


def variables(container: Resource) -> dict[str, Any]:
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in container["env"]}


# --- it is the example, with Ray -----------------------------------------------------------------------


def test_all_but_the_servers_that_answer_is_the_example() -> None:
    example = {key_of(resource): resource for resource in render(FOLDER / "overlays" / "example")}
    assert {key for key, resource in example.items() if resources()[key] != resource} == {("Deployment", "soup-api")}
    assert resources().keys() - example.keys() == {
        ("RayCluster", "soup-ray"),
        ("Job", "soup-ray-deploy"),
        ("NetworkPolicy", "soup-ray"),
        ("NetworkPolicy", "soup-ray-head"),
    }


# --- it is what Ray takes -----------------------------------------------------------------------------


def test_the_version_is_the_one_that_is_pinned_and_takes_tokens() -> None:
    assert cluster()["rayVersion"] == version("ray")
    assert f"ray=={version('ray')}\n" in (REPOSITORY / "constraints.txt").read_text()


@pytest.mark.slow
def test_every_node_is_started_with_options_that_ray_has() -> None:
    groups = [cluster()["headGroupSpec"], *cluster()["workerGroupSpecs"]]
    node_options = [[f"--{name}={value}" for name, value in group["rayStartParams"].items()] for group in groups]
    for _, _, node in drivers().values():
        node_options.append(start_of(node))
    run = subprocess.run([sys.executable, "-c", PARSES], input=json.dumps(node_options), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_a_driver_has_a_node_beside_it_that_it_finds() -> None:
    """Ray looks for the node in the list of processes, and speaks to it through files in two folders."""
    for template, driver, node in drivers().values():
        assert template["spec"]["shareProcessNamespace"] is True
        assert node["restartPolicy"] == "Always"  # a sidecar: ready before the driver is started
        assert {f"--address={HEAD}", "--num-cpus=0", "--block"} <= set(start_of(node))
        assert variables(driver)["SOUP_RAY_ADDRESS"] == HEAD
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        for folder in ("/tmp", "/dev/shm"):
            (theirs,), (ours,) = (
                [mount["name"] for mount in each["volumeMounts"] if mount["mountPath"] == folder]
                for each in (node, driver)
            )
            assert theirs == ours
            assert "emptyDir" in volumes[ours]


def test_the_token_is_asked_for_and_comes_from_the_secret() -> None:
    assert cluster()["authOptions"] == {"mode": "token", "secretName": "soup-ray"}  # of which KubeRay makes variables
    for _, driver, node in drivers().values():
        for container in (driver, node):
            environment = variables(container)
            assert (environment["RAY_AUTH_MODE"], environment["RAY_AUTH_TOKEN"]) == ("token", TOKEN)
    assert "create secret generic soup-ray --from-literal=auth_token=" in PAGE


def test_replicas_get_no_key_and_no_password() -> None:
    allowed = {"RAY_USAGE_STATS_ENABLED", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    for name in ("head", "worker"):
        (container,) = templates()[name]["spec"]["containers"]
        assert variables(container).keys() <= allowed
    _, deploy, _ = drivers()["deploy"]
    assert variables(deploy).keys() == {"SOUP_RAY_ADDRESS", "SOUP_THREADS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}


def test_a_replica_fills_a_worker() -> None:
    (group,) = cluster()["workerGroupSpecs"]
    (worker,) = group["template"]["spec"]["containers"]
    _, deploy, _ = drivers()["deploy"]
    options = dict(option.removeprefix("--").split("=") for option in deploy["args"] if option.startswith("--"))
    cpus = worker["resources"]["requests"]["cpu"]
    assert {options["cpus"], group["rayStartParams"]["num-cpus"], variables(deploy)["SOUP_THREADS"]} == {str(cpus)}
    assert (int(options["replicas"]), int(options["max-replicas"])) == (group["minReplicas"], group["maxReplicas"])
    assert cluster()["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert cluster()["enableInTreeAutoscaling"] is True


def test_the_job_says_what_the_command_takes() -> None:
    from adaptersoup.cli.app import command_of

    _, deploy, _ = drivers()["deploy"]
    verb, sub, *options = deploy["args"]
    group: Any = command_of(verb)
    with group.commands[sub].make_context(sub, options):
        pass
    ours = {variable for variable in variables(deploy) if variable.startswith("SOUP_")}
    assert {variable.removeprefix("SOUP_").lower() for variable in ours} <= set(Settings.model_fields)
    assert settings_map([*resources().values()]).keys() - {"SOUP_BASES"} >= {"SOUP_BLOBS_URL", "AWS_REGION"}


# --- the network, and what pods may do ----------------------------------------------------------------


def test_nodes_reach_each_other_and_nobody_else_reaches_them() -> None:
    policy = resources()["NetworkPolicy", "soup-ray"]["spec"]
    among = [{"podSelector": {"matchLabels": PART}}]
    assert policy["podSelector"] == among[0]["podSelector"]
    assert (policy["ingress"], policy["egress"]) == ([{"from": among}], [{"to": among}])
    for template in templates().values():
        labels = template["metadata"]["labels"]
        assert labels.items() >= (PART | {"app.kubernetes.io/name": "adaptersoup"}).items()  # the policy soup's too
    deployments = [
        resource
        for resource in resources().values()
        if resource["kind"] == "Deployment" and resource["metadata"]["name"] != "soup-api"
    ]
    assert not any(
        PART.items() <= deployment["spec"]["template"]["metadata"]["labels"].items() for deployment in deployments
    )
    head = resources()["NetworkPolicy", "soup-ray-head"]["spec"]
    assert head["podSelector"]["matchLabels"].items() <= templates()["head"]["metadata"]["labels"].items()
    assert (head["policyTypes"], "ingress" in head) == (["Egress"], False)


def test_no_service_has_a_port_of_ray_but_the_heads_own() -> None:
    """KubeRay's Service of the head has the ports that its container names; with none it would have the dashboard's."""
    services = [resource for resource in resources().values() if resource["kind"] == "Service"]
    assert sorted(service["metadata"]["name"] for service in services) == ["soup", "soup-api"]
    assert not any(PART.items() <= service["spec"]["selector"].items() for service in services)
    head = cluster()["headGroupSpec"]
    assert "serviceType" not in head  # within the cluster
    (container,) = head["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "gcs-server", "containerPort": int(HEAD.partition(":")[2])}]
    assert head["rayStartParams"].items() >= {"include-dashboard": "false", "dashboard-host": "127.0.0.1"}.items()


def test_pods_may_do_little() -> None:
    example = templates()["api"]["spec"]["securityContext"]
    for name, template in templates().items():
        spec = template["spec"]
        assert spec["securityContext"] == example
        assert spec["enableServiceLinks"] is False
        if name == "head":  # KubeRay gives it an account for the autoscaler
            assert "serviceAccountName" not in spec
        else:
            assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("soup", False)
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in containers(spec):
            identity = {"runAsUser": 10002} if container["name"] == "ray" and name in drivers() else {}
            assert container["securityContext"] == STRICT | identity  # the group is the pod's: files are shared by it
            assert container["resources"]["limits"] == {"memory": container["resources"]["requests"]["memory"]}
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["image"] == templates()["api"]["spec"]["containers"][0]["image"]
    assert cluster()["autoscalerOptions"]["securityContext"] == STRICT


def test_config_maps_are_there_and_kubectl_follows_those_that_a_cluster_names() -> None:
    """Generated ones get a suffix, and kubectl knows where kinds of Kubernetes' own name one, and no others."""
    maps = {name for kind, name in resources() if kind == "ConfigMap"}
    assert {holder["name"] for holder in references([*resources().values()])} == maps
    (rule,) = yaml.safe_load((FOLDER / "ray" / "names.yaml").read_text())["nameReference"]
    naming = {kind for (kind, _), resource in resources().items() if list(references(resource))}
    assert naming - {"Deployment", "Job"} == {field["kind"] for field in rule["fieldSpecs"]}
