"""Renders a kustomization as `kubectl kustomize` does, as far as deploy/kubernetes uses it, for tests without kubectl.

Fields that it does not know are refused: a folder that begins to use one fails here and is not half rendered. The
suffix that a generated config map's name gets is `-generated` and not a hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]

KNOWN = {"apiVersion", "kind", "namespace", "resources", "images", "configMapGenerator", "patches", "configurations"}
OWN = {"Deployment", "Job"}
"""Kinds of Kubernetes' own in which names of config maps are followed."""
SUFFIX = "-generated"
KEYED_BY = {
    "containers": "name", "initContainers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath",
    "ports": "containerPort",
}  # fmt: skip
"""Lists that a strategic merge merges element by element, by this field."""


def render(folder: Path) -> list[Resource]:
    """The resources of a kustomization, those of generated config maps first."""
    resources, maps = _build(folder)
    for resource in resources:
        assert resource["kind"] in OWN or resource["kind"] in _known_names(folder) or not list(references(resource))
    made = [_config_map(name, data, resources) for name, data in maps.items()]
    for holder in references(resources):
        if holder["name"] in maps:
            holder["name"] += SUFFIX
    return [*made, *resources]


def key_of(resource: Resource) -> tuple[str, str]:
    """What no two resources share: kind and name."""
    return resource["kind"], resource["metadata"]["name"]


def references(node: Any) -> Iterator[Resource]:
    """Every place that names a config map, as the mapping with its `name`."""
    if isinstance(node, dict):
        for field, child in node.items():
            if field in {"configMapRef", "configMapKeyRef", "configMap"}:
                yield child
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def containers(node: Any) -> Iterator[Resource]:
    """Every container of a resource, those of init first where they stand first."""
    if isinstance(node, dict):
        for field, child in node.items():
            if field in {"containers", "initContainers"}:
                yield from child
            else:
                yield from containers(child)
    elif isinstance(node, list):
        for child in node:
            yield from containers(child)


def _build(folder: Path) -> tuple[list[Resource], dict[str, dict[str, str]]]:
    """Resources, and config maps still to be made, by their names."""
    found = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert found.keys() <= KNOWN, found.keys() - KNOWN
    resources: list[Resource] = []
    maps: dict[str, dict[str, str]] = {}
    for entry in found["resources"]:
        if (folder / entry).is_dir():
            below, theirs = _build(folder / entry)
            resources += below
            maps |= theirs
        else:
            resources += yaml.safe_load_all((folder / entry).read_text())
    for generator in found.get("configMapGenerator", ()):
        _generate(folder, generator, maps)
    for patch in found.get("patches", ()):
        assert patch.keys() == {"path"}
        for change in yaml.safe_load_all((folder / patch["path"]).read_text()):
            (target,) = [one for one in resources if key_of(one) == key_of(change)]
            _merge(target, change)
    for image in found.get("images", ()):
        _set_image(resources, image)
    for resource in resources:
        if "namespace" in found and resource["kind"] != "Namespace":
            resource["metadata"]["namespace"] = found["namespace"]
    return resources, maps


def _generate(folder: Path, generator: Resource, maps: dict[str, dict[str, str]]) -> None:
    assert generator.keys() <= {"name", "behavior", "literals", "files"}
    data = dict(literal.split("=", 1) for literal in generator.get("literals", ()))
    data |= {name: (folder / name).read_text() for name in generator.get("files", ())}
    assert (generator.get("behavior") == "merge") == (generator["name"] in maps), generator["name"]
    maps[generator["name"]] = maps.get(generator["name"], {}) | data


def _config_map(name: str, data: dict[str, str], resources: list[Resource]) -> Resource:
    (namespace,) = {one["metadata"]["namespace"] for one in resources if one["kind"] != "Namespace"}
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {"name": name + SUFFIX, "namespace": namespace},
    }  # fmt: skip


def _merge(target: Resource, change: Resource) -> None:
    for field, value in change.items():
        if isinstance(value, dict) and isinstance(target.get(field), dict):
            _merge(target[field], value)
        elif isinstance(value, list) and field in KEYED_BY:
            _merge_list(target.setdefault(field, []), value, KEYED_BY[field])
        else:
            target[field] = deepcopy(value)


def _merge_list(target: list[Resource], change: list[Resource], by: str) -> None:
    """What is new comes first, as kubectl has it."""
    there = {one[by]: one for one in target}
    target[:0] = [deepcopy(value) for value in change if value[by] not in there]
    for value in change:
        if value[by] in there:
            _merge(there[value[by]], value)


def _set_image(resources: list[Resource], image: Resource) -> None:
    assert image.keys() == {"name", "newName", "newTag"}
    for resource in resources:
        for container in containers(resource):
            if container["image"].rpartition(":")[0] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"


def _known_names(folder: Path) -> set[str]:
    """The kinds in which names of config maps are looked for because the kustomization says so."""
    files = yaml.safe_load((folder / "kustomization.yaml").read_text()).get("configurations", ())
    rules = [rule for file in files for rule in yaml.safe_load((folder / file).read_text())["nameReference"]]
    return {field["kind"] for rule in rules if rule["kind"] == "ConfigMap" for field in rule["fieldSpecs"]}
