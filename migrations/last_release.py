"""The last release, whose servers share a database with this version's while a fleet is upgraded.

The schema keeps all that it uses until the next release (docs/decisions/0008-two-releases-one-schema.md). Updated
when a release is made, as described in CONTRIBUTING.md.
"""

from __future__ import annotations

COMMIT = "253bcacbd071972742fa9df3b67cc0e547c40bfb"
"""Its commit, for tests that run its server from the history; there are no tags."""
REVISION = "0024"
"""Its schema revision."""
