"""OpenID Connect: the keys of an issuer, what its tokens say, and what the operator's mapping makes of that.

Used by `service.access.identities` alone. Knows no keys of ours, no database and no HTTP of ours.
"""
