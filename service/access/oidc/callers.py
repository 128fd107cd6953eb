"""Callers with a token: the verifier that the settings describe, and the ids of callers. For servers and routers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from registry.errors import InvalidParameter, Unavailable
from service.access.oidc.issuer import Issuer, check_issuer
from service.access.oidc.mapping import ClaimMapping, read_mapping
from service.settings import Settings

if TYPE_CHECKING:
    from service.access.oidc.tokens import Tokens


def identity_id(issuer: str, subject: str) -> str:
    """The id of an identity: the same on every server, and after a restore."""
    return "oidc-" + hashlib.sha256(f"{issuer}\n{subject}".encode()).hexdigest()[:24]


def tokens_of(settings: Settings) -> tuple[Tokens, ClaimMapping] | None:
    """The verifier of the settings' issuer and the mapping of its tokens; None where the settings name no issuer.

    Raises InvalidParameter for settings that exclude each other, and Unavailable where the packages for it are missing.
    """
    if settings.oidc_issuer is None:
        return None
    if settings.no_auth:
        raise InvalidParameter("Without keys no tokens are asked for: drop SOUP_OIDC_ISSUER, or --no-auth.")
    check_issuer(settings.oidc_issuer)
    if not settings.oidc_audience or settings.oidc_mapping is None:
        raise InvalidParameter(
            "SOUP_OIDC_ISSUER needs SOUP_OIDC_AUDIENCE, the audience of its tokens, and SOUP_OIDC_MAPPING, "
            "the file that maps claims to scopes.",
            param="oidc_issuer",
        )
    mapping = read_mapping(settings.oidc_mapping)
    try:
        from service.access.oidc.tokens import Tokens
    except ModuleNotFoundError:
        raise Unavailable(
            "SOUP_OIDC_ISSUER needs PyJWT and cryptography: pip install 'adaptersoup[oidc]'.", param="oidc_issuer"
        ) from None
    issuer = Issuer(settings.oidc_issuer)
    return Tokens(issuer, audiences=settings.oidc_audience, leeway=settings.oidc_leeway_seconds), mapping
