"""Which controller is active, as a finding of ``check`` and a message of ``sites``."""

from __future__ import annotations

import socket

from sqlalchemy.exc import SQLAlchemyError

from lading.executors.controller.sites_file import difference
from lading.executors.controller_process import current_lease, lives
from lading.executors.settings import Settings
from lading.executors.store import Lease
from lading.hooks.site import Check
from lading.plugin.host import Host
from lading.plugin.published import edition, sites_file_in_use


def controller_finding(host: Host, settings: Settings) -> Check:
    """Report which controller is active, and whether it uses this sites file. It is fine if none is running."""
    try:
        lease = current_lease(host)
    except SQLAlchemyError:
        return Check("controller", False, "cannot be determined: the store cannot be read")
    if lease is None or not lives(lease):
        return Check("controller", True, f"none is running; {host.starter} starts one")
    message = f"pid {lease.pid} on {lease.host} is active"
    if lease.host != socket.gethostname():
        return Check(
            "controller", True, f"{message}; run the check on that host to see whether it uses this sites file"
        )
    fault = sites_file_fault(host, settings, lease)
    return Check("controller", fault is None, f"{message}, {fault}" if fault else message)


def sites_file_fault(host: Host, settings: Settings, lease: Lease) -> str | None:
    """Return a text if the controller of this machine has not read the current sites file: why, and what to do."""
    message = difference(edition(settings), settings.sites_file)
    if message is None:
        return None
    in_use = sites_file_in_use(settings)
    if in_use is not None and in_use != str(settings.sites_file or ""):
        # A killed controller would come back with the environment of its starter, and so with the other file.
        starter = host.starter if lease.managed else "the controller's service"
        return (
            f"but it uses {in_use or 'no sites file'}, and this command uses {settings.sites_file or 'none'}: "
            f"set the same sites file{host.option('sites_file')} for {starter}, and restart {starter}"
        )
    again = f"run `kill {lease.pid}`; {host.starter} then starts another" if lease.managed else "restart its service"
    return (
        f"but it still uses an older version of the sites file: {message}; once the file is valid, {again}. "
        "Running tasks are not affected"
    )
