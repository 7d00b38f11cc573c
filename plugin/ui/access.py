"""Access: who may look and act, and of which Dags he may see names, costs and counts. Airflow's own rights decide."""

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

# How long it is tried to store a request, seconds: SQLite lets one write at a time.
PATIENCE = 30.0

# A user who may see Airflow's own jobs may see the page.
may_look = Depends(requires_access_view(AccessView.JOBS))
may_see_dag = Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE))

may_edit_run = Depends(requires_access_dag(method="PUT", access_entity=DagAccessEntity.RUN))

# To look is not to act: a user who asks something of a site needs the right to change the configuration.
may_act = Depends(requires_access_configuration("PUT"))
write_audit_log = action_logging("lading_request")


def patience(session: Session) -> dict[str, Any]:
    """How tenacity tries again what found the database locked or not there, or a row that another one has just made."""
    return {
        "retry": retry_if_exception_type((OperationalError, IntegrityError)),
        "wait": wait_random_exponential(0.1, max=2),
        "stop": stop_after_delay(PATIENCE),
        "before_sleep": lambda _: session.rollback(),
        "reraise": True,
    }


async def audit(request: Request, session: SessionDep, user: GetUserDep) -> None:
    """Write what is asked into Airflow's audit log, as all that changes something is."""
    await AsyncRetrying(**patience(session))(write_audit_log, request, session, user)


audited = Depends(audit)


def acts(user: GetUserDep) -> bool:
    """Whether a user may make requests to sites."""
    return get_auth_manager().is_authorized_configuration(method="PUT", user=user)


def edits_runs(user: GetUserDep, dag_id: str) -> bool:
    """Whether a user may change the runs of a Dag."""
    return get_auth_manager().is_authorized_dag(
        method="PUT",
        access_entity=DagAccessEntity.RUN,
        details=DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id)),
        user=user,
    )


def sight(user: GetUserDep, session: SessionDep) -> Sight:
    """What a user may see. Of Dags that Airflow does not know (any more) only administrators have a right.

    Airflow's dependency for it looks for its auth manager in the application that answers, which is not this one.
    """
    seen = frozenset(get_auth_manager().get_authorized_dag_ids(user=user, session=session))
    if acts(user):
        return Sight(hidden=frozenset(session.scalars(select(DagModel.dag_id))) - seen)
    return Sight(seen)


SightDep = Annotated[Sight, Depends(sight)]


def refuse_strange_names(request: Request) -> None:
    """Refuse names in the path that no database takes, before any of them is asked for one."""
    if any("\0" in str(value) for value in request.path_params.values()):
        raise HTTPException(status.HTTP_404_NOT_FOUND, "Not Found: no name has a NUL character")


def require_sight(dag_id: str, its_sight: SightDep) -> None:
    """Refuse a Dag that the user does not see, so that its id alone says nothing of it.

    Airflow's own check goes by rights, and in some auth managers every user has them for a Dag that is not there.
    """
    if not its_sight.sees(dag_id):
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"there is no Dag {shortened(dag_id)} that you may read")


well_named = Depends(refuse_strange_names)
in_sight = Depends(require_sight)
ActsDep = Annotated[bool, Depends(acts)]
EditsRunsDep = Annotated[bool, Depends(edits_runs)]
