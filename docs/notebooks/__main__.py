"""`python -m docs.notebooks`: run every notebook, and store its outputs."""

from __future__ import annotations

from docs.notebooks import executed, notebooks

for path in notebooks():
    path.write_text(executed(path), encoding="utf-8")
