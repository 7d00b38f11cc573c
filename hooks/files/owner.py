"""The Airflow deployment that owns a folder; two deployments that shared one would consume each other's events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Owner:
    """The Airflow deployment that owns a folder.

    :param ids: the deployment's id, then the ids it had before its Fernet key was rotated, or its name
    :param name: the name shown to people
    """

    ids: Sequence[str]
    name: str

    @classmethod
    def from_key(cls, fernet_key: str, database: str, name: str, is_named: bool = False) -> Owner:
        """Derive the owner from the configuration of a deployment.

        :param fernet_key: ``[core] fernet_key``, which all components of a deployment share, and no other deployment
        :param database: its URL, used if the key is empty; user and password are left out, because they change
        :param is_named: whether the deployment also owns what bears its name
        """
        secrets = [each.strip() for each in fernet_key.split(",") if each.strip()]
        if not secrets:
            parts = urlsplit(database)
            secrets = [parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), database]
        ids = [sha256(f"lading owner {each}".encode()).hexdigest()[:12] for each in secrets]
        return cls([*ids, " ".join(name.split())] if is_named else ids, name)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
