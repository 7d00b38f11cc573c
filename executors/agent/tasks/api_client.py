"""The jobs' client of Airflow's execution API, which waits if the API server does not answer.

With a tunnel, only the connection goes to the login node: the URL with its path, the Host header and the name that the
certificate must have remain those of the API server, so TLS and virtual hosts work as without a tunnel.
"""

from __future__ import annotations

import os
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

import httpx
from airflow.sdk.api.client import API_RETRIES, API_RETRY_WAIT_MAX, API_RETRY_WAIT_MIN, Client, ServerResponseError
from airflow.sdk.configuration import conf
from tenacity import RetryCallState, wait_random_exponential

from lading.executors.agent.supervisor import AgentJob, AgentJobFailed
from lading.hooks.api_tunnel.address import VARIABLE, Address
from lading.scheduling.model.reasons import because

# Statuses by which a proxy, or the gate of a tunnel, reports that the API server does not answer.
OUT_OF_REACH = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
# The reason that the API server gives, with status 500, if its database does not answer.
DATABASE_ERROR = "Database error"
# Statuses by which the API server rejects a token.
TOKEN_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
# How long a task can go without a heartbeat, seconds. After the whole timeout, Airflow's scheduler fails it, which uses
# up a try; the remaining quarter is for a request under way and for reporting that the API was out of reach.
PATIENCE = 0.75 * conf.getint("scheduler", "task_instance_heartbeat_timeout")
# A request that fails with one of these errors has not reached the API server.
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class ApiOutOfReach(AgentJobFailed):
    """A job that could not reach Airflow's execution API, which is not its fault.

    :param error: the last error of its client
    :param has_begun: whether the API server has let the task start; if not, none of its code has run
    """

    cause = "node_failure"

    def __init__(self, error: Exception, exit_code: int = 1, *, has_begun: bool = True) -> None:
        code = "api_out_of_reach" if has_begun else "api_silent_at_start"
        # Only the first line: httpx adds a link to a general description of the status code.
        message = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        super().__init__(because(code, text=message), exit_code)


class ApiRefused(AgentJobFailed):
    def __init__(self, error: ServerResponseError) -> None:
        status = error.response.status_code
        code = "token_refused" if status in TOKEN_REFUSED else "api_error"
        super().__init__(because(code, status=status, text=str(error.detail or error)))


def is_out_of_reach(error: BaseException | None) -> bool:
    """Return whether an error means that the API server, or its database, cannot be reached."""
    if isinstance(error, httpx.HTTPStatusError):
        detail = getattr(error, "detail", None)
        of_database = isinstance(detail, dict) and detail.get("reason") == DATABASE_ERROR
        return error.response.status_code in OUT_OF_REACH or of_database
    return isinstance(error, httpx.RequestError)


class JobClient(Client):
    """Airflow's client for a job. Its connections follow the tunnel's current address, if there is a tunnel.

    An unanswered request is repeated by Airflow's own rule, with shorter pauses, for as long as the job can wait: until
    its token expires before the task begins, and after that until the scheduler would miss its heartbeats.

    :ivar asked: number of requests so far
    :ivar away: why the last request was not answered; None: it was
    :ivar has_begun: whether the API server has let the task start
    :ivar patient_until: when to give up, on the monotonic clock
    :ivar is_brief: do not repeat unanswered requests, because the same request follows soon anyway
    """

    job: ClassVar[AgentJob | None] = None
    """The job of this process; None: no job."""

    def __init__(self, **options: Any) -> None:
        if VARIABLE in os.environ:
            # The environment's proxy is for outside connections, not for the login node.
            options["trust_env"] = False
        super().__init__(**options)
        if VARIABLE in os.environ:
            hooks = self.event_hooks
            self.event_hooks = {**hooks, "request": [*hooks["request"], lead_through]}
        self.asked = 0
        self.away: Exception | None = None
        self.has_begun = self.is_brief = False
        expires_at = time.time() if self.job is None else self.job.expires_at
        self.patient_until = time.monotonic() + expires_at - time.time()

    def request(self, *args: Any, **kwargs: Any) -> httpx.Response:  # type: ignore[override]  # Airflow's is decorated
        self.asked += 1
        # An API server that is back is noticed within ten seconds.
        pause = wait_random_exponential(min=API_RETRY_WAIT_MIN, max=min(API_RETRY_WAIT_MAX, 10.0))
        ask = Client.request.retry_with(stop=self._gives_up, wait=pause, before_sleep=self._note)
        try:
            answer: httpx.Response = ask(self, *args, **kwargs)
        except Exception as error:
            self.away = error if is_out_of_reach(error) else None
            if self.away is None:
                self._is_answered()
            raise
        self.away = None
        self._is_answered()
        return answer

    def _gives_up(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome else None
        if not is_out_of_reach(error):
            return bool(state.attempt_number >= API_RETRIES)
        if self.is_brief:
            return True
        if not (self.has_begun or isinstance(error, NEVER_SENT)):
            # The server may have set the task to running, from when the scheduler expects its heartbeats.
            self.patient_until = min(self.patient_until, time.monotonic() + PATIENCE)
        is_ended = self.job is None or self.job.cause() is not None
        return state.attempt_number >= API_RETRIES and (is_ended or time.monotonic() >= self.patient_until)

    def _note(self, state: RetryCallState) -> None:
        if (log := Client.request.retry.before_sleep) is not None:
            log(state)
        if self.job is not None and not self.has_begun:
            self.job.api_is_silent()

    def _is_answered(self) -> None:
        if self.job is not None:
            self.job.api_has_answered()


def lead_through(request: httpx.Request) -> None:
    """Send a request through the tunnel.

    :raises httpx.ConnectError: the tunnel's address is unknown; the client tries again, as after any broken connection
    """
    file = Path(os.environ[VARIABLE])
    try:
        address = Address.read(file)
    except (OSError, ValueError) as error:
        message = f"the address of the tunnel to {request.url.host} cannot be read from {file}: {error}"
        raise httpx.ConnectError(message, request=request) from error
    request.extensions = {**request.extensions, "sni_hostname": request.url.host}
    request.url = request.url.copy_with(host=address.host, port=address.port)
