"""What the build of the page needs from Python.

``openapi`` writes the document that its types are made from; ``digest`` notes from which sources ``plugin/ui/static``
was built, so that a stale build is noticed without Node.js.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WEB = Path(__file__).parent
STATIC = WEB.parent / "plugin" / "ui" / "static"
OPENAPI, DIGEST = WEB / "openapi.json", STATIC / "sources.sha256"
FILES = ("package.json", "package-lock.json", "tsconfig.json", "vite.config.ts", "openapi.json")
# What the page offers to be loaded, and the documentation has.
ALERTS = ("grafana.json", "grafana_alerts.yaml")
# Versions of FastAPI word what it refuses itself differently.
OF_FASTAPI = ("HTTPValidationError", "ValidationError")


def openapi() -> dict[str, Any]:
    """The document of the installed application, without what differs from one version of FastAPI to the next."""
    from lading.plugin.ui.app import create_app

    document = create_app().openapi()
    return {
        "openapi": document["openapi"],
        "info": {"title": document["info"]["title"], "version": "0"},
        "paths": document["paths"],
        "components": {
            "schemas": {
                name: {"type": "object"} if name in OF_FASTAPI else schema
                for name, schema in document["components"]["schemas"].items()
            }
        },
    }


def text_of(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def sources() -> Iterator[Path]:
    """The files that the build is made from."""
    yield from (WEB / name for name in FILES)
    yield from (WEB.parent / "docs" / "reference" / name for name in ALERTS)
    for folder in ("src", "public"):
        yield from sorted(path for path in (WEB / folder).rglob("*") if path.is_file())


def built() -> Iterator[Path]:
    """The files that the build has made."""
    yield from sorted(path for path in STATIC.iterdir() if path != DIGEST)


def digest() -> str:
    """Of the sources and of what was built from them."""
    lines = []
    for name, files in (("sources", sources()), ("built", built())):
        found = hashlib.sha256()
        for path in files:
            found.update(f"{path.relative_to(WEB.parent).as_posix()}\0".encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
        lines.append(f"{found.hexdigest()}  {name}\n")
    return "".join(lines)


def main(what: str) -> None:
    if what == "openapi":
        OPENAPI.write_text(text_of(openapi()), encoding="utf-8")
    else:
        DIGEST.write_text(digest(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
