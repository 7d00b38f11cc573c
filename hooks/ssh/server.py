"""An SSH server of which all is known that it takes to log in, so that no connection of Airflow's need say it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Server:
    """Where to log in, and how.

    :param name: what it is called in messages
    :param host: its address
    :param private_key: of the user, as OpenSSH writes it
    :param host_key: the only one that it may have: ``ssh-ed25519 AAAA...``
    :param jump_host: through which it is reached, as one types it after ``ssh``; None: directly
    """

    name: str
    host: str
    port: int
    user: str
    private_key: str = field(repr=False)
    host_key: str
    jump_host: str | None = None

    @property
    def proxy_command(self) -> str | None:
        """The command that leads to it; None: none is needed."""
        if self.jump_host is None:
            return None
        return f"ssh -o BatchMode=yes -W {shlex.quote(self.host)}:{self.port} {self.jump_host}"
