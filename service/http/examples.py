"""Examples for each call of the API: valid bodies, and values of path parameters.

The documentation page fills them in for a visitor, who presses Execute. `document` puts them into the schema; the id of
the base model is that of the running server, other names are made up (`acme/law`). The summary of an example says what
it needs on the server (NEEDS); without it the answer says what is missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from registry.spec import PROBE_TEXTS

Json = dict[str, Any]
BASE = "small"
"""Base model of the examples on a server without one."""
SAMPLE = [
    "Heat the oil in a heavy pan, add the onions and stir until they are golden.",
    "Rub the butter into the flour with the tips of your fingers.",
    "Leave the dough in a warm place until it has doubled in size.",
    "Season the soup with salt, pepper and a little nutmeg before serving.",
    "Peel the potatoes, cut them into slices and lay them in the dish.",
    "Whisk the whites of four eggs until they stand in soft peaks.",
    "Simmer the sauce over a low flame for twenty minutes.",
    "Chop the parsley and the chives, and mix them with the yoghurt.",
    "Bake the bread until it sounds hollow when tapped underneath.",
    "Melt the chocolate over hot water and let it cool a little.",
    "Drain the beans, rinse them in cold water and set them aside.",
    "Brown the meat on all sides, then pour in the wine.",
    "Stir the rice once and cover the pot with a cloth.",
    "Roll out the pastry as thin as a coin and line the tin with it.",
    "Sprinkle the fish with lemon juice and wrap it in paper.",
    "Boil the syrup until a drop of it sets on a cold plate.",
    "Crush the garlic with a pinch of salt and add it at the end.",
    "Beat the sugar and the butter together until they are pale.",
    "Soak the lentils overnight and cook them without salt.",
    "Cut the apples into quarters and take out the cores.",
    "Grate the cheese over the dish and put it under the grill.",
    "Skim the broth from time to time so that it stays clear.",
]
"""A sample needs at least twenty passages."""
LINES = "".join(json.dumps({"text": text}) + "\n" for text in SAMPLE).encode()
"""SAMPLE as JSON lines: the blob of the examples."""
DIGEST = "sha256:" + hashlib.sha256(LINES).hexdigest()
WEIGHTS = "sha256:" + hashlib.sha256(b"").hexdigest()
"""Stands for the digest of the visitor's own weights: until they are uploaded the answer is 404."""
PATH_PARAMETERS: Mapping[str, str] = {
    "digest": DIGEST,
    "ns": "acme",
    "name": "kitchen",
    "alias": "prod",
    "file": "README.md",
    "revision": "main",
    "path": "README.md",
}
"""Values of path parameters by name; IDS has those called `id`."""
NEEDS: Mapping[tuple[str, str], str] = {
    ("push_adapter", "weights that were uploaded"): "weights uploaded to /v1/blobs, under the digest of your own",
    ("cook_soup", "by a recipe"): "the adapters acme/kitchen and acme/law",
    ("change_adapter", "another card"): "the adapter acme/kitchen",
    ("change_key", "read only"): "the key of that id",
    ("rotate_key", "an hour for both"): "the key of that id",
    ("change_key_limits", "sixty requests a minute"): "the key of that id",
    ("put_alias", "the first version"): "the adapter acme/kitchen",
    ("start_training", "a hundred steps"): "its texts uploaded to /v1/blobs",
    ("chat_completions", "a question"): "a base model with a chat template",
    ("fit_selector", "clusters of all domains"): "adapters with samples, of several domains",
    ("evaluate_pool", "ten passages of each"): "adapters with samples, of several domains",
    ("nearest_adapters", "to a text"): "adapters with samples, of several domains",
    ("route", "a prompt"): "a selector fitted over adapters with samples",
    ("diagnose_server", "the readings of a server"): "the adapter acme/kitchen",
    ("select_adapters", "for a sample"): "adapters with samples, of several domains",
    ("cook_soup", "for a sample"): "adapters with samples, of several domains",
}
"""The requirements of an example on the server, by call and name of the example; other examples have none."""
IDS: Mapping[str, str] = {
    "/v1/selectors/{id}": "sel-0123456789abcdef",
    "/v1/keys/{id}": "key-0123456789abcdef",
    "/v1/keys/{id}/rotate": "key-0123456789abcdef",
    "/v1/keys/{id}/limits": "key-0123456789abcdef",
    "/v1/blobs/uploads/{id}": "upload-0123456789abcdef01234567",
    "/v1/jobs/{id}": "job-0123456789abcdef",
    "/v1/jobs/{id}/events": "job-0123456789abcdef",
    "/v1/jobs/{id}/cancel": "job-0123456789abcdef",
}
"""Values of the path parameter `id` by path."""


def bodies(base: str) -> dict[str, dict[str, Json]]:
    """Return request bodies for a server with base model `base`, by operation id and by name of the example."""
    model, pool = f"base/{base}", {"base_model": base}
    return _stored(base) | {
        "fit_selector": {"clusters of all domains": {"selector": {"kind": "gmm"}, "pool": pool, "wait": 60}},
        "evaluate_pool": {"ten passages of each": {"pool": pool, "passages": 10}},
        "nearest_adapters": {"to a text": {"texts": SAMPLE[:1], "pool": pool, "wait": 60}},
        "select_adapters": {"for a sample": {"sample": {"texts": SAMPLE}, "pool": pool, "wait": 60}},
        "cook_soup": {
            "for a sample": {"sample": {"texts": SAMPLE}, "pool": pool, "wait": 60},
            "by a recipe": {
                "recipe": {"ingredients": [{"ref": "acme/kitchen", "weight": 0.7}, {"ref": "acme/law", "weight": 0.3}]},
                "name": "acme/mixed",
                "wait": 60,
            },
        },
        "perplexity": {"of two texts": {"model": model, "texts": SAMPLE[:2]}},
        "completions": {"a text goes on": {"model": model, "prompt": "Heat the oil", "max_tokens": 16, "seed": 0}},
        "chat_completions": {
            "a question": {
                "model": model,
                "messages": [{"role": "user", "content": "How long do eggs boil?"}],
                "max_tokens": 32,
            }
        },
        "embeddings": {"two texts": {"model": model, "input": SAMPLE[:2]}},
        "route": {"a prompt": {"texts": SAMPLE[:1]}},
        "diagnose_server": {"the readings of a server": {"model": [{"the": -1.5, "and": -2.25}] * PROBE_TEXTS}},
        "tokenize": {"a text": {"model": model, "prompt": "Heat the oil"}},
        "detokenize": {"three tokens": {"model": model, "tokens": [10, 11, 12]}},
    }


def _stored(base: str) -> dict[str, dict[str, Json]]:
    """Return the bodies of calls that store something."""
    adapter = {"method": "bottleneck", "structure": "pfeiffer", "bottleneck": 48, "activation": "relu"}
    recipe = {"steps": 100, "batch": 4, "block": 64}
    return {
        "push_adapter": {
            "weights that were uploaded": {
                "name": "acme/kitchen",
                "domain": "kitchen",
                "base_model": base,
                "config": adapter,
                "files": {"adapter_model.safetensors": {"digest": WEIGHTS}},
                "sample": {"texts": SAMPLE},
                "card": {"description": "Recipes.", "tags": ["cooking"], "license": "cc0-1.0"},
            }
        },
        "open_upload": {"a file of known digest": {"digest": WEIGHTS, "size": 12_884}},
        "change_adapter": {"another card": {"card": {"description": "Recipes and menus.", "tags": ["cooking"]}}},
        "put_alias": {"the first version": {"version": 1}},
        "collect_now": {"what would go": {"dry_run": True}},
        "start_training": {
            "a hundred steps": {
                "name": "acme/menus",
                "domain": "menus",
                "base_model": base,
                "texts": DIGEST,
                "valid_share": 0.2,
                "spec": {"adapter": adapter, "recipe": recipe},
            }
        },
        "change_namespace": {"soups may be tuned": {"tuning": "allow"}},
        "change_key_limits": {"sixty requests a minute": {"requests_per_minute": 60}},
        "change_namespace_limits": {"two hundred adapters": {"adapters": 200, "stored_bytes": 10_000_000_000}},
        "change_key": {"read only": {"scopes": ["read"]}},
        "rotate_key": {"an hour for both": {"grace_seconds": 3600}},
        "create_key": {"for one team": {"name": "ci", "namespaces": ["acme"], "scopes": ["read", "write", "infer"]}},
    }


def document(schema: Json, base: str) -> Json:
    """Put the examples into an OpenAPI document, in place, and return it."""
    examples = bodies(base)
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter.get("required"):
                    parameter["example"] = _path_parameter(path, parameter["name"], base)
            call = operation["operationId"]
            if call in examples:
                content = operation["requestBody"]["content"]["application/json"]
                content["examples"] = {
                    name: {"summary": _summary(call, name), "value": value} for name, value in examples[call].items()
                }
    return schema


def _summary(call: str, name: str) -> str:
    needs = NEEDS.get((call, name))
    return name if needs is None else f"{name} (needs {needs})"


def _path_parameter(path: str, name: str, base: str) -> str:
    return IDS.get(path, base) if name == "id" else PATH_PARAMETERS[name]
