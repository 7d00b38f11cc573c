"""What ``airflow lading check`` asks a cluster before it tries a job: each finding says what to mend."""

from __future__ import annotations

import contextlib
import shlex
import uuid
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from lading.hooks.api_tunnel import address
from lading.hooks.batch.status_query import StatusQuery
from lading.hooks.batch.system import BatchSystem, CouldNotAsk
from lading.hooks.cluster.checks import memory_unit, nodes
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.job_script import SHELL, api_environment
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.cluster.jobs.remote_steps import look_at_owner
from lading.hooks.dags.bundles import Bundle, BundleRefused, BundleUnavailable, DagBundles, format_bytes
from lading.hooks.files.owner import Owner
from lading.hooks.site import Check
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RunCommand
from lading.hooks.ssh.transport import Transport

# A large Airflow on a slow file server is imported within this, seconds.
IMPORT_SECONDS = 120
# A Git bundle may have to be cloned, seconds.
BUNDLE_SECONDS = 120.0
# Said of a tunnel that nobody on this side can look into.
_EXPOSED = (
    "the users of the login node reach the whole API server through it, logins included: run one of its own for tasks, "
    'airflow api-server --apps execution --port 8081, and set api_url = "https://HOST:8081/execution/"'
)
VERSIONS = "from importlib.metadata import version as v; print(v('airflow-lading'), v('apache-airflow-task-sdk'))"


def checks(config: ClusterConfig, system: BatchSystem, transport: Transport, api: str, owner: Owner) -> Iterator[Check]:
    """Connection, commands, folder, Python and Airflow's API, as far as each can be reached by way of those before it.

    :param api: URL of Airflow's execution API
    :param owner: the deployment of which this machine is a part
    """
    user, folder, owned, python = transport.exchange(
        [
            RunCommand("id -un"),
            RunCommand(
                f"umask 077; mkdir -p -- {shlex.quote(config.work_dir)} && [ -w {shlex.quote(config.work_dir)} ]"
            ),
            look_at_owner(ClusterFolder(config.work_dir), owner),
            RunCommand([config.python, "-c", VERSIONS], limit=IMPORT_SECONDS),
        ],
        timeout=IMPORT_SECONDS,
    )
    if user.status != 0:
        yield Check("connection", False, transport.fault(user))
        return
    name = user.stdout.strip()
    yield Check("connection", True, f"{transport}, as {name}")
    query = StatusQuery(system, name, by_name=True)
    survey, memory = system.survey, system.memory_unit
    steps = {"status": query.command} | ({"nodes": survey.command} if survey is not None else {})
    steps |= {"memory": memory.command} if memory is not None else {}
    answers = dict(zip(steps, transport.exchange([RunCommand(each) for each in steps.values()]), strict=True))
    yield _tools(query, answers["status"])
    if survey is not None:
        yield from nodes.checks(config, system, answers["nodes"])
    if memory is not None:
        yield from memory_unit.checks(config, system, memory, answers["memory"])
    if owned.status != 0:
        yield Check("work_dir", False, f"{config.work_dir} cannot be used: {owned.words}")
    elif folder.status == 0:
        yield Check("work_dir", True, f"{config.work_dir} can be written on the login node")
    else:
        words = f"{config.work_dir} cannot be written on the login node: {folder.words}; give a folder that can"
        yield Check("work_dir", False, f'{words}, on the nodes as well: work_dir = "/shared/..."')
    found = _python(config, python)
    yield found
    if found.good and folder.status == 0:
        yield _api(config, transport, api)
    if config.dags == "sync":
        yield from _bundles(config)


def _tools(query: StatusQuery, answer: CommandResult) -> Check:
    system = query.system
    try:
        jobs = query.read(answer).jobs
    except CouldNotAsk as error:
        words = f"{error.words}; are the commands of {system.name} in the PATH of a session without terminal? Else set"
        return Check("batch system", False, f'{words} login_setup = "export PATH=/opt/{system.name}/bin:$PATH"')
    living = sum(job.state != "ended" for job in jobs)
    return Check("batch system", True, f"{system.name} answers; {living} jobs of this user wait or run")


def _python(config: ClusterConfig, answer: CommandResult) -> Check:
    if answer.status != 0:
        words = f"{config.python} has no Lading or no Task SDK: {answer.words}; install them there (docs/clusters.md)"
        return Check("python", False, f'{words}, or name another one: python = "/apps/airflow/bin/python"')
    there = answer.stdout.split()[-2:]
    here = [_version("airflow-lading"), _version("apache-airflow-task-sdk")]
    if there != here:
        return Check(
            "python",
            False,
            f"{config.python} has Lading {there[0]} and Task SDK {there[1]}, this machine {here[0]} and {here[1]}; "
            f"install the same: {config.python} -m pip install airflow_lading-{here[0]}-py3-none-any.whl "
            f"apache-airflow-task-sdk=={here[1]}",
        )
    return Check("python", True, f"{config.python} has Lading {here[0]} and Task SDK {here[1]}")


def _api(config: ClusterConfig, transport: Transport, api: str) -> Check:
    """Whether the API answers on the login node, as a task there would ask it."""
    if config.api == "url":
        return _api_answer(config, transport, api, ClusterFolder(config.work_dir))
    # Not the controller's file, which says where its own tunnel is: that is used where it stands.
    folder = ClusterFolder(f"{config.work_dir}/lading-check-{uuid.uuid4().hex}")
    shared = ClusterFolder(config.work_dir).api_address
    tunnel = config.tunnel(transport, api, folder.api_address, shared)
    try:
        tunnel.keep()
        return _api_answer(config, transport, api, folder, f" through the tunnel at {tunnel.address}")
    except TransportError as error:
        return Check("api", False, f"no tunnel leads to Airflow's API at {api}: {error}")
    finally:
        tunnel.close()
        parent, _, name = folder.root.rpartition("/")
        with contextlib.suppress(TransportError):
            transport.remove(parent, [name])


def _api_answer(config: ClusterConfig, transport: Transport, api: str, folder: ClusterFolder, way: str = "") -> Check:
    command = shlex.join([config.python, "-m", "lading.executors.agent.tasks.probe", "--shown"])
    option = f"export {address.OPTION}=api_url"
    script = "\n".join(["cd /", *api_environment(config, folder, api), option, f"exec {command}"])
    # On standard input, for `setup` may hold what others must not see among the processes.
    run = RunCommand([SHELL, "-c", 'eval "$(cat)"'], stdin=script.encode(), limit=IMPORT_SECONDS)
    (answer,) = transport.exchange([run], timeout=IMPORT_SECONDS)
    if answer.status == 0 and way and answer.stdout.split()[-1:] == ["all"]:
        return Check("api", True, f"Airflow's API at {api} answers the login node{way}; {_EXPOSED}", warns=True)
    if answer.status == 0:
        return Check("api", True, f"Airflow's API at {api} answers the login node{way}")
    hint = "" if way else '; where nodes reach nothing but the login node: api = "tunnel"'
    return Check("api", False, f"asked on the login node{way}: {answer.words}{hint}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _bundles(config: ClusterConfig) -> Iterator[Check]:
    """Whether the Dag bundles of this machine can be sent to the site."""
    bundles = DagBundles(config.sync_limit)
    try:
        names = bundles.source.names()
    except Exception as error:  # Airflow's configuration may be wrong in many ways
        yield Check("dags", False, f"[dag_processor] dag_bundle_config_list cannot be read: {error}")
        return
    for name in names:
        try:
            found = bundles.wait(Bundle(name, None), BUNDLE_SECONDS)
        except (BundleUnavailable, BundleRefused) as error:
            yield Check("dags", False, str(error))
        else:
            yield Check("dags", True, f"bundle {name!r} can be read: {found.files} files, {format_bytes(found.size)}")
