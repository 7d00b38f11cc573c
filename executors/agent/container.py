"""Jobs that run in a container: how the container is started and removed, and how the job in it ended.

The job's process stays outside and passes signals on. In the container, :mod:`.tasks.inside` reads the workload, which
contains a secret, from its standard input, and leaves the result in the job's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lading.executors.agent import cpu_groups
from lading.executors.agent.scratch import BUNDLES_VARIABLE
from lading.executors.agent.signal_passing import SignalPassing
from lading.executors.agent.supervisor import AgentJob, AgentJobFailed
from lading.hooks.files import host
from lading.hooks.files.child_processes import ARCHIVE
from lading.hooks.files.json_model import checked
from lading.hooks.files.safe_files import read_end, read_regular
from lading.hooks.spool.job_files import InsideFile
from lading.hooks.spool.spool import Envelope
from lading.scheduling.hints.places import engine_and_image
from lading.scheduling.model.reasons import because
from lading.scheduling.text.nesting import parse_json

INSIDE = "lading.executors.agent.tasks.inside"
# The file with the result, in the job's folder.
OUTCOME = "inside.json"
# Variables that the image or the engine sets, not this machine.
OF_THE_IMAGE = {"PATH", "HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "VIRTUAL_ENV", "PWD", "OLDPWD", "SHLVL"}
OF_THE_IMAGE |= {"HOSTNAME", "USER", "LOGNAME", "SHELL", "_"}
# Variables that name folders, which are mounted under the same paths as outside.
FOLDERS = (
    "AIRFLOW_HOME",
    "AIRFLOW__CORE__DAGS_FOLDER",
    "AIRFLOW__LOGGING__BASE_LOG_FOLDER",
    "TMPDIR",
    BUNDLES_VARIABLE,
)
# The engine's exit code if the first process in the container was killed.
KILLED = 128 + signal.SIGKILL


def run(workload: dict[str, Any], job: AgentJob, envelope: Envelope, runner: str) -> None:
    """Run a workload in its container to its end.

    :param runner: the module that runs the workload
    :raises AgentJobFailed: the job failed, or its container could not be started
    """
    command = start(job, envelope, runner, os.environ)
    passing, kills = SignalPassing(), host.machine_oom_kills()
    try:
        # In the job's folder, because Podman's monitor leaves a file called `oom` where it was started.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=job.folder.root)
    except OSError as error:
        raise AgentJobFailed(because("container_not_started", engine=command[0], text=str(error))) from error
    passing.start(process.send_signal, is_asked=job.cause() is not None)
    try:
        with contextlib.suppress(BrokenPipeError):  # its exit code tells more
            process.communicate(json.dumps(workload).encode())
        code = process.wait()
        # Do this before calling Docker: until then, the agent kills every child of a job that is to be terminated.
        job.task_has_ended()
        is_killed = command[0] == "docker" and is_out_of_memory(job.token)
        if command[0] == "docker" and envelope.memory_limit and code == KILLED and job.cause() is None:
            # Podman's monitor can miss that the kernel has killed the first process, because the container then ends.
            is_killed |= host.machine_oom_kills() > kills
    finally:
        remove(envelope.container or "", job.token)
    conclude(job, code, command[0], is_killed=is_killed)


def start(job: AgentJob, envelope: Envelope, runner: str, environment: Mapping[str, str]) -> list[str]:
    """Return the command that starts a job's container.

    :param runner: the module that runs the workload
    """
    engine, image = engine_and_image(envelope.container or "")
    program = ["-m"] if ARCHIVE is None else [ARCHIVE]
    inside = [envelope.container_python, *program, INSIDE, str(job.spool.root), job.token, runner]
    inside.append(str(envelope.expires_at))
    folders = [str(job.spool.root), envelope.dags, *(environment.get(name) for name in FOLDERS)]
    folders += [] if ARCHIVE is None else [os.path.dirname(ARCHIVE)]
    folders += map(os.path.dirname, envelope.inputs.values())
    mounts = list(dict.fromkeys(each for each in folders if each and os.path.isdir(each)))
    if engine == "apptainer":
        binds = [option for each in mounts for option in ("--bind", f"{each}:{each}")]
        return [engine, "exec", "--pwd", "/", *(["--nv"] if job.devices else ()), *binds, image, *inside]
    volumes = [option for each in mounts for option in ("--volume", f"{each}:{each}")]
    # Only the names, because any user can read a command line.
    kept = [option for name in sorted(environment.keys() - OF_THE_IMAGE) for option in ("--env", name)]
    cpus = envelope.resources.cpus
    limits = [f"--cpus={cpus:g}", f"--cpu-shares={cpu_groups.shares(cpus)}"] if cpus else []
    limits += [f"--memory={envelope.memory_limit}m"] if envelope.memory_limit else []
    limits += [f'--gpus="device={",".join(job.devices)}"'] if job.devices else []
    options = ["--interactive", "--init", "--network=host", "--workdir=/", f"--name={name_of(job.token)}"]
    options.append(f"--user={os.geteuid()}:{os.getegid()}")
    return [engine, "run", *options, *limits, *volumes, *kept, image, *inside]


def name_of(token: str) -> str:
    return f"lading-{token}"


def is_out_of_memory(token: str) -> bool:
    found = _docker("inspect", "--format={{.State.OOMKilled}}", name_of(token))
    return found is not None and found.stdout.strip() == "true"


def remove(container: str, token: str) -> None:
    """Remove a job's Docker container, which is no child of the process that started it and so may still run.

    Podman needs a second request if its monitor was killed with the rest of the job: it first waits in vain for the
    monitor, and only then notices that the container has ended.
    """
    if engine_and_image(container)[0] != "docker":
        return
    for _ in range(3):
        found = _docker("rm", "--force", name_of(token))
        if found is None or found.returncode == 0 or "no such container" in found.stderr.lower():
            return


def conclude(job: AgentJob, code: int, engine: str, *, is_killed: bool) -> None:
    """Read the result that a job left in its container.

    :param code: exit code of the engine's command
    :param is_killed: whether the kernel killed the container's first process for exceeding its memory limit
    :raises AgentJobFailed: the job failed
    """
    try:
        outcome = checked(InsideFile, parse_json(read_regular(job.folder.root / OUTCOME, 2**24)))
    except FileNotFoundError:
        if is_killed:
            raise _out_of_memory(code) from None
        killed, exited = "container_killed", "container_exited"
        reason = (
            because(killed, engine=engine, signal=-code) if code < 0 else because(exited, engine=engine, exit_code=code)
        )
        said = (read_end(job.folder.output, 1000).decode(errors="replace").strip().splitlines() or [""])[-1]
        parts = [because("last_output", text=said)] if said else []
        raise AgentJobFailed(reason.with_also(*parts), code or 1) from None
    except (OSError, ValueError) as error:
        raise AgentJobFailed(because("container_unreadable", text=str(error)), code or 1) from error
    job.outputs = outcome["outputs"]
    job.used = (outcome["cpu_seconds"], outcome["peak"])
    if outcome["reason"] is not None:
        # Apptainer's containers have no memory limit of their own.
        if is_killed or (outcome.get("is_out_of_memory") and engine == "docker"):
            raise _out_of_memory(outcome["exit_code"])
        failure = AgentJobFailed(outcome["reason"], outcome["exit_code"])
        failure.cause = outcome["cause"]
        raise failure


def _out_of_memory(exit_code: int) -> AgentJobFailed:
    failure = AgentJobFailed(because("container_out_of_memory"), exit_code)
    failure.cause = "out_of_memory"
    return failure


def _docker(*arguments: str) -> subprocess.CompletedProcess[str] | None:
    """Run a Docker command; None: Docker does not answer.

    A command that was killed is repeated: the agent kills the children of the job's process, and may have begun to
    before it noticed that the task had ended.
    """
    deadline = time.monotonic() + 60.0
    while (left := deadline - time.monotonic()) > 0:
        try:
            found = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=left, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if found.returncode != -signal.SIGKILL:
            return found
    return None


def path_of(folder: Path) -> Path:
    """Return the path of the file with a job's result."""
    return folder / OUTCOME
