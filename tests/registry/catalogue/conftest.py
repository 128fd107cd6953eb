"""A SQLite file, and migrations of versions to come."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import migrations
from registry.catalogue import Database
from tests.registry.catalogue_rows import new_database

LATER = '''
"""A migration of a version to come."""
import sqlalchemy as sa
from alembic import op
revision = "{revision}"
down_revision = "{before}"
def upgrade():
    RECREATE = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    {upgrade}
def downgrade():
    {downgrade}
'''
Later = Callable[..., pytest.MonkeyPatch]


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    """A database with every table, for what is of SQLite alone or the same on each kind; its file is soup.db."""
    with closing(new_database(tmp_path)) as database:
        yield database


@pytest.fixture
def later(tmp_path: Path) -> Iterator[Later]:
    """Adds next0 and so on to a copy of our migrations, by what they do; `undo` of the result is this version again."""
    scripts = tmp_path / "scripts"
    shutil.copytree(migrations.SCRIPTS, scripts)  # compiled ones too: their times are kept, so they hold
    with pytest.MonkeyPatch.context() as patch:

        def add(upgrade: str, downgrade: str = "pass") -> pytest.MonkeyPatch:
            patch.setattr(migrations, "SCRIPTS", scripts)
            revision = f"next{len(list((scripts / 'versions').glob('next*.py')))}"
            text = LATER.format(revision=revision, before=migrations.head(), upgrade=upgrade, downgrade=downgrade)
            (scripts / "versions" / f"{revision}.py").write_text(text)
            migrations._scripts.cache_clear()
            return patch

        yield add
