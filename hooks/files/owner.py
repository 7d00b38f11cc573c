"""The Airflow deployment to which a folder belongs: two that share one would take each other's events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Owner:
    """The Airflow deployment to which a folder belongs.

    :param ids: that of the deployment, then those that it had before its Fernet key was rotated, or its name
    :param name: by which people know it
    """

    ids: Sequence[str]
    name: str

    @classmethod
    def from_key(cls, fernet_key: str, database: str, name: str, is_named: bool = False) -> Owner:
        """The owner of what a deployment makes.

        :param fernet_key: ``[core] fernet_key``, which all parts of a deployment have, and no other deployment
        :param database: its URL, which stands in for an empty key: without its user and password, which change
        :param is_named: whether what bears its name is its own as well
        """
        secrets = [each.strip() for each in fernet_key.split(",") if each.strip()]
        if not secrets:
            parts = urlsplit(database)
            secrets = [parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), database]
        ids = [sha256(f"lading owner {each}".encode()).hexdigest()[:12] for each in secrets]
        return cls([*ids, " ".join(name.split())] if is_named else ids, name)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
