"""Saves the runs of this user on the disk of this machine."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lading.hooks.cleanup.cleaning import clean_files
from lading.hooks.files.safe_files import make_private, read_regular
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.site import RemovedLeftovers
from lading.scheduling.text.nesting import parse_json


class RunStore:
    """The runs of this user, in a folder of this machine, each saved under its key.

    :param folder: created if missing, for its owner only
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: str) -> dict[str, Any] | None:
        """Return the saved state; None: nothing is saved.

        :raises OSError: it cannot be read
        """
        try:
            # A larger file was not written by this module.
            saved: dict[str, Any] = json.loads(read_regular(self._path(key), 2**26))
        except FileNotFoundError:
            return None
        return saved

    def create(self, key: str, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Save the first state unless another process was faster, and return the saved one."""
        new = self._written(key, saved)
        try:
            with suppress(FileExistsError):
                os.link(new, self._path(key))
        finally:
            new.unlink()
        return self.load(key) or self.create(key, saved)

    def save(self, key: str, saved: Mapping[str, Any]) -> None:
        self._written(key, saved).replace(self._path(key))

    def remove(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def clean(self, older_than: float, *, dry_run: bool) -> list[RemovedLeftovers]:
        """Forget runs that finished more than ``older_than`` seconds ago; the same script is then submitted again."""
        files = [path for path in self.folder.glob("*.json") if self._has_ended(path)] if self.folder.is_dir() else []
        torn = self.folder.glob(".*")  # left by processes that were killed while saving
        return clean_files("records of runs", [*files, *torn], older_than=older_than, dry_run=dry_run)

    def living(self) -> frozenset[str]:
        """Return the tokens of runs that have not been seen to finish."""
        found = [self._record(path) for path in self.folder.glob("*.json")] if self.folder.is_dir() else []
        return frozenset(each.token for each in found if each is not None and not each.ended)

    def _has_ended(self, path: Path) -> bool:
        record = self._record(path)
        return record is not None and record.ended

    def _record(self, path: Path) -> RunRecord | None:
        try:
            found: Any = parse_json(read_regular(path, 2**26))
            return RunRecord.from_json(found["record"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _written(self, key: str, saved: Mapping[str, Any]) -> Path:
        make_private(self.folder)
        path = self.folder / f".{key}.{secrets.token_hex(4)}"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(saved, file)
            file.flush()
            os.fsync(file.fileno())
        return path

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"
