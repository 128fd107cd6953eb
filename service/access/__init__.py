"""Who may call: keys, identities of token issuers, sessions of browsers, and when a key was last used.

Nothing here knows HTTP: `service.http.security` reads the headers and asks this folder.
"""
