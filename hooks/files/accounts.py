"""A cluster with several accounts in the sites file: one table of it becomes one for each account.

Each is a site of its own, with a connection, a folder and limits of its own, so nothing is shared between accounts; who
may use it follows from the keys of ``accounts``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lading.scheduling.hints.places import LONGEST_NAME
from lading.scheduling.matching.admission import DAG, OWN, TEAM
from lading.scheduling.site_names import ACCOUNT
from lading.scheduling.text.printable import shortened

# An Airflow connection whose id is part of a site's name, and of folders.
CONNECTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
# In work_dir: the connection of the account.
PLACEHOLDER = "{account}"
# The key of a table by which it is the one of an account; no user writes it.
RUN_AS = "run_as"
# How the login node is reached by the table's own account.
WAYS = ("ssh_conn_id", "control_master")
# What an account cannot have otherwise: it is the same cluster, and who may use it is said once.
COMMON = ("kind", "accounts", RUN_AS, "allowed_dags", "allowed_teams", "accept_untargeted", "control_master")


def expanded(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of the sites file, with those of each account behind the table that names it.

    A table that is not valid stays as it is, and is refused as all others are.
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
    """The Airflow connection of an account, as it is written."""
    return str(account["ssh_conn_id"] if isinstance(account, Mapping) else account)


def fault(given: Mapping[str, Any], table: Mapping[str, Any] | None = None, site: str = "") -> str | None:
    """What is wrong with the accounts of a table, as text; None: nothing.

    :param table: all of it; None: only the accounts are looked at
    :param site: its name
    """
    for key, account in given.items():
        if not any(key.startswith(each) and len(key) > len(each) for each in (TEAM, DAG)):
            return f'{shortened(key)} is no key of accounts; valid: "team:NAME" or "dag:PATTERN", such as "dag:etl_*"'
        name = account.get("ssh_conn_id") if isinstance(account, Mapping) else account
        if not isinstance(name, str) or not CONNECTION.fullmatch(name):
            return (
                f"{shortened(key)} = {shortened(account)} is no account; valid: the id of an SSH connection of "
                'letters, digits, ".", "-" and "_", or a table with ssh_conn_id'
            )
        if isinstance(account, Mapping) and (strange := sorted(account.keys() & {*COMMON})):
            return f"{shortened(key)} has {strange[0]}, which is the same for all accounts; leave it out there"
        if len(f"{site}{ACCOUNT}{name}") > LONGEST_NAME:
            return f"{site}{ACCOUNT}{name} is longer than {LONGEST_NAME} characters; give the connection a shorter id"
    tables = {connection(each): each for each in given.values() if isinstance(each, Mapping)}
    for key, account in given.items():
        if (other := tables.get(connection(account))) is not None and account != other:
            return f"{shortened(key)} says something else of {connection(account)} than another key; say it once"
    return None if table is None else _shared(given, table)


def _shared(given: Mapping[str, Any], table: Mapping[str, Any]) -> str | None:
    """What accounts would share that each must have of its own, as text; None: nothing."""
    own = next((str(table[way]) for way in WAYS if way in table), None)
    if own is not None and own in map(connection, given.values()):
        return f"{own} is the table's own connection, as which jobs run whose Dag no key fits; leave it out of accounts"
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
                return f"{option} = {shortened(value)} is that of {other} and of {account}, which share nothing; " + (
                    f"write {PLACEHOLDER} in it, or give each account its own"
                    if option == "work_dir"
                    else "give each account its own, or leave it out"
                )
    return None


def _folder(table: Mapping[str, Any], account: str) -> dict[str, Any]:
    """The ``work_dir`` of an account, where the table has one."""
    given = table.get("work_dir")
    return {"work_dir": given.replace(PLACEHOLDER, account)} if isinstance(given, str) else {}
