"""Manifests and other bodies that two parsers would read differently, or that cost more than they are worth."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.attacks.attack import Attack, Outcome, each
from tests.attacks.target import PASSAGES, Target
from tests.service.servers import CONFIG

PUSH = "/v1/adapters"


def body(
    name: str,
    tries: str,
    says: str,
    raw: bytes | Callable[[bytes], bytes],
    *,
    path: str = PUSH,
    status: int = 400,
    code: str = "invalid_parameter",
) -> Attack:
    """A body that is sent as it is, or made from that of a good push."""

    def strike(target: Target) -> Outcome:
        payload = raw if isinstance(raw, bytes) else raw(json.dumps(target.manifest()).encode())
        return target.post(path, payload)

    return Attack(name, tries, status, code, says, strike)


def fields(
    name: str, tries: str, says: str, *, status: int = 400, code: str = "invalid_parameter", **changed: Any
) -> Attack:
    """A push that would be taken but for some fields."""
    return Attack(name, tries, status, code, says, lambda target: target.push(**changed))


def with_training(value: bytes) -> Callable[[bytes], bytes]:
    """A good push, with a value as the record of its training."""
    return lambda good: good[:-1] + b',"provenance":{"training":{"x":' + value + b"}}}"


def typed(name: str, tries: str, kind: str, data: bytes) -> Attack:
    """A good push under another media type."""

    def strike(target: Target) -> Outcome:
        payload = data or json.dumps(target.manifest()).encode()
        return target.ask("POST", PUSH, content=payload, headers={"content-type": kind})

    return Attack(name, tries, 400, "invalid_parameter", "application/json", strike)


ATTACKS = (
    body(
        "second name",
        "Gives a manifest two names, one for each parser.",
        "the key 'name' twice",
        lambda good: good[:-1] + b',"name":"acme/law"}',
    ),
    body(
        "second name by an escape",
        "Spells the second name with an escape.",
        "the key 'name' twice",
        lambda good: good[:-1] + b',"n\\u0061me":"acme/law"}',
    ),
    body(
        "second name with a lone surrogate",
        "Gives half of a surrogate pair twice as a key.",
        "twice",
        b'{"\\ud800":1,"\\ud800":2}',
    ),
    body(
        "duplicate deep inside",
        "Hides two values of one key deep in the record of a training.",
        "the key 'a' twice",
        with_training(b'[[[{"a":1,"a":2}]]]'),
    ),
    body("Infinity", "Has Infinity read as a number.", "holds Infinity", with_training(b"Infinity")),
    body("NaN in a manifest", "Has NaN read as a number.", "holds NaN", with_training(b"NaN")),
    body(
        "1e400",
        "Sends a number that becomes Infinity when it is read.",
        "which is too large",
        with_training(b"1e400"),
    ),
    body(
        "number bomb",
        "Has a number of 6,000 digits converted.",
        "number with thousands of digits",
        with_training(b"9" * 6000),
    ),
    body(
        "deep body",
        "Exhausts the stack with 6,000 lists in lists.",
        "nested too deeply",
        with_training(b"[" * 6000 + b"]" * 6000),
    ),
    body("deep body without an end", "The same, with none of them closed.", "nested too deeply", b"[" * 6000),
    body(
        "value bomb",
        "Has 400,000 lists made of 1 MB.",
        "holds more than 20000 values",
        with_training(b"[" + b"[]," * 400_000 + b"[]]"),
        status=413,
        code="too_large",
    ),
    body(
        "key bomb",
        "Has thousands of keys of one object compared.",
        "keys; the maximum is 1000",
        with_training(b"{" + b",".join(b'"%d":0' % number for number in range(3000)) + b"}"),
    ),
    body(
        "byte order mark",
        "Puts a byte order mark in front, which some parsers skip.",
        "The body is",
        lambda good: b"\xef\xbb\xbf" + good,
    ),
    body(
        "UTF-16",
        "Sends a manifest in UTF-16, which some parsers guess.",
        "The body",
        lambda good: good.decode().encode("utf-16"),
    ),
    body(
        "overlong UTF-8",
        "Spells a slash as two bytes, past a filter for slashes.",
        "not valid UTF-8",
        with_training(b'"..\xc0\xaf"'),
    ),
    body(
        "half a surrogate",
        "Stores half of a surrogate pair, which no answer can carry.",
        "half of a surrogate pair",
        with_training(b'"\\ud800"'),
    ),
    body(
        "text after the body",
        "Puts a second body behind the first.",
        "Extra data",
        lambda good: good + b'{"name":"acme/law"}',
    ),
    body(
        "comments",
        "Has comments skipped, which only some parsers do.",
        "The body is broken",
        lambda good: b"/* */" + good,
    ),
    body("single quotes", "Has Python's notation evaluated.", "The body is broken", b"{'name': __import__('os')}"),
    body("list for a manifest", "Sends a list where an object is expected.", "must be a JSON object", b"[]"),
    body("null for a manifest", "Sends null where an object is expected.", "", b"null"),
    body(
        "constructor",
        "Sets fields that other languages' parsers act on.",
        "'__proto__' is not known",
        lambda good: good[:-1] + b',"__proto__":{"admin":true}}',
    ),
    body(
        "field of the row",
        "Sets a column that no request may set.",
        "'created_by' is not known",
        lambda good: good[:-1] + b',"created_by":"admin"}',
    ),
    body(
        "scopes by a text",
        "Sends a text where a list of scopes is expected.",
        "scopes",
        path="/v1/keys",
        raw=b'{"name":"k","namespaces":null,"scopes":"admin"}',
    ),
    body(
        "number for a text",
        "Has the number 1 taken for the name '1'.",
        "name",
        path="/v1/keys",
        raw=b'{"name":1,"namespaces":null,"scopes":["read"]}',
    ),
    typed(
        "form",
        "Sends a manifest as a form, as a page of another origin could without asking.",
        "application/x-www-form-urlencoded",
        b"",
    ),
    typed("plain text", "Sends JSON as plain text, which a page of another origin could too.", "text/plain", b""),
    typed(
        "multipart",
        "Sends parts, which no parser here takes apart.",
        "multipart/form-data; boundary=x",
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="../../x"\r\n\r\nx\r\n--x--\r\n',
    ),
    fields(
        "NUL in a card",
        "Stores NUL, which PostgreSQL refuses with an error of its own.",
        "NUL",
        card={"description": "a\x00b"},
    ),
    fields(
        "card of 2 MB",
        "Fills the rows with a card that every list would carry.",
        "characters",
        card={"description": "x" * 900_000},
    ),
    fields(
        "long metadata",
        "Fills the lists with a value of metadata.",
        "'note' has 1025 characters",
        card={"metadata": {"note": "x" * 1025}},
    ),
    fields(
        "long key of metadata",
        "Fills the lists with a key of metadata.",
        "129 characters",
        card={"metadata": {"k" * 129: 1}},
    ),
    fields(
        "many metadata",
        "Fills the lists with thousands of values of metadata.",
        "metadata",
        card={"metadata": {f"k{number}": "x" * 1000 for number in range(900)}},
    ),
    fields(
        "metadata in metadata",
        "Nests metadata, which no list can show.",
        "metadata",
        card={"metadata": {"a": {"b": [1]}}},
    ),
    fields("many tags", "Has thousands of tags indexed.", "tags", card={"tags": [f"t{n}" for n in range(900)]}),
    fields(
        "record of 64 KiB",
        "Stores a record of a training that is larger than any.",
        "the most is 65536",
        provenance={"training": {"log": "x" * 65_536}},
    ),
    fields(
        "bottleneck of 10^9",
        "Has room made for a matrix of a billion columns.",
        "config.bottleneck",
        config={**CONFIG.model_dump(), "bottleneck": 10**9},
    ),
    fields(
        "weights by a path",
        "Has a file of the server read as weights.",
        "not known",
        files={"adapter_model.safetensors": {"path": "/etc/passwd"}},
    ),
    fields(
        "weights by a URL",
        "Has the server fetch an address of its own network.",
        "not known",
        files={"adapter_model.safetensors": {"url": "http://169.254.169.254/latest/meta-data"}},
    ),
    fields(
        "file that climbs",
        "Stores a file above the folder.",
        "exactly",
        code="invalid_manifest",
        files={"../adapter_model.safetensors": {"base64": "AAAA"}},
    ),
    fields(
        "code of a model",
        "Has code run that comes beside the weights.",
        "exactly",
        code="invalid_manifest",
        files={"modeling_evil.py": {"base64": "AAAA"}},
    ),
    fields(
        "broken base64",
        "Has bytes guessed that are no base64.",
        "not valid base64",
        code="invalid_manifest",
        files={"adapter_model.safetensors": {"base64": "%%%"}},
    ),
    fields(
        "file beyond the limit",
        "Sends more inside of a manifest than is taken.",
        "upload it as a blob",
        status=413,
        code="too_large",
        files={"adapter_model.safetensors": {"base64": "AAAA" * 30_000}},
    ),
    fields(
        "foreign base model",
        "Claims another base model under an allowed name.",
        "another model under the same name",
        status=422,
        code="incompatible",
        base_fingerprint="sha256:" + "0" * 64,
    ),
    fields(
        "sample of one text",
        "Stands for a domain with one text a hundred times.",
        "has 1 different",
        status=422,
        code="invalid_sample",
        sample={"texts": PASSAGES[:1] * 100},
    ),
    fields(
        "empty sample",
        "Stands for a domain with nothing.",
        "has 0 different",
        status=422,
        code="invalid_sample",
        sample={"texts": [" ", "\t", ""] * 20},
    ),
    fields(
        "two kinds of sample",
        "Says two samples, one for each reader.",
        "exactly one of",
        sample={"texts": PASSAGES, "blob": "sha256:" + "0" * 64},
    ),
)


@each(ATTACKS)
def test_it_is_refused(target: Target, attack: Attack) -> None:
    target.withstands(attack)
