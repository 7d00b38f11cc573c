"""May a Dag use a site, and with which account? Pure.

:func:`admitted` has the only answer, and every use of a site's transport for a Dag asks for it: placement, gangs, what
is sent to a site and read from it, job scripts, and the checks at Dag parse. The controller and the triggerer ask with
the Dag and the team that Airflow's database names. Where an author's code runs, the answer is advice. Jobs of a Dag
whose budget is spent are held before that (``BudgetTerms.held``), at whichever site.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from lading.scheduling.reasons import Reason, because
from lading.scheduling.text.printable import shortened

Site = TypeVar("Site")
# Patterns of names (``*``, ``?``, ``[...]``); None: all.
Patterns = Sequence[str] | None
# What a key of ``accounts`` begins with, and is followed by a pattern.
TEAM, DAG = "team:", "dag:"
# The account of a site's table itself, for those whom no key of ``accounts`` names.
OWN = ""


@dataclass(frozen=True, slots=True)
class Admission:
    """Whose jobs a site takes.

    :param dags: patterns of the Dags; None: every Dag
    :param teams: patterns of the teams; None: every team, and Dags of none
    :param accounts: of a cluster with several accounts all keys of its table with the account of each, in their order
    :param account: the one of these that the site is; :data:`OWN`: that of those whom no key names
    """

    dags: Patterns = None
    teams: Patterns = None
    accounts: Sequence[tuple[str, str]] = ()
    account: str = OWN

    @classmethod
    def published(cls, rules: Mapping[str, Any]) -> Admission:
        """As the rules of a site's table have it, or what is published of them."""
        dags, teams = rules.get("allowed_dags"), rules.get("allowed_teams")
        accounts = tuple((str(key), str(account)) for key, account in rules.get("accounts") or ())
        return cls(dags, teams, accounts, str(rules.get("run_as") or OWN))

    @property
    def is_open(self) -> bool:
        """Whether it takes every job."""
        return self.dags is None and self.teams is None and not self.accounts

    def takes(self, dag_id: str | None, team: str | None) -> bool:
        """Whether the site's table is open to a Dag; ask :func:`admitted`."""
        return (not self.accounts or account_of(self.accounts, dag_id, team) == self.account) and (
            dag_id is None or (_meets(dag_id, self.dags) and (self.teams is None or _meets(team, self.teams)))
        )

    def why_not(self, site: str, dag_id: str | None, team: str | None) -> str:
        """What of its table keeps a Dag from it that it does not take, as text."""
        if not _meets(dag_id or "", self.dags):
            return f"site {site!r} has allowed_dags = {listed(self.dags or ())}"
        if self.teams is not None and not _meets(team, self.teams):
            return f"site {site!r} has allowed_teams = {listed(self.teams)}"
        return f"site {site!r} has accounts for {', '.join(shortened(key) for key, _ in self.accounts)}"


# What takes every job.
EVERYBODY = Admission()


def account_of(accounts: Iterable[tuple[str, str]], dag_id: str | None, team: str | None) -> str:
    """The account as which jobs of a Dag run: that of the first key which fits; :data:`OWN`: none does.

    :param accounts: the keys, ``team:NAME`` or ``dag:PATTERN``, with the account of each
    """
    for key, account in accounts:
        whose = (team, TEAM) if key.startswith(TEAM) else (dag_id, DAG)
        if whose[0] and fnmatchcase(whose[0], key.removeprefix(whose[1])):
            return account
    return OWN


def admitted(sites: Iterable[tuple[Site, Admission]], dag_id: str | None, team: str | None) -> list[Site]:
    """The sites that a Dag may use, out of some; of a cluster with several accounts, the one that is its account.

    :param dag_id: None: what uses them does not come from a Dag; empty: it is unknown from which
    :param team: of the Dag; None: it has none
    """
    return [site for site, its in sites if its.takes(dag_id, team)]


def refusal(sites: Iterable[tuple[str, Admission]], dag_id: str | None, team: str | None) -> Reason:
    """Why :func:`admitted` names none of some sites."""
    tables = "; ".join(dict.fromkeys(its.why_not(name, dag_id, team) for name, its in sites))
    if not dag_id:
        return because("no_dag_not_allowed", tables=tables)
    if team is None:
        return because("dag_not_allowed", dag=shortened(dag_id), tables=tables)
    return because("team_not_allowed", dag=shortened(dag_id), team=shortened(team), tables=tables)


def listed(patterns: Sequence[str]) -> str:
    """Patterns as a table has them."""
    return f"[{', '.join(shortened(each) for each in patterns)}]"


def _meets(name: str | None, patterns: Patterns) -> bool:
    return patterns is None or (name is not None and any(fnmatchcase(name, pattern) for pattern in patterns))
