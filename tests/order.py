"""In which order the files of tests are run: the longest first, so that none of them is what the others wait for.

`make test` hands a whole file to whichever test process is free (`--dist loadfile`, and `--no-loadscope-reorder` so
that this order counts, not the number of tests). What comes last should be short.
"""

from __future__ import annotations

import pytest

LONGEST = (
    "project/test_demo_run.py",
    "project/test_docs_run.py",
    "service/engine/test_mixed.py",
    "service/jobs/test_trainings.py",
    "service/jobs/test_jobs.py",
    "project/test_benchmarks.py",
    "training/test_trainer.py",
    "service/journeys/test_several_servers.py",
    "service/engine/test_families_served.py",
    "service/journeys/test_selection.py",
    "project/test_adaptersoup.py",
    "service/journeys/test_object_store.py",
    "adaptersoup/cli/test_cli_journey.py",
    "adaptersoup/cli/test_command_line_live.py",
    "service/engine/test_base_memory.py",
    "adaptersoup/cli/test_backup_commands.py",
    "project/test_container.py",
    "project/test_packaging.py",
)
"""Files that compute for long or start servers and processes, those that took most processor time first."""


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by their files; those of one file, and the files that are not named, stay as they were collected."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0].removeprefix("tests/"), len(places)))
