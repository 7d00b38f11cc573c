"""The way to a site, as its table in the sites file says it."""

from __future__ import annotations

from lading.hooks.ssh.transport import Transport


def connect(ssh_conn_id: str | None = None, control_master: str | None = None, setup: str = "") -> Transport:
    """The transport to a login node; nothing is opened yet.

    :param ssh_conn_id: Airflow's SSH connection; None: commands run on this machine
    :param control_master: in place of it, what one types after ``ssh``: a shared connection of the OpenSSH client
    :param setup: shell lines before all commands
    """
    # Not at the top: a process that only reads the sites file need not wait for paramiko.
    if control_master is not None:
        from lading.hooks.ssh.openssh_transport import ControlMasterTransport

        return ControlMasterTransport(control_master, setup=setup)
    if ssh_conn_id is not None:
        from lading.hooks.ssh.paramiko_transport import SSHTransport

        return SSHTransport(ssh_conn_id, setup=setup)
    from lading.hooks.ssh.local_transport import ShellTransport

    return ShellTransport(setup=setup)
