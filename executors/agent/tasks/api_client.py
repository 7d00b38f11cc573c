"""The client of Airflow's execution API for jobs: it waits for an API server that does not answer.

With a tunnel the connection goes to the login node and nothing else changes: the URL with its path, the Host header and
the name that the certificate must have are those of the API server, so TLS and virtual hosts work as without a tunnel.
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
from lading.scheduling.reasons import because

# How a proxy, or the gate of a tunnel, says that the API server does not answer.
OUT_OF_REACH = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
# How the API server says, with status 500, that its database does not answer it.
DATABASE_ERROR = "Database error"
# How the API server says that it does not accept a token.
TOKEN_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
# How long a task may be without a heartbeat, seconds. After the whole timeout Airflow's scheduler fails it, which uses
# up a try; what is left of it is for a request that is under way and for the report that the API was out of reach.
PATIENCE = 0.75 * conf.getint("scheduler", "task_instance_heartbeat_timeout")
# An API server that answers again is noticed within this, seconds.
LONGEST_PAUSE = 10.0
# A request that fails by one of these has not reached the API server.
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class ApiOutOfReach(AgentJobFailed):
    """A job that could not talk to Airflow's execution API, which it cannot help.

    :param error: the last one of its client
    :param has_begun: whether the API server has let the task start; else none of its code has run
    """

    cause = "node_failure"

    def __init__(self, error: Exception, exit_code: int = 1, *, has_begun: bool = True) -> None:
        code = "api_out_of_reach" if has_begun else "api_silent_at_start"
        # What httpx has below the first line leads to a lexicon of status codes.
        message = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        super().__init__(because(code, text=message), exit_code)


class ApiRefused(AgentJobFailed):
    """A job to which the API server has said no."""

    def __init__(self, error: ServerResponseError) -> None:
        status = error.response.status_code
        code = "token_refused" if status in TOKEN_REFUSED else "api_error"
        super().__init__(because(code, status=status, text=str(error.detail or error)))


def is_out_of_reach(error: BaseException | None) -> bool:
    """Whether this is the error of a client that cannot reach the API server."""
    if isinstance(error, httpx.HTTPStatusError):
        detail = getattr(error, "detail", None)
        of_database = isinstance(detail, dict) and detail.get("reason") == DATABASE_ERROR
        return error.response.status_code in OUT_OF_REACH or of_database
    return isinstance(error, httpx.RequestError)


class JobClient(Client):
    """Airflow's client, as a job has it: its connections go where the tunnel is at that moment, if there is one.

    A request that is not answered is repeated, by Airflow's own rule with shorter pauses, for as long as the job can
    wait: before its task begins until its token expires, then until the scheduler would miss its heartbeats.

    :ivar asked: how many requests there were
    :ivar away: why the last one was not answered; None: it was
    :ivar has_begun: whether the API server has let the task start
    :ivar patient_until: when to give up, on the monotonic clock
    :ivar is_brief: whether a request that is not answered is not repeated: the same is asked again soon anyway
    """

    job: ClassVar[AgentJob | None] = None
    """The job of this process; None: it has none."""

    def __init__(self, **options: Any) -> None:
        if VARIABLE in os.environ:
            # A proxy for the world outside is none for the login node.
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
        pause = wait_random_exponential(min=API_RETRY_WAIT_MIN, max=min(API_RETRY_WAIT_MAX, LONGEST_PAUSE))
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
            # The server may have put the task to running, and from then on the scheduler misses its heartbeats.
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
    """Let a request go through the tunnel.

    :raises httpx.ConnectError: its address is not known; the client tries again, as for other broken connections
    """
    file = Path(os.environ[VARIABLE])
    try:
        address = Address.read(file)
    except (OSError, ValueError) as error:
        message = f"where the tunnel to {request.url.host} is cannot be read from {file}: {error}"
        raise httpx.ConnectError(message, request=request) from error
    request.extensions = {**request.extensions, "sni_hostname": request.url.host}
    request.url = request.url.copy_with(host=address.host, port=address.port)
