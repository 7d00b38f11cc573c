"""Sites in the store: their configuration, and whether they answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sqlalchemy import delete, update

from lading.executors.store.tables import SiteRow
from lading.scheduling.model.reasons import Reason

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def to_text(barred: Mapping[str, Reason]) -> str:
    return json.dumps({queue: reason.to_data() for queue, reason in barred.items()})


def of_text(text: str | None) -> dict[str, Reason]:
    """Return why queues of a site take no jobs; empty: all queues take jobs.

    :raises ValueError: another version wrote the text
    """
    found = json.loads(text) if text else {}
    return {queue: Reason.of_data(data, is_whole=False) for queue, data in found.items()}


def save(session: Session, rows: Iterable[SiteRow]) -> None:
    """Replace the rows of all sites, but keep when each last answered and who paused it."""
    kept = {row.name: row for row in rows}
    session.execute(delete(SiteRow).where(SiteRow.name.not_in(kept)), execution_options={"synchronize_session": False})
    for row in kept.values():
        before = session.get(SiteRow, row.name)
        row.contact_at, row.trouble = (before.contact_at if before is not None else None), None
        row.barred = None
        row.paused_by = before.paused_by if before is not None else None
        session.merge(row)


def note_answers(
    session: Session, troubles: Mapping[str, str | None], barred: Mapping[str, Mapping[str, Reason]], now: float
) -> None:
    """Record which sites answer.

    :param troubles: why each site does not answer, as text; None: it does
    :param barred: by site, why some of its queues take no jobs for now, by queue
    """
    for name, trouble in troubles.items():
        values: dict[str, object] = {
            "trouble": trouble,
            "barred": to_text(reasons) if (reasons := barred.get(name)) else None,
        }
        values |= {"contact_at": now} if trouble is None else {}
        session.execute(
            update(SiteRow).where(SiteRow.name == name).values(**values),
            execution_options={"synchronize_session": False},
        )
