"""Expands the table of a cluster with several accounts into one table for each account.

Each account is a site of its own, with its own connection, folder and limits, so accounts share nothing. The keys of
``accounts`` decide who may use which account.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lading.scheduling.hints.places import LONGEST_NAME
from lading.scheduling.matching.admission import DAG, OWN, TEAM
from lading.scheduling.model.site_names import ACCOUNT
from lading.scheduling.text.printable import shortened

# The id of an Airflow connection, which becomes part of the site's name and of folder names.
CONNECTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
# Replaced in work_dir by the account's connection id.
PLACEHOLDER = "{account}"
# The key that marks a table as that of one account. It is set here; users cannot write it.
RUN_AS = "run_as"
# The keys that say how the table's own account reaches the login node.
WAYS = ("ssh_conn_id", "control_master")
# Keys that an account cannot override: they describe the cluster, or who may use it.
COMMON = ("kind", "accounts", RUN_AS, "allowed_dags", "allowed_teams", "accept_untargeted", "control_master")


def expanded(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of the sites file, each followed by one table for each of its accounts.

    An invalid table is returned unchanged; it is rejected later with all other invalid tables.
    """
    found: dict[str, Any] = {}
    for name, table in tables.items():
        given = table.get("accounts") if isinstance(table, Mapping) else None
        if not isinstance(given, Mapping) or not given or fault(given, table, name) is not None:
            found[name] = table
            continue
        keys = {key: connection(each) for key, each in given.items()}
        own = next((str(table[way]) for way in WAYS if way in table), None)
        if own is not None:
            found[name] = {**table, "accounts": keys, RUN_AS: OWN, **_folder(table, own)}
        for account in dict.fromkeys(keys.values()):
            others = next(each for each in given.values() if connection(each) == account)
            its = {key: value for key, value in table.items() if key not in WAYS}
            its |= others if isinstance(others, Mapping) else {}
            its |= {"ssh_conn_id": account, "accounts": keys, RUN_AS: account, **_folder(its, account)}
            found[f"{name}{ACCOUNT}{account}"] = its
    return found


def connection(account: Any) -> str:
    """Return the Airflow connection id of an account, which is written as the id or as a table."""
    return str(account["ssh_conn_id"] if isinstance(account, Mapping) else account)


def fault(given: Mapping[str, Any], table: Mapping[str, Any] | None = None, site: str = "") -> str | None:
    """Describe what is wrong with the accounts of a table; None if they are valid.

    :param table: the whole table; None to check the accounts alone
    :param site: the name of the site
    """
    for key, account in given.items():
        if not any(key.startswith(each) and len(key) > len(each) for each in (TEAM, DAG)):
            return f'{shortened(key)} is not a key of accounts; valid: "team:NAME" or "dag:PATTERN", like "dag:etl_*"'
        name = account.get("ssh_conn_id") if isinstance(account, Mapping) else account
        if not isinstance(name, str) or not CONNECTION.fullmatch(name):
            return (
                f"{shortened(key)} = {shortened(account)} is not an account; valid: the id of an SSH connection of "
                'letters, digits, ".", "-" and "_", or a table with ssh_conn_id'
            )
        if isinstance(account, Mapping) and (strange := sorted(account.keys() & {*COMMON})):
            return f"{shortened(key)} has {strange[0]}, which is the same for all accounts; remove it there"
        if len(f"{site}{ACCOUNT}{name}") > LONGEST_NAME:
            return f"{site}{ACCOUNT}{name} is longer than {LONGEST_NAME} characters; give the connection a shorter id"
    tables = {connection(each): each for each in given.values() if isinstance(each, Mapping)}
    for key, account in given.items():
        if (other := tables.get(connection(account))) is not None and account != other:
            return f"{shortened(key)} describes {connection(account)} differently from another key; describe it once"
    return None if table is None else _shared(given, table)


def _shared(given: Mapping[str, Any], table: Mapping[str, Any]) -> str | None:
    """Describe a value that two accounts share although each needs its own; None if there is none."""
    own = next((str(table[way]) for way in WAYS if way in table), None)
    if own is not None and own in map(connection, given.values()):
        return f"{own} is the table's own connection, used for Dags that match no key; remove it from accounts"
    sides = {connection(each): {**table, **(each if isinstance(each, Mapping) else {})} for each in given.values()}
    if own is not None:
        sides[own] = {**table}
    for option in ("work_dir", "tunnel_port"):
        seen: dict[Any, str] = {}
        for account, its in sides.items():
            if its.get(option) is None:
                continue
            value = _folder(its, account).get(option, its[option]) if option == "work_dir" else its[option]
            if (other := seen.setdefault(value, account)) != account:
                return f"{option} = {shortened(value)} is used by both {other} and {account}; " + (
                    f"write {PLACEHOLDER} in it, or set a different one for each account"
                    if option == "work_dir"
                    else "set a different one for each account, or remove it"
                )
    return None


def _folder(table: Mapping[str, Any], account: str) -> dict[str, Any]:
    """Return the ``work_dir`` of an account, as a table to merge; empty if the site has none."""
    given = table.get("work_dir")
    return {"work_dir": given.replace(PLACEHOLDER, account)} if isinstance(given, str) else {}
