"""Authentication: keys, identities of token issuers, sessions of browsers, counts of uses and refusals.

Nothing here knows HTTP: `service.http.security` reads the headers and calls this folder.
"""
