"""What sites and the store need of the deployment that Lading works for.

Nothing else in `hooks` reads Airflow's configuration or opens its connections, so sites can be used where Airflow is
not installed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import paramiko


class DeploymentIdentity(NamedTuple):
    """By what a deployment is told from others that use the same machines and folders.

    :param secret: what all its parts have and no other deployment: the one in use, then older ones, with commas between
        them; empty: it has none
    :param database: the URL of its database, which stands in for an empty secret
    :param name: by which people know it
    :param is_named: whether no other one has its name: what bears it is its own, also where an earlier one that was
        removed has made it
    """

    secret: str
    database: str
    name: str
    is_named: bool = False


class BatchDefaults(NamedTuple):
    """What a batch job of a task asks for where the table of its site does not say it.

    :param memory_overhead: MiB beyond what the task asks for, for what runs it
    :param time: the time limit of one that has none, seconds; None: that of its queue
    """

    memory_overhead: int = 384
    time: int | None = 86400


class TableConventions(NamedTuple):
    """How tables are made in the database of a deployment.

    :param id_type: the type of columns that are compared with ids of the deployment's own tables: MySQL compares only
        columns of the same collation
    :param schema: in which they are; None: that of the connection
    :param naming: of constraints and indices, see SQLAlchemy's ``MetaData``
    """

    id_type: Callable[[], Any]
    schema: str | None
    naming: Mapping[str, str]


# As Airflow's tables have it, so that the same migrations make the same names everywhere.
NAMING = {
    "ix": "idx_%(column_0_N_label)s",
    "uq": "%(table_name)s_%(column_0_N_name)s_uq",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "%(table_name)s_%(column_0_name)s_fkey",
    "pk": "%(table_name)s_pkey",
}
LONGEST_ID = 250


def plain_conventions() -> TableConventions:
    """Those of a database that has Lading's tables alone."""
    from sqlalchemy import String

    return TableConventions(lambda: String(LONGEST_ID), None, NAMING)


class Login(ABC):
    """One attempt to log in at a server: as whom, where."""

    username: str | None
    remote_host: str
    port: int

    @abstractmethod
    def open(self) -> paramiko.SSHClient:
        """Log in.

        :raises Exception: whatever paramiko and the deployment raise when that is not possible
        """

    @abstractmethod
    def abandon(self) -> None:
        """Close what a failed login has left open, and let one that another thread opens fail."""

    @abstractmethod
    def where_keys_are(self) -> str:
        """Where the key of the server may be written down so that it is known."""


class TokenRefusedError(Exception):
    """A token that the API does not accept either, as text."""


class TokenUnverifiedError(Exception):
    """A token about which nothing can be said now, because the keys are not available; the text says why."""


# Returns the subject of a token: for which job it was made.
# Raises TokenRefusedError or TokenUnverifiedError.
TokenVerifier = Callable[[str], Awaitable[str]]


# Opens the socket of a connection: the host, the port, and seconds until it stands.
OpenSocket = Callable[[str, int, float], Any]


class Deployment(ABC):
    """An installation of what runs workflows: what sites need of it."""

    def runner_options(self) -> list[str]:
        """The options of a node agent that say by which module it runs jobs; none: by that for Airflow's workloads."""
        return []

    def brings_agent(self) -> bool:
        """Whether machines get the node agent from here, for their jobs are commands and need no more than a Python.

        Otherwise Lading is to be installed there, beside what jobs need.
        """
        return False

    def batch_defaults(self) -> BatchDefaults:
        """What the batch jobs of its tasks ask for."""
        return BatchDefaults()

    def implied_sites(self, tables: Mapping[str, Any], models: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The tables of sites that follow from those of a sites file that has sites alone, by name.

        :param tables: those of the file, each of them valid
        :param models: of tables, by kind
        """
        return {}

    def table_conventions(self) -> TableConventions:
        """How tables are made in its database."""
        return plain_conventions()

    @abstractmethod
    def log_folder(self) -> Path:
        """The folder below which jobs have their logs."""

    @abstractmethod
    def identity(self) -> DeploymentIdentity:
        """By what it is told from other deployments."""

    @abstractmethod
    def api_url(self) -> str:
        """Where jobs report to, unless the table of their site says otherwise; empty: they report to nothing at all."""

    def token_verifier(self) -> TokenVerifier:
        """Make what verifies the tokens that jobs present to the API. It belongs to one event loop."""

        async def verify(token: str) -> str:
            raise TokenUnverifiedError("jobs have no tokens here")

        return verify

    @abstractmethod
    def heartbeat_timeout(self) -> int | None:
        """For how many seconds a job may be out of touch with that before it is failed; None: there is no limit."""

    @abstractmethod
    def ssh_login(self, to: Any, timeout: int, keepalive: int, open_socket: OpenSocket) -> Login:
        """A login at a server.

        :param to: the name of an SSH connection, or a server of which all is known
            (:class:`lading.hooks.ssh.transport.Server`)
        :param timeout: seconds for each stage: the connection, the greeting, the login
        :param keepalive: seconds between two signs of life
        :raises Exception: the connection is not defined, or makes no sense; ``ssh_fault`` says it in words
        """

    @abstractmethod
    def ssh_fault(self, name: str, error: BaseException) -> tuple[str | None, bool]:
        """What to do about an SSH connection that could not even be read, as text, and whether that is for good.

        :param name: that of the connection
        :param error: what ``ssh_login`` has raised
        :returns: no text: the words of the error say it all
        """

    @abstractmethod
    def aws_client(self, aws_conn_id: str, service: str, region: str | None, options: Mapping[str, Any]) -> Any:
        """A client of boto3.

        :param aws_conn_id: the name of a connection to AWS; empty: the credentials that boto3 finds by itself
        :param options: of botocore's ``Config``
        :raises ImportError: what it needs is not installed; the text says what to install
        """

    @abstractmethod
    def aws_connection_fault(self, name: str) -> str | None:
        """Why a connection is none to AWS: it is not defined, or one to something else; None: it is one."""
