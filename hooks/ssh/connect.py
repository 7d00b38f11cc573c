"""Chooses the transport to a site from its table in the sites file."""

from __future__ import annotations

from lading.hooks.deployment.airflow import AIRFLOW
from lading.hooks.deployment.deployment import Deployment
from lading.hooks.ssh.transport import Transport


def connect(
    ssh_conn_id: str | None = None,
    control_master: str | None = None,
    setup: str = "",
    deployment: Deployment = AIRFLOW,
) -> Transport:
    """Return the transport to a login node; nothing is opened yet.

    :param ssh_conn_id: the deployment's SSH connection; None: commands run on this machine
    :param control_master: used instead of it: the arguments of ``ssh`` for a connection shared by the OpenSSH client
    :param setup: shell lines before all commands
    :param deployment: the one that has the connection
    """
    # Not at the top, so that a process that only reads the sites file does not import paramiko.
    if control_master is not None:
        from lading.hooks.ssh.openssh_transport import ControlMasterTransport

        return ControlMasterTransport(control_master, setup=setup)
    if ssh_conn_id is not None:
        from lading.hooks.ssh.paramiko_transport import SSHTransport

        return SSHTransport(ssh_conn_id, setup=setup, deployment=deployment)
    from lading.hooks.ssh.local_transport import ShellTransport

    return ShellTransport(setup=setup)
