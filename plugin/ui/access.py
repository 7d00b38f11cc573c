"""Access control: who can view the page, who can act, and whose Dags they see. Airflow's own permissions decide."""

from __future__ import annotations

from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    requires_access_configuration,
    requires_access_dag,
    requires_access_view,
)
from airflow.api_fastapi.logging.decorators import action_logging
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request, status
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from lading.plugin.ui.queries.sight import Sight
from lading.scheduling.text.printable import shortened

# How long to retry storing a request, seconds: SQLite allows one writer at a time.
PATIENCE = 30.0

# Whoever can view Airflow's own jobs can view the page.
may_look = Depends(requires_access_view(AccessView.JOBS))
may_see_dag = Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE))

may_edit_run = Depends(requires_access_dag(method="PUT", access_entity=DagAccessEntity.RUN))

# Viewing does not imply acting: sending a request to a site requires permission to change the configuration.
may_act = Depends(requires_access_configuration("PUT"))
write_audit_log = action_logging("lading_request")


def patience(session: Session) -> dict[str, Any]:
    """Tenacity's arguments: retry if the database is locked or unreachable, or if another writer was faster."""
    return {
        "retry": retry_if_exception_type((OperationalError, IntegrityError)),
        "wait": wait_random_exponential(0.1, max=2),
        "stop": stop_after_delay(PATIENCE),
        "before_sleep": lambda _: session.rollback(),
        "reraise": True,
    }


async def audit(request: Request, session: SessionDep, user: GetUserDep) -> None:
    """Write the request to Airflow's audit log, which records every change."""
    await AsyncRetrying(**patience(session))(write_audit_log, request, session, user)


audited = Depends(audit)


def acts(user: GetUserDep) -> bool:
    """Whether a user can send requests to sites."""
    return get_auth_manager().is_authorized_configuration(method="PUT", user=user)


def edits_runs(user: GetUserDep, dag_id: str) -> bool:
    return get_auth_manager().is_authorized_dag(
        method="PUT",
        access_entity=DagAccessEntity.RUN,
        details=DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id)),
        user=user,
    )


def sight(user: GetUserDep, session: SessionDep) -> Sight:
    """Determine which Dags a user can see. Dags unknown to Airflow, such as deleted ones, are visible to administrators
    only.

    Airflow's own dependency cannot be used: it expects an auth manager in the application that answers, which this one
    does not have.
    """
    seen = frozenset(get_auth_manager().get_authorized_dag_ids(user=user, session=session))
    if acts(user):
        return Sight(hidden=frozenset(session.scalars(select(DagModel.dag_id))) - seen)
    return Sight(seen)


SightDep = Annotated[Sight, Depends(sight)]


def refuse_strange_names(request: Request) -> None:
    """Answer 404 to a path with NUL characters: PostgreSQL's text cannot contain them, so a query would fail."""
    if any("\0" in str(value) for value in request.path_params.values()):
        raise HTTPException(status.HTTP_404_NOT_FOUND, "Not Found: names cannot contain NUL characters")


def require_sight(dag_id: str, its_sight: SightDep) -> None:
    """Answer 404 for a Dag that the user cannot see, so that the answer does not reveal whether it exists.

    Airflow's own check is not enough: with some auth managers every user has permission for a Dag that does not exist.
    """
    if not its_sight.sees(dag_id):
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"no Dag {shortened(dag_id)} exists that you can read")


well_named = Depends(refuse_strange_names)
in_sight = Depends(require_sight)
ActsDep = Annotated[bool, Depends(acts)]
EditsRunsDep = Annotated[bool, Depends(edits_runs)]
