"""Which Dags a site takes: the patterns of ``allowed_dags`` in its table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from lading.scheduling.reasons import Reason, because
from lading.scheduling.text.printable import shortened

# Patterns of Dag ids (``*``, ``?``, ``[...]``); None: every Dag.
Patterns = Sequence[str] | None


def takes(patterns: Patterns, dag_id: str | None) -> bool:
    """Whether what a Dag's author wrote may run there.

    :param dag_id: None: it does not come from a Dag; empty: it is not known from which
    """
    return patterns is None or dag_id is None or any(fnmatchcase(dag_id, pattern) for pattern in patterns)


def refusal(sites: Iterable[tuple[str, Patterns]], dag_id: str) -> Reason:
    """Why a Dag may run at none of some sites."""
    tables = "; ".join(f"site {name!r} has allowed_dags = {listed(patterns or ())}" for name, patterns in sites)
    if dag_id:
        return because("dag_not_allowed", dag=shortened(dag_id), tables=tables)
    return because("no_dag_not_allowed", tables=tables)


def listed(patterns: Sequence[str]) -> str:
    """Patterns as a table has them."""
    return f"[{', '.join(shortened(each) for each in patterns)}]"
