"""The servers of tests/service, for clients and the command line."""

from tests.service.conftest import (
    _sentences_once,
    client,
    database_kind,
    database_settings,
    live,
    pytest_generate_tests,
    served,
    soup,
    world,
)

__all__ = [
    "_sentences_once",
    "client",
    "database_kind",
    "database_settings",
    "live",
    "pytest_generate_tests",
    "served",
    "soup",
    "world",
]
