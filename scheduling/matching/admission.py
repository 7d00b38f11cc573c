"""Whether a Dag is allowed to use a site, and with which account. Pure.

:func:`admitted` is the only place that decides this, and every use of a site's transport for a Dag calls it: placement,
    gangs, everything sent to or read from a site, job scripts, and the checks at Dag parse. The controller and the
    triggerer pass the Dag and the team from Airflow's database. Where an author's code runs, the answer is only advice.
    Jobs of a Dag whose budget is spent are held earlier (``BudgetTerms.held``), at whichever site.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.text.printable import shortened

Site = TypeVar("Site")
# Patterns of names (``*``, ``?``, ``[...]``); None: all names.
Patterns = Sequence[str] | None
# The prefixes of a key of ``accounts``; a pattern follows.
TEAM, DAG = "team:", "dag:"
# The site's own account, for Dags that match no key of ``accounts``.
OWN = ""


@dataclass(frozen=True, slots=True)
class Admission:
    """Whose jobs a site accepts.

    :param dags: patterns of Dags; None: every Dag
    :param teams: patterns of teams; None: every team, and Dags without one
    :param accounts: for a cluster with several accounts, all keys of its table with their accounts, in order
    :param account: the account of this site; :data:`OWN` is the account for Dags that match no key
    """

    dags: Patterns = None
    teams: Patterns = None
    accounts: Sequence[tuple[str, str]] = ()
    account: str = OWN

    @classmethod
    def published(cls, rules: Mapping[str, Any]) -> Admission:
        """The rules from a site's table, or as published."""
        dags, teams = rules.get("allowed_dags"), rules.get("allowed_teams")
        accounts = tuple((str(key), str(account)) for key, account in rules.get("accounts") or ())
        return cls(dags, teams, accounts, str(rules.get("run_as") or OWN))

    @property
    def is_open(self) -> bool:
        return self.dags is None and self.teams is None and not self.accounts

    def takes(self, dag_id: str | None, team: str | None) -> bool:
        """Whether the site's table allows a Dag; call :func:`admitted` instead."""
        return (not self.accounts or account_of(self.accounts, dag_id, team) == self.account) and (
            dag_id is None or (_meets(dag_id, self.dags) and (self.teams is None or _meets(team, self.teams)))
        )

    def why_not(self, site: str, dag_id: str | None, team: str | None) -> str:
        """The part of its table that excludes a Dag, as text."""
        if not _meets(dag_id or "", self.dags):
            return f"site {site!r} has allowed_dags = {listed(self.dags or ())}"
        if self.teams is not None and not _meets(team, self.teams):
            return f"site {site!r} has allowed_teams = {listed(self.teams)}"
        return f"site {site!r} has accounts for {', '.join(shortened(key) for key, _ in self.accounts)}"


# Accepts every job.
EVERYBODY = Admission()


def account_of(accounts: Iterable[tuple[str, str]], dag_id: str | None, team: str | None) -> str:
    """The account that runs the jobs of a Dag: the account of the first matching key, or :data:`OWN`.

    :param accounts: keys, ``team:NAME`` or ``dag:PATTERN``, with their accounts
    """
    for key, account in accounts:
        whose = (team, TEAM) if key.startswith(TEAM) else (dag_id, DAG)
        if whose[0] and fnmatchcase(whose[0], key.removeprefix(whose[1])):
            return account
    return OWN


def admitted(sites: Iterable[tuple[Site, Admission]], dag_id: str | None, team: str | None) -> list[Site]:
    """The sites that a Dag is allowed to use; for a cluster with several accounts, the one with the Dag's account.

    :param dag_id: None: the use does not come from a Dag; empty: the Dag is unknown
    :param team: the team of the Dag; None: it has none
    """
    return [site for site, its in sites if its.takes(dag_id, team)]


def refusal(sites: Iterable[tuple[str, Admission]], dag_id: str | None, team: str | None) -> Reason:
    """Why :func:`admitted` allows none of these sites."""
    tables = "; ".join(dict.fromkeys(its.why_not(name, dag_id, team) for name, its in sites))
    if not dag_id:
        return because("no_dag_not_allowed", tables=tables)
    if team is None:
        return because("dag_not_allowed", dag=shortened(dag_id), tables=tables)
    return because("team_not_allowed", dag=shortened(dag_id), team=shortened(team), tables=tables)


def listed(patterns: Sequence[str]) -> str:
    return f"[{', '.join(shortened(each) for each in patterns)}]"


def _meets(name: str | None, patterns: Patterns) -> bool:
    return patterns is None or (name is not None and any(fnmatchcase(name, pattern) for pattern in patterns))
