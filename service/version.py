"""The version of this code, which the API's description and the list of servers say."""

from __future__ import annotations

VERSION = "0.1.0"
