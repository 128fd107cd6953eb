"""What is stored of a secret that somebody else holds: a key's, a browser's session."""

from __future__ import annotations

import hashlib


def secret_sha256(secret: str) -> str:
    """What is stored of a secret: 64 hex digits. The secret has 256 random bits, so that no salt is needed.

    Anything is hashed, also what no server gave and no text is: that is known to nobody.
    """
    try:
        data = secret.encode("utf-8", "surrogateescape")  # bytes of an environment that are no UTF-8, as they were
    except UnicodeEncodeError:  # other halves of surrogate pairs
        data = secret.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()
