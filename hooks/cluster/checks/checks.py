"""The checks that ``airflow lading check`` makes on a cluster before the trial job: each finding says what to fix."""

from __future__ import annotations

import contextlib
import shlex
import uuid
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from lading.hooks.api_tunnel import address
from lading.hooks.batch.inventory import Inventory, Nodes
from lading.hooks.batch.memory import MemoryUnit, dialect, names
from lading.hooks.batch.status_query import StatusQuery
from lading.hooks.batch.system import BatchSystem, CouldNotAsk, MemoryDialect
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.job_script import SHELL, api_environment, named_clusters, named_queues
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.cluster.jobs.remote_steps import look_at_owner
from lading.hooks.dags.bundles import Bundle, BundleRefused, BundleUnavailable, DagBundles, format_bytes
from lading.hooks.files.owner import Owner
from lading.hooks.files.version import VERSION
from lading.hooks.site import Check
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RunCommand
from lading.hooks.ssh.transport import Transport
from lading.scheduling.model.location import has_other_limits
from lading.scheduling.text.units import format_memory, format_time

# Seconds in which even a large Airflow on a slow file server can be imported.
IMPORT_SECONDS = 120
# Warning about a tunnel that leads to a complete API server.
_EXPOSED = (
    "the users of the login node reach the whole API server through it, including logins: run a separate one for "
    'tasks, airflow api-server --apps execution --port 8081, and set api_url = "https://HOST:8081/execution/"'
)
VERSIONS = """\
from importlib.metadata import version
from lading.hooks.files.version import VERSION
print(VERSION, version('apache-airflow-task-sdk'))"""


def cluster_checks(
    config: ClusterConfig, system: BatchSystem, transport: Transport, api: str, owner: Owner
) -> Iterator[Check]:
    """Check connection, batch system, nodes, folder, Python, Airflow's API and Dags, as far as each can be reached.

    :param api: URL of Airflow's execution API
    :param owner: the deployment of this machine
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
    home = named_clusters({}, config, system)
    query = StatusQuery(system, name, by_name=True, clusters=home)
    survey, memory = None if home else system.survey, system.memory_unit
    steps = {"status": query.command} | ({"nodes": survey.command} if survey is not None else {})
    steps |= {"memory": memory.command} if memory is not None else {}
    answers = dict(zip(steps, transport.exchange([RunCommand(each) for each in steps.values()]), strict=True))
    yield _tools(query, answers["status"])
    if home:
        text = f"jobs go to {', '.join(home)}, so node_cpus, node_memory and queue were not compared with what"
        yield Check("nodes", True, f"{text} {system.name} reports on the login node", warns=True)
    if survey is not None:
        yield from node_checks(config, system, answers["nodes"])
    if memory is not None:
        yield from memory_checks(config, system, memory, answers["memory"])
    if owned.status != 0:
        yield Check("work_dir", False, f"{config.work_dir} cannot be used: {owned.message}")
    elif folder.status == 0:
        yield Check("work_dir", True, f"{config.work_dir} can be written on the login node")
    else:
        text = (
            f"{config.work_dir} cannot be written on the login node: {folder.message}; give a folder that can be "
            "written there"
        )
        yield Check("work_dir", False, f'{text} and on the nodes: work_dir = "/shared/..."')
    found = _python(config, python)
    yield found
    if found.good and folder.status == 0:
        yield _api(config, transport, api)
    if config.dags == "sync":
        yield from _bundles(config)


def _tools(query: StatusQuery, answer: CommandResult) -> Check:
    system = query.system
    try:
        found = query.read(answer)
    except CouldNotAsk as error:
        text = (
            f"{error.message}; are the commands of {system.name} in the PATH of a session without terminal? If not, set"
        )
        return Check("batch system", False, f'{text} login_setup = "export PATH=/opt/{system.name}/bin:$PATH"')
    if silent := sorted(set(query.clusters).difference(found.clusters)):
        text = f"{system.name} does not list the jobs of {', '.join(silent)}: {answer.message}; is the name right"
        return Check("batch system", False, f"{text} (sacctmgr list clusters), and is the cluster up?")
    living = sum(job.state != "ended" for job in found.jobs)
    return Check("batch system", True, f"{system.name} answers; {living} jobs of this user wait or run")


def _python(config: ClusterConfig, answer: CommandResult) -> Check:
    if answer.status != 0:
        text = f"{config.python} lacks Lading or the Task SDK: {answer.message}; install them there"
        return Check("python", False, f'{text}, or set another one: python = "/apps/airflow/bin/python"')
    there = answer.stdout.split()[-2:]
    here = [VERSION, _version("apache-airflow-task-sdk")]
    if there != here:
        return Check(
            "python",
            False,
            f"{config.python} has Lading {there[0]} and Task SDK {there[1]}, but this machine has Lading "
            f"{here[0]} and Task SDK {here[1]}; install the same versions: {config.python} -m pip install "
            f"airflow_lading-{here[0]}-py3-none-any.whl apache-airflow-task-sdk=={here[1]}",
        )
    return Check("python", True, f"{config.python} has Lading {here[0]} and Task SDK {here[1]}")


def _api(config: ClusterConfig, transport: Transport, api: str) -> Check:
    """Check that the API answers on the login node, called in the same way as by a task."""
    if config.api == "url":
        return _api_answer(config, transport, api, ClusterFolder(config.work_dir))
    # A file of its own: the controller's file says where the controller's tunnel is, which is used if it exists.
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
    # On standard input, because `setup` may contain secrets that must not appear in the process list.
    run = RunCommand([SHELL, "-c", 'eval "$(cat)"'], stdin=script.encode(), limit=IMPORT_SECONDS)
    (answer,) = transport.exchange([run], timeout=IMPORT_SECONDS)
    if answer.status == 0 and way and answer.stdout.split()[-1:] == ["all"]:
        return Check("api", True, f"Airflow's API at {api} answers the login node{way}; {_EXPOSED}", warns=True)
    if answer.status == 0:
        return Check("api", True, f"Airflow's API at {api} answers the login node{way}")
    hint = "" if way else '; if nodes can only reach the login node, set api = "tunnel"'
    return Check("api", False, f"called from the login node{way}: {answer.message}{hint}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _bundles(config: ClusterConfig) -> Iterator[Check]:
    bundles = DagBundles(config.max_bundle_size)
    try:
        names = bundles.source.names()
    except Exception as error:  # Airflow's configuration can be wrong in many ways
        yield Check("dags", False, f"[dag_processor] dag_bundle_config_list cannot be read: {error}")
        return
    for name in names:
        try:
            found = bundles.wait(Bundle(name, None), 120.0)  # seconds: a Git bundle may have to be cloned
        except (BundleUnavailable, BundleRefused) as error:
            yield Check("dags", False, str(error))
        else:
            yield Check("dags", True, f"bundle {name!r} can be read: {found.files} files, {format_bytes(found.size)}")


# Whether the table's nodes and queues match those of the batch system.


def node_checks(config: ClusterConfig, system: BatchSystem, answer: CommandResult) -> Iterator[Check]:
    """Check the queue and the size of the nodes.

    :param answer: to the command of the batch system's survey
    """
    assert system.survey is not None
    try:
        inventory = system.survey.inventory(answer)
    except CouldNotAsk as error:
        message = f"{system.name} does not report its nodes and queues, so node_cpus, node_memory and queue were not"
        yield Check("nodes", True, f"{message} compared with them: {error.message}", warns=True)
        return
    names = named_queues(config, system)
    if unknown := inventory.unknown(names):
        there = ", ".join(inventory.queues)
        message = f"{system.name} has no queue {unknown[0]!r}; its queues are: {there}"
        yield Check("queue", False, f'{message}; set queue = "{inventory.default or inventory.queues[0]}"')
        return
    if names:
        yield Check("queue", True, f"{system.name} has {', '.join(names)}")
    longest = None if has_other_limits(config.resources) else inventory.longest_in(",".join(names))
    for name in sorted(config.model_fields_set & {"time", "time_limit", "allocation_time"}):
        if longest is not None and (seconds := getattr(config, name) or 0) > longest:
            limit = f"a job in {', '.join(names) or 'the default queue'} can run for at most {format_time(longest)}"
            message = f"{name} = {format_time(seconds)}, but {limit}; set {name} = {longest}, or name another queue"
            yield Check("queue", True, message, warns=True)
    yield _sizes(config, inventory, names)


def _sizes(config: ClusterConfig, inventory: Inventory, names: Sequence[str]) -> Check:
    kinds = inventory.nodes_of_queues(names)
    where = f"of queue {', '.join(names)}" if names else "of the cluster"
    if not kinds:
        return Check(
            "nodes", False, f"the batch system lists no node {where}; name another queue: {', '.join(inventory.queues)}"
        )
    fitting = sum(nodes.count for nodes in kinds if _holds(nodes, config))
    largest = max(kinds, key=lambda nodes: (nodes.cpus, nodes.memory or 0))
    asked = f"node_cpus = {config.node_cpus:g} and node_memory = {format_memory(config.node_memory)}"
    if fitting:
        return Check("nodes", True, f"{fitting} of the {sum(each.count for each in kinds)} nodes {where} have {asked}")
    memory = "" if largest.memory is None else f" and {format_memory(largest.memory)}"
    line = f"set node_cpus = {min(largest.cpus, config.node_cpus):g}"
    if largest.memory is not None and largest.memory < config.node_memory:
        line += f', node_memory = "{format_memory(largest.memory)}"'
    return Check(
        "nodes",
        False,
        f"no node {where} has {asked}, so a job that requests as much would never start; the largest have "
        f"{largest.cpus} cpus{memory}; {line}",
    )


def _holds(nodes: Nodes, config: ClusterConfig) -> bool:
    return config.node_cpus <= nodes.cpus and (nodes.memory is None or config.node_memory <= nodes.memory)


# Whether the cluster counts memory in the same unit as the table.

_UNIT_NAMES = {"B": "bytes", "K": "KiB", "M": "MiB", "G": "GiB", "T": "TiB"}


def memory_checks(
    config: ClusterConfig, system: BatchSystem, unit: MemoryUnit, answer: CommandResult
) -> Iterator[Check]:
    """Check the unit that the batch system reports. If it reports none, there is no finding, and the trial job shows
    it.

    :param answer: to the command of the unit
    """
    ours = _ours(config, unit)
    if ours is None or answer.status != 0 or (theirs := unit.read(answer.stdout)) is None:
        return
    message = f"{system.name} counts memory in {_UNIT_NAMES[theirs]} ({unit.setting})"
    if theirs == ours:
        yield Check("memory unit", True, f"{message}, and so does the table")
    else:
        yield Check(
            "memory unit", False, f"{message}, but the table of the site in {_UNIT_NAMES[ours]}; {_remedy(theirs)}"
        )


def misunderstanding(
    name: str, config: ClusterConfig, system: BatchSystem, unit: MemoryUnit, script: str, answer: CommandResult
) -> str | None:
    """Return how the batch system misunderstood the memory request of a trial job; None: it did not.

    :param name: of the site
    :param script: of the job
    :param answer: to the command that shows the job's limits
    """
    ours = _ours(config, unit)
    if ours is None or answer.status != 0 or (found := unit.understood(script, answer.stdout, ours)) is None:
        return None
    number, mib, theirs = found
    return (
        f"a trial job requested {number} {_UNIT_NAMES[ours]} of memory, and {system.name} read this as "
        f"{format_memory(round(mib)) if mib >= 1 else f'{mib * 1024:.0f} KiB'}: it counts in {_UNIT_NAMES[theirs]} "
        f"({unit.setting}); {_remedy(theirs, name)}"
    )


def _ours(config: ClusterConfig, unit: MemoryUnit) -> str | None:
    """Return the unit of the table; None: no memory is requested in that unit, or memory is requested in bytes."""
    found = dialect(config.profile, MemoryDialect(per="node", resource=unit.resource))
    if found.per == "none" or found.unit == "B" or unit.resource not in names(found):
        return None
    return found.unit or unit.default


def _remedy(theirs: str, name: str = "NAME") -> str:
    return f'set unit = "{theirs}" in [sites.{name}.memory]'
