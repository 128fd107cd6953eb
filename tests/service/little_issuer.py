"""An issuer of OpenID Connect tokens on loopback: real keys, a discovery document, a key set, and tokens."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "soup"
DISCOVERY = "/.well-known/openid-configuration"
MAPPING = """
claim = "realm_access.roles"

[[grants]]
values = ["soup-admins"]
scopes = ["admin"]
namespaces = "all"

[[grants]]
values = ["law-team"]
scopes = ["read", "write", "infer"]
namespaces = ["law"]

[[grants]]
values = ["med-team"]
scopes = ["read", "write", "infer"]
namespaces = ["med", "law"]

[[grants]]
values = ["guests"]
scopes = ["infer"]
namespaces = ["law", "public"]
"""
MADE = {
    "RS": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "PS": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES": lambda: ec.generate_private_key(ec.SECP256R1()),
    "Ed": ed25519.Ed25519PrivateKey.generate,
}
JWK = {"RS": RSAAlgorithm, "PS": RSAAlgorithm, "ES": ECAlgorithm, "Ed": OKPAlgorithm}


@cache
def signing_key(kid: str, algorithm: str) -> Any:
    """A private key of this kind, made once a test process: an RSA key takes a tenth of a second."""
    return MADE[algorithm[:2]]()


def public_jwk(key: Any, algorithm: str) -> dict[str, Any]:
    """The public half of a key, as a key set has it."""
    return dict(JWK[algorithm[:2]].to_jwk(key.public_key(), as_dict=True))


class LittleIssuer:
    """An issuer at `url`. `request_counts` counts requests by path; `answers` replaces what is answered to one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.request_counts: Counter[str] = Counter()
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.keys: dict[str, tuple[Any, str]] = {}
        self.published: list[dict[str, Any]] = []
        self.new_key("rsa", "RS256")
        self.new_key("ec", "ES256")

    def new_key(self, kid: str, algorithm: str, *, named: bool = True) -> None:
        """Make and publish a key; `named` says its algorithm in the key set."""
        key = signing_key(kid, algorithm)
        self.keys[kid] = key, algorithm
        self.published.append(
            {**public_jwk(key, algorithm), "kid": kid, "use": "sig", **({"alg": algorithm} if named else {})}
        )

    def token(self, *roles: str, kid: str = "rsa", header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token of a caller with these roles; a claim of None is left out."""
        key, algorithm = self.keys[kid]
        return jwt.encode(
            self.claims(*roles, **claims), key, algorithm=algorithm, headers={"kid": kid, **(header or {})}
        )

    def claims(self, *roles: str, **claims: Any) -> dict[str, Any]:
        """The claims of such a token."""
        now = int(time.time())
        payload = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "u-1",
            "iat": now,
            "nbf": now,
            "exp": now + 600,
            "preferred_username": "ada",
            "realm_access": {"roles": list(roles)},
            **claims,
        }
        return {name: value for name, value in payload.items() if value is not None}

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers and the body that answer a request for `path`."""
        self.request_counts[path] += 1
        if path in self.answers:
            return self.answers[path]
        document = {
            DISCOVERY: {"issuer": self.url, "jwks_uri": f"{self.url}/keys"},
            "/keys": {"keys": self.published},
        }.get(path)
        return (404, {}, b"") if document is None else (200, {}, json.dumps(document).encode())

    def mapping(self, folder: Path) -> Path:
        """The mapping above as a file."""
        path = folder / "mapping.toml"
        path.write_text(MAPPING)
        return path

    def settings(self, folder: Path) -> dict[str, Any]:
        """Settings of a server that takes its tokens."""
        return {"oidc_issuer": self.url, "oidc_audience": (AUDIENCE,), "oidc_mapping": self.mapping(folder)}


@contextmanager
def little_issuer() -> Iterator[LittleIssuer]:
    """An issuer while open."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = issuer.answer(self.path)
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer = LittleIssuer(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
