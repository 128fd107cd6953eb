"""Renders the kustomizations of deploy/kubernetes without kubectl.

It knows the fields that they use, and gives a generated config map the name it is referred to by, without a suffix.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]

KNOWN = {"apiVersion", "kind", "namespace", "resources", "images", "configMapGenerator", "patches", "configurations"}
KEYED_BY = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
"""Lists that a strategic merge merges element by element, by this field."""


def render(folder: Path) -> list[Resource]:
    """The resources of a kustomization."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert kustomization.keys() <= KNOWN, kustomization.keys() - KNOWN
    resources: list[Resource] = []
    for entry in kustomization["resources"]:
        if (folder / entry).is_dir():
            resources += render(folder / entry)
        else:
            resources += yaml.safe_load_all((folder / entry).read_text())
    by_key = {key_of(resource): resource for resource in resources}
    for generator in kustomization.get("configMapGenerator", ()):
        data = dict(literal.split("=", 1) for literal in generator.get("literals", ()))
        data |= {name: (folder / name).read_text() for name in generator.get("files", ())}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data}
        if generator.get("behavior") == "merge":
            by_key[key_of(config_map)]["data"] |= data
        else:
            resources.append(config_map)
    for patch in kustomization.get("patches", ()):
        for change in yaml.safe_load_all((folder / patch["path"]).read_text()):
            _merge(by_key[key_of(change)], change)
    for image in kustomization.get("images", ()):
        for container in containers(resources):
            if container["image"].rpartition(":")[0] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    for resource in resources:
        if "namespace" in kustomization and resource["kind"] != "Namespace":
            resource["metadata"]["namespace"] = kustomization["namespace"]
    return resources


def key_of(resource: Resource) -> tuple[str, str]:
    """The kind and name, which no two resources share."""
    return resource["kind"], resource["metadata"]["name"]


def mappings(node: Any) -> Iterator[tuple[str, Any]]:
    """Every field with its value, at whatever depth."""
    if isinstance(node, dict):
        yield from node.items()
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from mappings(child)


def references(node: Any) -> Iterator[Resource]:
    """Every reference to a config map, as the mapping with its `name`."""
    return (value for field, value in mappings(node) if field in {"configMapRef", "configMapKeyRef", "configMap"})


def containers(node: Any) -> Iterator[Resource]:
    """Every container of a resource, init containers included."""
    return (
        container
        for field, listed in mappings(node)
        if field in {"containers", "initContainers"}
        for container in listed
    )


def _merge(target: Resource, change: Resource) -> None:
    """Apply a strategic merge patch."""
    for field, value in change.items():
        if isinstance(value, dict) and isinstance(target.get(field), dict):
            _merge(target[field], value)
        elif isinstance(value, list) and field in KEYED_BY:
            present = {element[KEYED_BY[field]]: element for element in target.setdefault(field, [])}
            target[field][:0] = [element for element in value if element[KEYED_BY[field]] not in present]  # as kubectl
            for element in value:
                _merge(present.get(element[KEYED_BY[field]], {}), element)
        else:
            target[field] = value
