"""The sites file: a TOML document with a table ``[sites.NAME]`` for each site, ``[[bindings]]``, ``[[rules]]``,
``[[shares]]`` and ``[[budgets]]``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lading.hooks.files import safe_files
from lading.hooks.files.accounts import RUN_AS, expanded
from lading.scheduling.model.site_names import ACCOUNT
from lading.scheduling.text import toml
from lading.scheduling.text.nearest import nearest_first
from lading.scheduling.text.printable import cut, printable

# The site that exists without a table of its own.
LOCAL = "local"


class SitesError(ValueError):
    """The sites file is invalid; the message names the file, the place and the valid values."""


TABLES = ("sites", "bindings", "rules", "shares", "budgets")


def read_sites_document(path: Path) -> dict[str, Any]:
    """Return the whole document.

    :raises SitesError: the file does not exist, is not TOML, or has an unknown table
    """
    try:
        found = toml.parse(safe_files.read_text(path))
    except safe_files.FileError as error:
        raise SitesError(f"[lading] sites_file {error}: {path}") from error
    except toml.TomlError as error:
        raise SitesError(f"{path} is not valid TOML: {error}") from error
    unknown = sorted(set(found) - {*TABLES})
    if unknown:
        raise SitesError(
            f"{path}: unknown table {cut(printable(', '.join(unknown)))}; valid: {nearest_first(unknown[0], TABLES)}, "
            "written as [sites.NAME], [[bindings]], [[rules]], [[shares]] and [[budgets]]"
        )
    return found


def read_sites(path: Path) -> dict[str, Any]:
    """Return the entries below ``[sites]`` by name, without checking that each is a table. A site with accounts yields
    one entry for each account. A file with only other tables, such as ``[[shares]]``, declares this machine as its
    single site.

    :raises SitesError: the file does not exist, is not TOML, or declares no site
    """
    document = read_sites_document(path)
    tables = document.get("sites", {LOCAL: {"kind": LOCAL}} if document else None)
    if not isinstance(tables, dict) or not tables:
        raise SitesError(f'{path} declares no site; write a table such as [sites.local] with kind = "local"')
    if isinstance(local := tables.get(LOCAL), dict):
        local.setdefault("kind", "local")
    if doubtful := [name for name in tables if ACCOUNT in name]:
        raise SitesError(
            f"{path}: [sites.{cut(printable(doubtful[0]))}]: {ACCOUNT} is reserved for the names of accounts; to "
            "declare an account, add it to 'accounts' of its site, otherwise rename this table"
        )
    for name, table in tables.items():
        if isinstance(table, dict) and RUN_AS in table:
            raise SitesError(f"{path}: [sites.{name}] {RUN_AS} is unknown; to run jobs as other users, use accounts")
    return expanded(tables)
