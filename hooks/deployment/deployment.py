"""The interface through which sites use the deployment that Lading works for.

Nothing else in `hooks` reads Airflow's configuration or opens its connections, so sites also work where Airflow is not
installed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import paramiko


class DeploymentIdentity(NamedTuple):
    """Distinguishes a deployment from others that use the same machines and folders.

    :param secret: shared by all components of the deployment and by no other: the current one, then older ones,
        separated by commas; empty: none
    :param database: the URL of its database, used if there is no secret
    :param name: the name shown to people
    :param is_named: whether its name is unique. Then it also owns what bears its name, even if an earlier deployment
        that was removed has created it
    """

    secret: str
    database: str
    name: str
    is_named: bool = False


class BatchDefaults(NamedTuple):
    """What a task's batch job requests if neither the task nor its site's table says otherwise.

    :param memory_overhead: MiB added to the task's request, for the process that runs it
    :param time: the time limit in seconds; None: that of the queue
    """

    memory_overhead: int = 384
    time: int | None = 86400


class Login(ABC):
    """One attempt to log in to a server."""

    username: str | None
    remote_host: str
    port: int

    @abstractmethod
    def open(self) -> paramiko.SSHClient:
        """Log in.

        :raises Exception: whatever paramiko and the deployment raise on failure
        """

    @abstractmethod
    def abandon(self) -> None:
        """Close what a failed login has left open, and make one that another thread is opening fail."""

    @abstractmethod
    def where_keys_are(self) -> str:
        """Say where the server's key can be recorded so that it is trusted."""


class TokenRefusedError(Exception):
    """A token that the API rejects, too; the message says why."""


class TokenUnverifiedError(Exception):
    """A token that cannot be checked now, because the keys are unavailable; the message says why."""


# Returns the subject of a token, which identifies its job.
# Raises TokenRefusedError or TokenUnverifiedError.
TokenVerifier = Callable[[str], Awaitable[str]]


# Opens the socket of a connection, given host, port, and the timeout in seconds.
OpenSocket = Callable[[str, int, float], Any]


class Deployment(ABC):
    """An installation of a workflow engine, as far as sites depend on it."""

    def runner_options(self) -> list[str]:
        """Return the node agent options that select the module which runs jobs; empty: the one for Airflow's
        workloads."""
        return []

    def brings_agent(self) -> bool:
        """Whether machines receive the node agent as an archive, because their jobs are commands that need only Python.

        Otherwise Lading has to be installed there with everything that jobs need.
        """
        return False

    def batch_defaults(self) -> BatchDefaults:
        return BatchDefaults()

    def implied_sites(self, tables: Mapping[str, Any], models: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return additional sites that follow from a sites file that declares only sites, by name.

        :param tables: those of the file, all valid
        :param models: the models of tables, by kind
        """
        return {}

    def own_work_dir(self, work_dir: str) -> str:
        """Return this deployment's own folder in the ``work_dir`` of machines that other deployments can use, too."""
        return work_dir

    @abstractmethod
    def log_folder(self) -> Path:
        """Return the folder that contains the logs of jobs."""

    @abstractmethod
    def identity(self) -> DeploymentIdentity:
        """Return what distinguishes it from other deployments."""

    @abstractmethod
    def api_url(self) -> str:
        """Return the URL that jobs report to, unless their site's table overrides it; empty: jobs do not report."""

    @abstractmethod
    def heartbeat_timeout(self) -> int | None:
        """Return how many seconds a job can go without a heartbeat before it is failed; None: no limit."""

    @abstractmethod
    def ssh_login(self, to: Any, timeout: int, keepalive: int, open_socket: OpenSocket) -> Login:
        """Prepare a login to a server.

        :param to: the name of an SSH connection, or a fully described server
            (:class:`lading.hooks.ssh.transport.Server`)
        :param timeout: seconds for each stage: connecting, greeting, logging in
        :param keepalive: seconds between two keepalive messages
        :raises Exception: the connection is undefined or invalid; pass the error to ``ssh_fault`` for an explanation
        """

    @abstractmethod
    def ssh_fault(self, name: str, error: BaseException) -> tuple[str | None, bool]:
        """Explain how to fix an SSH connection that could not be read, and whether it will stay broken until fixed.

        :param name: that of the connection
        :param error: what ``ssh_login`` raised
        :returns: None as the explanation if the error's own message is enough
        """

    @abstractmethod
    def aws_client(self, aws_conn_id: str, service: str, region: str | None, options: Mapping[str, Any]) -> Any:
        """Create a boto3 client.

        :param aws_conn_id: the name of an AWS connection; empty: the credentials that boto3 finds by itself
        :param options: for botocore's ``Config``
        :raises ImportError: packages are missing; the message says what to install
        """

    @abstractmethod
    def aws_connection_fault(self, name: str) -> str | None:
        """Explain why a connection cannot be used for AWS: it is undefined, or of another type; None: it can."""
