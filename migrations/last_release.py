"""The last release, whose servers run beside this version's over one database while a fleet is upgraded.

What it needs stays in the schema until the release after this one (docs/decisions/0062-two-versions-on-one-schema.md).
Moved by whoever makes a release, as CONTRIBUTING.md says.
"""

from __future__ import annotations

COMMIT = "41ff303286c8100e2f9ae6b1753e505ec4800d9b"
"""Its commit. There are no tags: it is read from the history by tests, which run its server."""
REVISION = "0019"
"""The revision of its schema."""
