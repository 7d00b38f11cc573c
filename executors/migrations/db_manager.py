"""Creates and migrates Lading's tables in Airflow's database; ``airflow db migrate`` finds it by the provider info."""

from __future__ import annotations

from airflow.exceptions import AirflowException
from airflow.utils.db import DBLocks, create_global_lock
from airflow.utils.db_manager import BaseDBManager
from airflow.utils.session import create_session
from alembic import command

from lading.executors.migrations.own_database import HEAD, HERE, VERSION_TABLE
from lading.executors.store import metadata


class LadingDBManager(BaseDBManager):
    metadata = metadata
    version_table_name = VERSION_TABLE
    migration_dir = str(HERE / "migrations")
    alembic_file = str(HERE / "alembic.ini")
    supports_table_dropping = True
    revision_heads_map = {"0.1.0": HEAD}  # noqa: RUF012 - the base class declares it so

    def upgradedb(
        self,
        to_revision: str | None = None,
        from_revision: str | None = None,
        show_sql_only: bool = False,
        use_migration_files: bool = False,
    ) -> None:
        """Migrate the tables, for ``airflow db migrate``.

        :raises AirflowException: another version of Lading created them, see :meth:`refuse_unknown_revision`
        """
        self.refuse_unknown_revision()
        super().upgradedb(to_revision, from_revision, show_sql_only, use_migration_files)

    def refuse_unknown_revision(self) -> None:
        """Check that the tables do not exist, or are at a revision that this version knows.

        :raises AirflowException: they are at an unknown revision; the message says what to do
        """
        current = self.get_current_revision()
        known = [script.revision for script in self.get_script_object().walk_revisions()]
        if current is not None and current not in known:
            raise AirflowException(
                f"The tables of Lading are at revision {current!r}; this version knows {', '.join(reversed(known))}. "
                "They were created by a newer version, or by one before 0.1.0, which has no migration to this one. "
                "Install the version that created them; or remove the tables and the record of all jobs with `airflow "
                "lading uninstall`, and create them again with `airflow db migrate`"
            )

    def downgrade(self, to_revision: str, from_revision: str | None = None, show_sql_only: bool = False) -> None:
        """Downgrade the tables, for ``airflow db-manager downgrade``; the revision ``base`` removes them.

        :param from_revision: the first revision, only for ``show_sql_only``; None: that of the database
        :raises AirflowException: another version of Lading created the tables, see :meth:`refuse_unknown_revision`
        """
        self.refuse_unknown_revision()
        self._release_metadata_locks_if_needed()
        revision = to_revision
        if show_sql_only:
            revision = f"{from_revision or self.get_current_revision()}:{to_revision}"
        with create_global_lock(session=self.session, lock=DBLocks.MIGRATIONS):
            command.downgrade(self.get_alembic_config(), revision=revision, sql=show_sql_only)


def ensure_tables() -> None:
    """Create or migrate the tables if necessary, so that setting the executor is enough to start."""
    with create_session(scoped=False) as session:
        manager = LadingDBManager(session)
        if manager.check_migration():
            return
        with create_global_lock(session=session, lock=DBLocks.MIGRATIONS):
            manager.initdb()
