"""Verify tokens of an issuer: the only module that imports PyJWT (extra `oidc`).

Only asymmetric signatures are accepted, each with a key of its kind. A token with `none`, or an HMAC whose secret would
be a public key, is refused before any key is read.
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
"""Most characters of a token: uvicorn accepts 16 KiB of headers in all."""
LONGEST_SUBJECT = 255
NEEDED = ("iss", "sub", "aud", "exp", "iat")
KINDS: dict[str, tuple[str, str | None]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", None),
}
"""Accepted signatures, and the kind of key and curve of each."""
TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""Accepted `typ` of tokens; a logout token, for one, does not identify a caller."""

MESSAGES: dict[type[jwt.PyJWTError], str] = {
    jwt.ExpiredSignatureError: "This token has expired: get another from its issuer.",
    jwt.ImmatureSignatureError: "This token is not valid yet (nbf, iat): the clocks are too far apart, or it is for "
    "later.",
    jwt.InvalidAudienceError: "This token is for another audience (aud) than this server.",
    jwt.InvalidIssuerError: "This token is of another issuer (iss).",
}
"""Sentences about a token's fault, by the class of the error."""


class Tokens:
    """Verifies tokens of one issuer for one of `audiences`; `leeway` is how far clocks may be apart, in seconds."""

    def __init__(self, issuer: Issuer, *, audiences: Sequence[str], leeway: float) -> None:
        self.issuer = issuer
        self._audiences = list(audiences)
        self._leeway = leeway

    def claims(self, token: str) -> dict[str, Any]:
        """The verified claims of a token; raises Unauthenticated where it is invalid, Unavailable without keys."""
        if len(token) > LARGEST:
            raise Unauthenticated(f"This token has {len(token)} characters; the maximum is {LARGEST}.")
        header = _header(token)
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in KINDS:
            raise Unauthenticated(
                f"This token's signature algorithm is not supported; supported are {', '.join(KINDS)}."
            )
        if str(header.get("typ", "JWT")).lower() not in TYPES:
            raise Unauthenticated("This token has another type ('typ') than an access token.")
        claims = self._decode(token, self._key(header, algorithm), algorithm)
        if not 0 < len(claims["sub"]) <= LONGEST_SUBJECT or not claims["sub"].isprintable():
            raise Unauthenticated(f"This token's 'sub' is not 1 to {LONGEST_SUBJECT} characters that can be printed.")
        return claims

    def _key(self, header: dict[str, Any], algorithm: str) -> Any:
        """The one key that may have made the signature."""
        kid = header.get("kid")
        candidates = [key for key in self.issuer.keys(kid) if _fits(key, algorithm)]
        if len(candidates) != 1:
            raise Unauthenticated(
                "This token names no key of its issuer (kid)."
                if kid is None
                else "This token is signed with a key that its issuer does not have (kid)."
            )
        try:
            return jwt.PyJWK(candidates[0], algorithm).key
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Unauthenticated("This token is signed with a key that cannot be used.") from error

    def _decode(self, token: str, key: Any, algorithm: str) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audiences,
                issuer=self.issuer.url,
                leeway=self._leeway,
                options={"require": list(NEEDED), "enforce_minimum_key_length": True},
            )
        except jwt.PyJWTError as error:
            raise Unauthenticated(_message(error)) from error
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Unauthenticated("This token cannot be read.") from error


def _header(token: str) -> dict[str, Any]:
    try:
        return jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise Unauthenticated("The Authorization header holds neither a key nor a readable token.") from error


def _fits(key: Jwk, algorithm: str) -> bool:
    """Return True if this key can make signatures of this algorithm."""
    kind, curve = KINDS[algorithm]
    return (
        key.get("kty") == kind
        and (curve is None or key.get("crv") == curve)
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
    )


def _message(error: jwt.PyJWTError) -> str:
    """A sentence on the fault of a token, without quoting it."""
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"This token lacks the claim '{error.claim}'."
    return MESSAGES.get(type(error), "This token's signature is not its issuer's, or it cannot be read.")
