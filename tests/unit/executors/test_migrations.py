"""The migrations of Lading's tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.exceptions import AirflowException
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from lading.executors.migrations.db_manager import LadingDBManager

FOLDER = Path(LadingDBManager.migration_dir)


def test_they_are_one_chain() -> None:
    revisions = list(ScriptDirectory(FOLDER).walk_revisions())  # raises where there is more than one head
    files = sorted(path for path in (FOLDER / "versions").glob("*.py") if path.name != "__init__.py")
    assert [Path(each.path).name for each in reversed(revisions)] == [path.name for path in files]
    assert LadingDBManager.revision_heads_map["0.1.0"] == revisions[0].revision


@pytest.mark.parametrize("revision", ["1ad1ce5a0019", "1ad1ce5a9999"])
def test_tables_of_another_version_are_refused_with_what_to_do(tmp_path: Path, revision: str) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/airflow.db")
    with Session(engine) as session:
        session.execute(text("CREATE TABLE alembic_version_lading (version_num VARCHAR(32) NOT NULL)"))
        session.execute(text(f"INSERT INTO alembic_version_lading VALUES ('{revision}')"))
        manager = LadingDBManager(session)
        for migrate in (manager.upgradedb, manager.initdb, lambda: manager.downgrade("base")):
            with pytest.raises(AirflowException) as raised:
                migrate()
            known = ", ".join(f"1ad1ce5a{number:04}" for number in range(31, 37))
            assert f"at revision '{revision}'; this version knows {known}" in str(raised.value)
            assert "airflow lading uninstall" in str(raised.value)
