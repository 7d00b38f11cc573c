"""The migrations of Lading's tables."""

from __future__ import annotations

from pathlib import Path

from alembic.script import ScriptDirectory

from lading.executors.migrations.db_manager import LadingDBManager

FOLDER = Path(LadingDBManager.migration_dir)


def test_they_are_one_chain() -> None:
    revisions = list(ScriptDirectory(FOLDER).walk_revisions())  # raises where there is more than one head
    files = sorted(path for path in (FOLDER / "versions").glob("*.py") if path.name != "__init__.py")
    assert [Path(each.path).name for each in reversed(revisions)] == [path.name for path in files]
    assert LadingDBManager.revision_heads_map["0.1.0"] == revisions[0].revision
