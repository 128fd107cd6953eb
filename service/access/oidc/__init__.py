"""OpenID Connect: the keys of an issuer, the claims of its tokens, and the operator's mapping of claims to rights.

Used by `service.access.identities` alone. Knows nothing of the server's own keys, database and routes.
"""
