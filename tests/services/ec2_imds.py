"""The instance metadata service of a fake EC2, version 2, for each instance below a path of its own.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

if TYPE_CHECKING:
    from moto.ec2.models.instances import Instance  # which takes seconds to import


class Metadata:
    """:param shut_down: what happens when an instance says that it switches itself off"""

    def __init__(self, shut_down: Callable[[str], None]) -> None:
        self.shut_down = shut_down
        self.values: dict[str, dict[str, str]] = {}
        self.tokens: set[str] = set()
        self.notices: dict[str, float] = {}

    def add(self, instance: Instance) -> None:
        self.values[instance.id] = {
            "instance-id": instance.id,
            "instance-type": instance.instance_type,
            "instance-life-cycle": instance.lifecycle or "on-demand",
            "ami-id": instance.image_id,
            "local-ipv4": str(instance.private_ip),
            "placement/availability-zone": str(instance.placement.zone),
        }

    def forget(self, name: str) -> None:
        self.values.pop(name, None)
        self.notices.pop(name, None)

    def respond(self, path: str, environ: dict[str, Any]) -> tuple[int, bytes]:
        name, _, rest = path.partition("/")
        method = environ["REQUEST_METHOD"]
        if name not in self.values:
            return 404, b"no such instance"
        if rest == "shutdown" and method == "POST":
            self.shut_down(name)
            return 200, b""
        if rest == "latest/api/token" and method == "PUT":
            if not environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN_TTL_SECONDS"):
                return 400, b"no time to live"
            token = secrets.token_urlsafe()
            self.tokens.add(token)
            return 200, token.encode()
        if environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN") not in self.tokens:
            return 401, b"a token is required"
        found = {**self.values[name], **self._notice(name)}.get(rest.removeprefix("latest/meta-data/").rstrip("/"))
        return (404, b"not found") if found is None else (200, found.encode())

    def _notice(self, name: str) -> dict[str, str]:
        if name not in self.notices:
            return {}
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.notices[name]))
        return {"spot/instance-action": json.dumps({"action": "terminate", "time": at}), "spot/termination-time": at}


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody reads them."""


@contextmanager
def serving(metadata: Metadata) -> Iterator[str]:
    """Serve it alone, without an EC2; the URL below which each instance has its path."""

    def respond(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        status, body = metadata.respond(environ["PATH_INFO"].lstrip("/"), environ)
        start(f"{status} -", [("Content-Length", str(len(body)))])
        return [body]

    server = make_server("127.0.0.1", 0, respond, handler_class=_Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
