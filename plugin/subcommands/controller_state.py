"""Which controller acts, as a finding of ``check`` and a remark of ``sites``."""

from __future__ import annotations

import socket

from sqlalchemy.exc import SQLAlchemyError

from lading.executors.controller.sites_file import difference
from lading.executors.controller_process import current_lease, lives
from lading.executors.settings import Settings
from lading.executors.store import Lease
from lading.hooks.site import Check
from lading.plugin.command_host import host
from lading.plugin.published import edition


def controller_finding(settings: Settings) -> Check:
    """Which controller acts, and whether it goes by this sites file; none is well before one is needed."""
    try:
        lease = current_lease()
    except SQLAlchemyError:
        return Check("controller", False, "cannot be determined: the store cannot be read")
    if lease is None or not lives(lease):
        return Check("controller", True, f"none acts now; {host().starter} starts one")
    message = f"pid {lease.pid} on {lease.host} acts"
    if lease.host != socket.gethostname():
        return Check("controller", True, f"{message}; whether it goes by this sites file can be checked there alone")
    older = older_than_the_file(settings, lease)
    return Check("controller", older is None, f"{message}, {older}" if older else message)


def older_than_the_file(settings: Settings, lease: Lease) -> str | None:
    """As text: that the controller of this machine is older than the sites file, and what to do; None: it is not."""
    message = difference(edition(settings), settings.sites_file)
    if message is None:
        return None
    again = f"`kill {lease.pid}`, and {host().starter} starts another" if lease.managed else "restart its service"
    return (
        f"but it is older than the sites file and still uses what it has read: {message}; when the file is valid: "
        f"{again}. Running tasks are not affected"
    )
