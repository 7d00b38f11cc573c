"""The tunnel to a machine on which the jobs themselves run: they reach its end on the loopback address, so no relay."""

from __future__ import annotations

from lading.hooks.api_tunnel.address import Address
from lading.hooks.api_tunnel.tunnel import ApiTunnel
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.transport import LOOPBACK, Transport


class DirectTunnel(ApiTunnel):
    """The tunnel of one machine. Its methods belong to one thread.

    :param url: of the API as this machine reaches it
    :param file: where jobs read its port
    """

    def __init__(self, transport: Transport, url: str, *, file: str) -> None:
        super().__init__(transport, "", url, host=None, port=None, file=file)

    @property
    def stands(self) -> bool:
        """Whether it was built; one that went with its connection is built again when that is used again."""
        return self.address is not None

    def keep(self) -> None:
        self._keep()  # which costs nothing while it is there

    def close(self) -> None:
        super().close()
        self.address = None

    def _build(self) -> None:
        there = self._end()
        before = self.address or self._read(self.file)
        if self._leads_to not in (None, there):
            self._take_down()
        self._leads_to = there
        try:
            port = self.transport.tunnel(*there, before.port if before else 0)
        except TransportError:
            if before is None:
                raise
            self.transport.untunnel(*there)
            port = self.transport.tunnel(*there)  # the port that there was is somebody else's now
        self._publish(Address(LOOPBACK, port), before)
