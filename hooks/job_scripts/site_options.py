"""What a site's table in the sites file says of runs of job scripts, and the way to the site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lading.hooks.batch.site_rules import SiteRules
from lading.hooks.files.table_model import remote_path
from lading.hooks.job_scripts.profile import ProfileError
from lading.hooks.ssh.transport import Transport
from lading.scheduling.printable import shortened
from lading.scheduling.units import UnitError, parse_time

WORK_DIR = "~/lading"
DURATIONS = frozenset({"poll_shortest", "poll_longest", "absence_deadline"})


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """What a site's table in the sites file says of runs; the names are those of its keys.

    :param ssh_conn_id: Airflow's SSH connection to the login node; None: commands run on this machine
    :param control_master: in place of it, what one types after ``ssh``: a shared connection of the OpenSSH client
    :param login_setup: shell lines before the commands on the login node
    :param work_dir: the folder that login node and compute nodes share; absolute, or below the home as ``~/...``
    :param setup: shell lines before every job
    :param accounting: ``auto``, or ``off`` where the site has none that users may read
    :param poll_shortest: seconds between questions to the site while something changes; in a table also ``5 s``
    :param poll_longest: seconds between questions when nothing does; likewise
    :param absence_deadline: seconds after which a run that nobody knows is lost; likewise
    :param rules: whom and what the site takes
    """

    ssh_conn_id: str | None = None
    control_master: str | None = None
    login_setup: str = ""
    work_dir: str = WORK_DIR
    setup: str = ""
    accounting: str = "auto"
    poll_shortest: float = 2.0
    poll_longest: float = 60.0
    absence_deadline: float = 120.0
    rules: SiteRules = field(default_factory=SiteRules)

    @classmethod
    def of_table(cls, table: Mapping[str, Any], where: str) -> SiteOptions:
        """What a table says; keys of others are left alone.

        :param where: the file and the table, for messages
        :raises ProfileError: a value is not valid
        """
        given = {name: table[name] for name in OPTIONS if name in table}
        for name in DURATIONS & given.keys():
            try:
                seconds = parse_time(given[name])
            except UnitError as error:
                raise ProfileError(f"{where}: {name} = {shortened(given[name])} is not valid: {error}") from None
            # A number may be a fraction of a second, which parse_time rounds up.
            given[name] = seconds if isinstance(given[name], str) else float(given[name])
        for name, value in given.items():
            if name not in DURATIONS and not isinstance(value, str):
                raise ProfileError(f"{where}: {name} = {shortened(value)} is no text")
        if given.get("accounting", "auto") not in ("auto", "off"):
            raise ProfileError(
                f"{where}: accounting = {shortened(given['accounting'])} is not valid; 'auto' and 'off' are"
            )
        try:
            given["work_dir"] = remote_path(given.get("work_dir", WORK_DIR), below_home=True)
        except ValueError as error:
            raise ProfileError(f"{where}: work_dir = {shortened(given['work_dir'])}: {error}") from None
        if given.get("ssh_conn_id") and given.get("control_master"):
            raise ProfileError(f"{where}: ssh_conn_id and control_master are two ways to the site; keep one")
        return cls(**given, rules=_rules(table, where))

    def transport(self) -> Transport:
        """The way to the site; nothing is opened yet."""
        if self.ssh_conn_id:
            from lading.hooks.ssh.paramiko_transport import SSHTransport

            return SSHTransport(self.ssh_conn_id, setup=self.login_setup)
        if self.control_master:
            from lading.hooks.ssh.openssh_transport import ControlMasterTransport

            return ControlMasterTransport(self.control_master, setup=self.login_setup)
        from lading.hooks.ssh.local_transport import ShellTransport

        return ShellTransport(setup=self.login_setup)


# The keys of a table that say how the site is reached and followed.
OPTIONS = tuple(name for name in SiteOptions.__slots__ if name != "rules")


def _rules(table: Mapping[str, Any], where: str) -> SiteRules:
    for name in ("allowed_dags", "allowed_native", "refused_native"):
        given = table.get(name, [])
        if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
            raise ProfileError(f"{where}: {name} = {shortened(given)} is no list of texts")
    return SiteRules.of(table)
