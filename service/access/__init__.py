"""Authentication: keys, identities of token issuers, sessions of browsers, and the last use of keys.

Nothing here knows HTTP: `service.http.security` reads the headers and calls this folder.
"""
