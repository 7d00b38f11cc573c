"""Airflow's deployment: its configuration and its connections. Airflow is imported only when they are used."""

from __future__ import annotations

import binascii
import contextlib
import io
import os
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from lading.hooks.deployment.deployment import (
    Deployment,
    DeploymentIdentity,
    Login,
    OpenSocket,
    TokenRefusedError,
    TokenUnverifiedError,
    TokenVerifier,
)
from lading.scheduling.text.printable import shortened

if TYPE_CHECKING:
    import paramiko
    from airflow.api_fastapi.auth.tokens import JWTValidator

# The types of Airflow connections that its SSH and AWS hooks accept.
SSH_TYPES, AWS_TYPES = ("ssh", "sftp"), ("aws", "s3", "emr")


class AirflowDeployment(Deployment):
    """The deployment that ``airflow.cfg``, Airflow's environment variables and the secrets backends describe."""

    keys_interval = 10.0
    """Seconds between two attempts to load keys that are unavailable."""

    def log_folder(self) -> Path:
        from airflow.configuration import conf

        return Path(conf.get("logging", "base_log_folder"))

    def identity(self) -> DeploymentIdentity:
        from airflow.configuration import conf

        name = conf.get("api", "base_url", fallback="") or gethostname()
        database = conf.get("database", "sql_alchemy_conn", fallback="")
        return DeploymentIdentity(conf.get("core", "fernet_key", fallback=""), database, name)

    def api_url(self) -> str:
        from airflow.executors.base_executor import get_execution_api_server_url

        return str(get_execution_api_server_url())

    def token_verifier(self) -> TokenVerifier:
        """Create a verifier of the tokens that jobs present to the API. It is bound to one event loop.

        It uses the keys of Airflow's API server: ``trusted_jwks_url``, the private key, or the secret.
        """
        validator: JWTValidator | None = None
        next_try = 0.0

        async def verify(token: str) -> str:
            nonlocal validator, next_try
            try:
                validator = validator or _token_validator()
                validator.status()
            except Exception as error:  # a missing, unreadable or invalid key; each raises its own exception
                # Otherwise Airflow would request missing published keys, and log that, for each token.
                if validator is None or time.monotonic() < next_try:
                    raise TokenUnverifiedError(str(error)) from error
                next_try = time.monotonic() + self.keys_interval
            try:
                return str((await validator.avalidated_claims(token))["sub"])
            except Exception as error:  # the text comes from a stranger, so any exception is possible
                # Published keys can be rotated, so an unknown one may be new; a private key never is.
                if isinstance(error.__context__, KeyError) and validator.jwks and validator.jwks.url != os.devnull:
                    raise TokenUnverifiedError(f"{validator.jwks} does not have its key") from error
                raise TokenRefusedError(str(error) or type(error).__name__) from error

        return verify

    def heartbeat_timeout(self) -> int | None:
        from airflow.configuration import conf

        return int(conf.getint("scheduler", "task_instance_heartbeat_timeout"))

    def ssh_login(self, to: Any, timeout: int, keepalive: int, open_socket: OpenSocket) -> Login:
        return HookLogin(to, timeout, keepalive, open_socket)

    def ssh_fault(self, name: str, error: BaseException) -> tuple[str | None, bool]:
        from airflow.exceptions import AirflowException

        # Airflow defines this exception twice, for its core and for tasks.
        is_undefined = type(error).__name__ == "AirflowNotFoundException"
        # An unreachable secrets backend raises neither of these.
        is_wrong = is_undefined or isinstance(error, (AirflowException, ValueError, TypeError, ImportError))
        return (_undefined(name, error) if is_undefined else None), is_wrong

    def aws_client(self, aws_conn_id: str, service: str, region: str | None, options: Mapping[str, Any]) -> Any:
        try:
            from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
            from botocore.config import Config
        except ImportError as error:
            message = f"Airflow's Amazon provider is missing ({error}): pip install 'airflow-lading[aws]'"
            raise ImportError(message) from error
        hook: Any = AwsBaseHook(aws_conn_id or None, client_type=service, region_name=region, config=Config(**options))
        return hook.get_conn()

    def aws_connection_fault(self, name: str) -> str | None:
        from airflow.exceptions import AirflowNotFoundException
        from airflow.models import Connection

        try:
            found = Connection.get_connection_from_secrets(name)
        except AirflowNotFoundException:
            return (
                f"there is no connection {name!r}, so boto3 uses the credentials that it finds by itself; name one of "
                '`airflow connections list`, or set aws_conn_id = "" if that is intended'
            )
        return _wrong_type(name, found.conn_type, AWS_TYPES)


# It has no state. Airflow, its triggers and the scripts of Dag authors use sites without naming a deployment.
AIRFLOW = AirflowDeployment()


class HookLogin(Login):
    """A login through Airflow's SSH hook, with everything an Airflow connection offers: keys, agents, host keys, jump
    hosts (ProxyCommand in ``~/.ssh/config``)."""

    def __init__(self, to: Any, timeout: int, keepalive: int, open_socket: OpenSocket) -> None:
        self.hook = _hook(to, timeout, keepalive, open_socket)
        self.username, self.remote_host, self.port = self.hook.username, self.hook.remote_host, self.hook.port

    def open(self) -> paramiko.SSHClient:
        client: paramiko.SSHClient = self.hook.get_conn()
        return client

    def abandon(self) -> None:
        # Left open, it would occupy one of the server's MaxStartups for minutes.
        vars(self.hook)["is_abandoned"] = True
        if (made := vars(self.hook).get("made")) is not None:
            with contextlib.suppress(Exception):  # a broken connection can raise anything
                made.close()

    def where_keys_are(self) -> str:
        return (
            f"known_hosts, or into the extra fields of the connection {self.hook.ssh_conn_id!r}: "
            '"host_key": "ssh-ed25519 AAAA..."'
        )


def _token_validator() -> JWTValidator:
    from airflow.api_fastapi.auth.tokens import JWTValidator, get_sig_validation_args
    from airflow.configuration import conf

    return JWTValidator(
        required_claims=frozenset({"aud", "exp", "iat", "sub"}),
        issuer=conf.get("api_auth", "jwt_issuer", fallback=None),
        audience=conf.get_mandatory_list_value("execution_api", "jwt_audience"),
        leeway=300,  # generous, because the API server itself makes the final decision about a token
        **get_sig_validation_args(make_secret_key_if_needed=False),
    )


def _hook(to: Any, timeout: int, keepalive: int, open_socket: OpenSocket) -> Any:
    import paramiko
    from airflow.providers.ssh.hooks.ssh import SSHHook
    from paramiko.config import SSH_PORT

    class SiteHook(SSHHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            found = super().get_connection(conn_id)
            if fault := _wrong_type(conn_id, found.conn_type, SSH_TYPES):
                raise ValueError(f"{fault}, created by `airflow connections add NAME --conn-type ssh --conn-host ...`")
            return found

        @cached_property
        def host_proxy(self) -> Any:
            made = super().host_proxy or open_socket(self.remote_host, self.port or SSH_PORT, timeout)
            vars(self)["made"] = made
            if "is_abandoned" in vars(self):  # meanwhile, perhaps before "made" was set
                made.close()
                raise OSError("it was closed while it was being opened")
            return made

    # One attempt only, because the hook sleeps between attempts.
    options: dict[str, Any] = {"keepalive_interval": keepalive, "conn_retry_attempts": 1}
    options |= dict.fromkeys(("conn_timeout", "banner_timeout", "auth_timeout"), timeout)
    if isinstance(to, str):
        return SiteHook(to, **options)
    hook = SiteHook(None, to.host, to.user, port=to.port, host_proxy_cmd=to.proxy_command, **options)
    hook.key_file, hook.look_for_keys = None, False  # whatever ~/.ssh/config says
    hook.compress = False  # it costs 0.3 MiB at both ends of each connection, and archives are already compressed
    hook.pkey = paramiko.Ed25519Key.from_private_key(io.StringIO(to.private_key))
    hook.host_key = paramiko.Ed25519Key(data=binascii.a2b_base64(to.host_key.split()[1]))
    return hook


def _wrong_type(name: str, found: str | None, types: Sequence[str]) -> str | None:
    """Describe that a connection has the wrong type; None if its type is right, or not stated."""
    if not found or found in types:
        return None
    return f"the connection {name!r} is of type {shortened(found)}; name one of type {types[0]}"


def _undefined(ssh_conn_id: str, error: BaseException) -> str:
    """Say how to define a connection. Airflow raises the same error for one that it cannot read."""
    variable = f"AIRFLOW_CONN_{ssh_conn_id.upper()}"
    example = "'ssh://user@login.example.org?key_file=/home/user/.ssh/id_ed25519'"
    if os.environ.get(variable):  # the value is not shown, because it may contain a password
        return f"{variable} is set, but cannot be read as a connection; valid: JSON, or a URI such as {example}"
    said = str(error).strip() or type(error).__name__
    return (
        f"{said}; set {variable}, for example to {example}. In Airflow's own processes it can also be in "
        f"the database: `airflow connections add {ssh_conn_id} --conn-type ssh --conn-host ...`"
    )
