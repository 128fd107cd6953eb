"""deploy/kubernetes: it is Kubernetes, fits together, and fits the image, the settings and the command line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from sqlalchemy import make_url

from adaptersoup.cli.app import command_of
from docs import api_page
from registry.base_model import read_allowlist
from service.settings import Settings
from tests.project.dockerfile import DOCKERFILE, environment, rests, settings_from, stages
from tests.project.kustomize import Resource, key_of, mappings, references, render
from tests.repository import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "kubernetes"
FOLDERS = [*sorted((FOLDER / "overlays").iterdir()), FOLDER / "ray"]
PAGE = (REPOSITORY / "docs" / "how-to" / "run-on-kubernetes.md").read_text()
SCHEMAS = json.loads((REPOSITORY / "tests" / "fixtures" / "kubernetes-1.37.json").read_text())
KUBERAY = json.loads((REPOSITORY / "tests" / "fixtures" / "kuberay-1.7.json").read_text())
KINDS = {**SCHEMAS["kinds"], **KUBERAY["kinds"]}
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
IMAGE = environment(DOCKERFILE)
OTHERS = {"PGPASSWORD", "PGSSLMODE", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
"""Variables that are not settings of ours: of libpq, and of the object store's client."""
PROXY = "soup-proxy"
"""HAProxy, whose image is not ours."""
GIB = 2**30
GPT2_BYTES = (124_439_808 + 50_257 * 768) * 4
"""The base model of the example, in fp32, with its output layer in a second layout, as on a CPU."""
SECRET = re.compile("PASSWORD|KEY|TOKEN|SECRET")


@pytest.fixture(params=FOLDERS[:-1], ids=lambda folder: folder.name)
def resources(request: pytest.FixtureRequest) -> list[Resource]:
    return render(request.param)


def of_kind(resources: list[Resource], *kinds: str) -> dict[str, Resource]:
    """By their names."""
    return {resource["metadata"]["name"]: resource for resource in resources if resource["kind"] in kinds}


def pods(resources: list[Resource]) -> dict[str, Resource]:
    """The template of every workload's pods, by the workload's name."""
    workloads = of_kind(resources, "Deployment", "Job")
    assert {name.removeprefix("soup-") for name in workloads} == {"api", "worker", "proxy", "migrate"}
    return {name: workload["spec"]["template"] for name, workload in workloads.items()}


def containers(resources: list[Resource]) -> dict[str, Resource]:
    by_workload = {}
    for name, template in pods(resources).items():
        (by_workload[name],) = template["spec"]["containers"]
    return by_workload


def ours(resources: list[Resource]) -> dict[str, Resource]:
    """The containers of our image."""
    return {name: container for name, container in containers(resources).items() if name != PROXY}


def settings_map(resources: list[Resource]) -> dict[str, str]:
    data: dict[str, str] = of_kind(resources, "ConfigMap")["soup-settings"]["data"]
    return data


def variables(container: Resource, resources: list[Resource]) -> dict[str, str]:
    """The environment of a container's process, with values of our own for those that the cluster fills in."""
    environment = dict(settings_map(resources)) if "envFrom" in container else {}
    filled_in = {"SOUP_THREADS": "2", "SOUP_BOOTSTRAP_KEY": "sk-soup-" + "a" * 43}
    for variable in container["env"]:
        value = variable.get("value", filled_in.get(variable["name"], "given"))
        environment[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], value)
    return environment


# --- it is Kubernetes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_everything_has_the_form_that_kubernetes_and_kuberay_say(folder: Path) -> None:
    for resource in render(folder):
        schema = KINDS[f"{resource['apiVersion']} {resource['kind']}"]
        mistakes = Draft202012Validator({**schema, "$defs": SCHEMAS["$defs"]}).iter_errors(resource)
        assert [f"{key_of(resource)} {mistake.json_path}: {mistake.message}" for mistake in mistakes] == []


def test_no_two_have_the_same_name_and_all_are_in_the_namespace(resources: list[Resource]) -> None:
    assert len({key_of(resource) for resource in resources}) == len(resources)
    ((namespace, _),) = of_kind(resources, "Namespace").items()
    assert {resource["metadata"]["namespace"] for resource in resources if resource["kind"] != "Namespace"} == {
        namespace
    }


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_kubectl_renders_the_same(folder: Path) -> None:
    rendered = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True).stdout
    theirs = re.sub(r"\b(soup-(?:settings|bases|proxy))-[a-z0-9]{10}\b", r"\1", rendered)
    assert theirs != rendered
    assert {key_of(resource): resource for resource in yaml.safe_load_all(theirs)} == {
        key_of(resource): resource for resource in render(folder)
    }


# --- it fits together ---------------------------------------------------------------------------------


def selects(selector: Mapping[str, str], template: Resource) -> bool:
    return selector.items() <= template["metadata"]["labels"].items()


def selectors(node: Any) -> Iterator[dict[str, str]]:
    """Every selector of pods in a resource."""
    for field, value in mappings(node):
        if field in {"podSelector", "labelSelector", "selector"}:
            yield value.get("matchLabels", value)


def test_every_selector_finds_the_pods_that_it_is_for(resources: list[Resource]) -> None:
    templates = pods(resources)
    for resource in resources:
        for selector in selectors(resource):
            assert any(selects(selector, template) for template in templates.values()), key_of(resource)
    for name, deployment in of_kind(resources, "Deployment").items():
        (own_selector, *spread) = selectors(deployment)
        assert [workload for workload, template in templates.items() if selects(own_selector, template)] == [name]
        assert spread == [own_selector, own_selector]
    for kind, expected in (("PodDisruptionBudget", {"soup-api", PROXY}), ("Service", {"soup-api", "soup"})):
        by_name = of_kind(resources, kind)
        assert by_name.keys() == expected
        for name, resource in by_name.items():
            (selector,) = selectors(resource)
            target = PROXY if name == "soup" else name
            assert [workload for workload, template in templates.items() if selects(selector, template)] == [target]


def test_what_is_referred_to_is_there(resources: list[Resource]) -> None:
    assert {holder["name"] for holder in references(resources)} == of_kind(resources, "ConfigMap").keys()
    accounts = {template["spec"]["serviceAccountName"] for template in pods(resources).values()}
    assert accounts == of_kind(resources, "ServiceAccount").keys()
    for template in pods(resources).values():
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        (container,) = template["spec"]["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_the_autoscaler_alone_says_how_many_api_pods_there_are(resources: list[Resource]) -> None:
    ((_, scaler),) = of_kind(resources, "HorizontalPodAutoscaler").items()
    assert scaler["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "soup-api"}
    deployments = of_kind(resources, "Deployment")
    assert "replicas" not in deployments["soup-api"]["spec"]  # each `apply` would set it back
    assert {name for name, deployment in deployments.items() if "replicas" in deployment["spec"]} == {
        PROXY,
        "soup-worker",
    }
    requests = containers(resources)["soup-api"]["resources"]["requests"]
    assert [metric["resource"]["name"] for metric in scaler["spec"]["metrics"]] == ["cpu"]
    assert "cpu" in requests  # utilisation is of what was asked for


def test_ports_meet(resources: list[Resource]) -> None:
    for name, container in containers(resources).items():
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        assert ports == ({} if name == "soup-migrate" else {"http": int(IMAGE["SOUP_PORT"])})
        assert {probe["httpGet"]["port"] for probe in probes(container).values()} <= ports.keys()
    for service in of_kind(resources, "Service").values():
        assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http"]


def test_the_proxy_finds_every_pod_by_the_name_of_their_service(resources: list[Resource]) -> None:
    """HAProxy asks for the addresses; what a name would be balanced to by the cluster knows no models."""
    service = of_kind(resources, "Service")["soup-api"]["spec"]
    assert service["clusterIP"] == "None"
    variables = {variable["name"]: variable.get("value") for variable in containers(resources)[PROXY]["env"]}
    assert str(variables["SOUP_SERVERS"]).partition(".$(NAMESPACE).svc.")[0] == "soup-api"
    config = of_kind(resources, "ConfigMap")[PROXY]["data"]["haproxy.cfg"]
    ((slots, port),) = set(re.findall(r'server-template server (\d+) "\$\{SOUP_SERVERS\}:(\d+)"', config))
    assert int(port) == service["ports"][0]["port"]
    (scaler,) = of_kind(resources, "HorizontalPodAutoscaler").values()
    assert int(slots) >= scaler["spec"]["maxReplicas"] + 1  # one more while a pod is exchanged
    assert f"bind :{IMAGE['SOUP_PORT']}" in config


def test_only_what_is_needed_passes_the_network(resources: list[Resource]) -> None:
    policies = of_kind(resources, "NetworkPolicy")
    templates = pods(resources)

    def reached(name: str) -> list[Any]:
        """From where a pod may be reached."""
        specs = [policy["spec"] for policy in policies.values()]
        mine = [spec for spec in specs if selects(spec["podSelector"]["matchLabels"], templates[name])]
        assert any(spec["policyTypes"] == ["Ingress", "Egress"] for spec in mine), name
        return [rule for spec in mine for rule in spec.get("ingress", ())]

    assert reached("soup-worker") == reached("soup-migrate") == []
    (to_api,), (to_proxy,) = reached("soup-api"), reached(PROXY)
    (source,) = selectors(to_api["from"])
    assert [name for name, template in templates.items() if selects(source, template)] == [PROXY]
    assert to_proxy["from"] == [{"namespaceSelector": {}}]
    assert to_api["ports"] == to_proxy["ports"] == [{"port": "http", "protocol": "TCP"}]
    (target,) = selectors(policies[PROXY]["spec"]["egress"])
    assert [name for name, template in templates.items() if selects(target, template)] == ["soup-api"]
    everywhere = {
        port["port"] for rule in policies["soup"]["spec"]["egress"] if "to" not in rule for port in rule["ports"]
    }
    assert everywhere == {443, make_url(settings_map(resources)["SOUP_DATABASE_URL"]).port or 5432}


# --- it fits the image, the settings and the command line ---------------------------------------------


def probes(container: Resource) -> dict[str, Resource]:
    return {field: container[field] for field in container if field.endswith("Probe")}


@pytest.fixture(scope="module")
def calls() -> Any:
    """The paths of the API."""
    return api_page.application().openapi()["paths"]


def test_probes_ask_for_routes_that_need_no_key(resources: list[Resource], calls: Any) -> None:
    for name, container in containers(resources).items():
        paths = {field: probe["httpGet"]["path"] for field, probe in probes(container).items()}
        if name == "soup-migrate":
            assert paths == {}
            continue
        assert (paths["livenessProbe"], paths["readinessProbe"]) == ("/healthz", "/readyz")
        assert ("startupProbe" in paths) == (name != PROXY)  # it loads no model
        assert paths.get("startupProbe", "/healthz") == "/healthz"
        assert all("security" not in calls[path]["get"] for path in paths.values())


def test_the_limits_of_memory_hold_what_the_page_adds_up(
    resources: list[Resource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker loads the base model again for a training, and for a cook that computes gradients."""
    for name, copies in (("soup-api", 1), ("soup-worker", 3)):
        container = containers(resources)[name]
        settings = settings_from(variables(container, resources), monkeypatch)
        needed = copies * GPT2_BYTES + 3 * settings.adapter_bank_bytes + settings.engine_kv_bytes + GIB
        limit = container["resources"]["limits"]["memory"]
        assert int(limit.removesuffix("Gi")) * GIB >= needed, f"{name}: {needed / GIB:.2f} GiB"
        assert container["resources"]["requests"]["memory"] == limit


def test_the_arguments_are_commands(resources: list[Resource]) -> None:
    for name, container in ours(resources).items():
        assert "command" not in container  # the image's entry point is soup
        verb, *options = container["args"]
        assert verb == ("migrate" if name == "soup-migrate" else "serve")
        with command_of(verb).make_context(verb, options):
            pass


def test_variables_are_settings_and_make_sense(resources: list[Resource], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, container in ours(resources).items():
        environment = variables(container, resources)
        named = {variable for variable in environment if variable.startswith("SOUP_")}
        assert environment.keys() - named <= OTHERS
        assert {variable.removeprefix("SOUP_").lower() for variable in named} <= set(Settings.model_fields)
        settings = settings_from(environment, monkeypatch)
        assert (settings.host, settings.port) == ("0.0.0.0", 8000)
        url = make_url(settings.database)
        assert (url.drivername, url.password) == ("postgresql+psycopg", None)
        assert environment["PGPASSWORD"] == "given"
        role = {"soup-api": "api", "soup-worker": "worker"}.get(name, "all")
        assert settings.role == role
        assert (settings.bootstrap_key is not None) == (role != "all")
        assert str(settings.blobs_url).startswith("s3://")


def test_a_variable_is_there_before_another_is_made_of_it(resources: list[Resource]) -> None:
    for container in containers(resources).values():
        defined: set[str] = set()
        for variable in container["env"]:
            assert set(re.findall(r"\$\((\w+)\)", variable.get("value", ""))) <= defined
            defined.add(variable["name"])


def test_what_is_written_is_written_into_volumes(resources: list[Resource], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("soup-api", "soup-worker"):
        container, spec = containers(resources)[name], pods(resources)[name]["spec"]
        settings = settings_from(variables(container, resources), monkeypatch)
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        writable = {path for path, mount in mounts.items() if "emptyDir" in volumes[mount["name"]]}
        written = [settings.data, settings.cache, settings.trainings_dir, Path(IMAGE["HF_HOME"]), Path("/tmp/x")]
        assert (
            volumes["data"]["emptyDir"]["sizeLimit"] == f"{4 * settings.blobs_cache_bytes // 2**30}Gi"
        )  # or it is evicted
        for path in written:
            assert any(path.is_relative_to(place) for place in writable), path
        bases = mounts[str(settings.bases.parent)]
        assert bases["readOnly"] is True
        files = of_kind(resources, "ConfigMap")[volumes[bases["name"]]["configMap"]["name"]]["data"]
        assert files.keys() == {settings.bases.name}


def test_the_allowlist_of_the_example_is_read() -> None:
    (entry,) = read_allowlist(FOLDER / "overlays" / "example" / "bases.toml").values()
    assert entry.revision is not None


def test_images_are_of_this_version(resources: list[Resource]) -> None:
    assert {container["image"] for container in ours(resources).values()} == {
        f"registry.example/adaptersoup:{PROJECT['version']}"
    }


# --- what pods may do ---------------------------------------------------------------------------------


def test_pods_may_do_little(resources: list[Resource]) -> None:
    user, group = map(int, rests(stages(DOCKERFILE)[-1], "USER")[0].split(":"))
    for template in pods(resources).values():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False, "a Service named `soup` would set SOUP_PORT to tcp://10.0.0.1:80"
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": group,
            "fsGroup": group,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all(volume.keys() & {"emptyDir", "configMap"} for volume in spec["volumes"])
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["resources"]["limits"] == {"memory": container["resources"]["requests"]["memory"]}
    (account,) = of_kind(resources, "ServiceAccount").values()
    assert account["automountServiceAccountToken"] is False


def test_no_secret_stands_in_a_file(resources: list[Resource]) -> None:
    assert of_kind(resources, "Secret") == {}
    for name, container in containers(resources).items():
        secrets = {
            variable["name"]: variable["valueFrom"] for variable in container["env"] if SECRET.search(variable["name"])
        }
        for key, source in secrets.items():
            assert source == {"secretKeyRef": {"name": "soup-secrets", "key": key}}
        expected = set() if name == PROXY else {"PGPASSWORD"}
        if name in {"soup-api", "soup-worker"}:
            expected |= {"SOUP_BOOTSTRAP_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
        assert secrets.keys() == expected
    for setting in settings_map(resources):
        assert not SECRET.search(setting)
    for path in FOLDER.rglob("*"):
        assert path.is_dir() or not re.search(r"://[^/\s]*:[^/\s]*@|sk-soup-", path.read_text())


# --- the page -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_makes_the_secret_that_pods_refer_to(resources: list[Resource], tmp_path: Path) -> None:
    (code,) = re.findall(r"<!-- run: secrets -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    subprocess.run(["bash", "-euc", code], cwd=tmp_path, check=True)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    secrets = dict(line.split("=", 1) for line in file.read_text().splitlines())
    needed = {
        variable["valueFrom"]["secretKeyRef"]["key"]
        for container in containers(resources).values()
        for variable in container["env"]
        if "secretKeyRef" in variable.get("valueFrom", {})
    }
    assert secrets.keys() == needed
    assert f"create secret generic soup-secrets --from-env-file={file.name}" in PAGE
    assert file.name in (REPOSITORY / ".gitignore").read_text().splitlines()
