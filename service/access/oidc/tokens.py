"""Tokens of an issuer, verified: the only module that imports the library for it (extra `oidc`).

Asymmetric signatures alone are taken, each with a key of its kind: a token that asks for `none`, or for an HMAC whose
secret would be a public key, is refused before any key is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jwt
from jwt.algorithms import has_crypto

from registry.errors import Unauthenticated
from service.access.oidc.issuer import Issuer, Jwk

if not has_crypto:
    raise ModuleNotFoundError("no module named cryptography", name="cryptography")

LARGEST = 12 * 1024
"""Characters of a token: uvicorn takes 16 KiB of headers, and some are for the others."""
LONGEST_SUBJECT = 255
NEEDED = ("iss", "sub", "aud", "exp", "iat")
KINDS: dict[str, tuple[str, str | None]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", None),
}
"""Signatures that are taken, and the kind of key and curve that each needs."""
TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""`typ` of tokens that say who somebody is; one that tells of a logout says who was."""


class Tokens:
    """Verifies tokens of one issuer for one of `audiences`; `leeway` is how far clocks may be apart, in seconds."""

    def __init__(self, issuer: Issuer, *, audiences: Sequence[str], leeway: float) -> None:
        self.issuer = issuer
        self._audiences = list(audiences)
        self._leeway = leeway

    def claims(self, token: str) -> dict[str, Any]:
        """What a token says; raises Unauthenticated where it is not to be believed, Unavailable without keys."""
        if len(token) > LARGEST:
            raise Unauthenticated(f"This token has {len(token)} characters; the longest that is taken has {LARGEST}.")
        header = _header(token)
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in KINDS:
            raise Unauthenticated(f"This token's signature is of no kind that is taken ({', '.join(KINDS)}).")
        if str(header.get("typ", "JWT")).lower() not in TYPES:
            raise Unauthenticated("This token is of another type (typ) than those that say who asks.")
        found = self._decoded(token, self._key(header, algorithm), algorithm)
        if not 0 < len(found["sub"]) <= LONGEST_SUBJECT or not found["sub"].isprintable():
            raise Unauthenticated(f"This token's 'sub' is not 1 to {LONGEST_SUBJECT} characters that can be printed.")
        return found

    def _key(self, header: dict[str, Any], algorithm: str) -> Any:
        """The one key that may have made the signature."""
        kid = header.get("kid")
        fitting = [one for one in self.issuer.keys(kid) if _fits(one, algorithm)]
        if len(fitting) != 1:
            raise Unauthenticated(
                "This token names no key of its issuer (kid)."
                if kid is None
                else "This token is signed with a key that its issuer does not have (kid)."
            )
        try:
            return jwt.PyJWK(fitting[0], algorithm).key
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Unauthenticated("This token is signed with a key that cannot be used.") from error

    def _decoded(self, token: str, key: Any, algorithm: str) -> dict[str, Any]:
        try:
            return jwt.decode(
                token, key, algorithms=[algorithm], audience=self._audiences, issuer=self.issuer.url,
                leeway=self._leeway, options={"require": list(NEEDED), "enforce_minimum_key_length": True},
            )  # fmt: skip
        except jwt.PyJWTError as error:
            raise Unauthenticated(_said(error)) from error
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Unauthenticated("This token cannot be read.") from error


def _header(token: str) -> dict[str, Any]:
    try:
        return jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise Unauthenticated("This is neither a key nor a token that can be read.") from error


def _fits(key: Jwk, algorithm: str) -> bool:
    """Whether a signature of this kind can be this key's."""
    kind, curve = KINDS[algorithm]
    return (
        key.get("kty") == kind
        and (curve is None or key.get("crv") == curve)
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
    )


def _said(error: jwt.PyJWTError) -> str:
    """What is wrong with a token, without quoting it."""
    if isinstance(error, jwt.ExpiredSignatureError):
        return "This token has expired: get another from its issuer."
    if isinstance(error, jwt.ImmatureSignatureError):
        return "This token is not valid yet (nbf, iat): the clocks are too far apart, or it is for later."
    if isinstance(error, jwt.InvalidAudienceError):
        return "This token is for another audience (aud) than this server."
    if isinstance(error, jwt.InvalidIssuerError):
        return "This token is of another issuer (iss)."
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"This token lacks the claim '{error.claim}'."
    return "This token's signature is not its issuer's, or it cannot be read."
