"""Test data on a server: adapters with samples, fitted selectors, soups, and jobs that wait."""

from __future__ import annotations

from typing import Any

from registry.names import parse_ref
from tests.service.answers import answered
from tests.service.servers import World

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
"""A chat template."""


def push_embedded(world: World, name: str, texts: list[str], **manifest: Any) -> dict[str, Any]:
    """Push an adapter with a sample, and wait until that is embedded."""
    pushed = world.push(name, sample={"texts": texts}, **manifest)
    if pushed["job"] is not None:
        events = world.client.get(f"/v1/jobs/{pushed['job']}/events")  # ends with its job
        assert '"succeeded"' in events.text, events.text
    return pushed


def fit_selector(world: World, kind: str = "posterior", *, namespace: str = "acme", **options: Any) -> str:
    """Fit a selector over what a key of the namespace sees; returns its id."""
    writer = world.headers(world.key(["read", "write"], [namespace]))
    body = {"selector": {"kind": kind, **options}, "wait": 60}
    return str(answered(world.client.post("/v1/selectors", json=body, headers=writer), 201)["id"])


def cook_soup(world: World, name: str, weights: dict[str, float], *evidence: dict[str, Any]) -> dict[str, Any]:
    """Cook the weighted mean of some adapters; each `evidence` is as if a cook had given this soup as its answer."""
    recipe = {"ingredients": [{"ref": ref, "weight": weight} for ref, weight in weights.items()]}
    soup = answered(world.client.post("/v1/soups", json={"recipe": recipe, "name": name, "wait": 60}), 201)
    with world.registry.database.write() as catalogue:
        row = catalogue.adapters.resolve(None, parse_ref(name))
        for body in evidence:
            catalogue.soups.add_evidence(row.id, row.recipe_digest, body)
    return dict(soup)


def queue_job(world: World, kind: str = "fit", arguments: dict[str, Any] | None = None) -> str:
    """A job of `acme` that waits for an hour; returns its id."""
    arguments = arguments or {"pool": {"namespaces": ["acme"]}}
    with world.registry.database.write() as catalogue:
        job = catalogue.jobs.enqueue(kind, arguments, namespace="acme", created_by="nobody", delay=3600.0)
    return job.id


def set_job(world: World, id: str, **columns: object) -> None:
    """Write into the row of a job."""
    assignments = ", ".join(f"{name} = ?" for name in columns)
    with world.runtime.database.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE jobs SET {assignments} WHERE id = ?", (*columns.values(), id))
