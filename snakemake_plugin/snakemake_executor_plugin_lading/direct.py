"""Jobs that are only a shell command, and do not need Snakemake where they run.

Snakemake's own local executor runs such rules without starting another Snakemake, and so does this plugin: preparation
is done here, and the rest by the main Snakemake, as for any other job. Starting Snakemake in each job would cost more
than many short jobs themselves.

The command is the one that Snakemake's ``shell()`` would run. It is found by calling the rule's compiled function with
the arguments of the local executor, and with its own globals, which are those of its module. (``job.shellcmd`` is only
what Snakemake prints; it is formatted with the globals of the main Snakefile.) If the command does not depend on the
function's text alone, or if the text depends on the machine, the job starts a Snakemake.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, NoReturn

from snakemake_interface_executor_plugins.settings import SharedFSUsage

# Linux limits an argument to 128 KiB. Jobs with longer commands start a Snakemake, which reads them from a file. Bytes.
MOST_TEXT = 96 * 1024
# Variables that libraries read the number of threads from. Snakemake sets the same ones.
THREADS = (
    "OMP_NUM_THREADS", "GOTO_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)  # fmt: skip
# Snakemake's default of the resource tmpdir, which is TMPDIR of the job, and how the other variables are set to it.
SYSTEM_TMPDIR = "system_tmpdir"
TMPDIRS = 'export TMP="$TMPDIR" TEMP="$TMPDIR" TEMPDIR="$TMPDIR"; '
# A file server can show files of another machine late. Runs in a subshell, to keep its variables apart.
WAIT = (
    '(shift; n=0; for f; do until [ -e "$f" ]; do [ $n -lt {patience} ] || '
    '{{ echo "Lading: input $f is missing after {patience} s (--latency-wait)" >&2; exit 1; }}; '
    "sleep 1; n=$((n+1)); done; done) || exit 1; "
)
# What Snakemake shows for a value that is known only where and when the job runs.
UNKNOWN = "<TBD>"
# Python itself sets the locale of the C library when it starts.
SET_BY_PYTHON = {b"LC_CTYPE"}


class _InDoubt(Exception):
    """The command of a job can be determined only where it runs."""


class _Undecided:
    """The value of a resource that is known only where the job runs; any use of it raises an exception."""

    def _refuse(self, *_: Any) -> NoReturn:
        raise _InDoubt

    __str__ = __repr__ = __format__ = __bool__ = __eq__ = __getattr__ = __fspath__ = __len__ = __iter__ = _refuse
    __hash__ = _refuse


def find_command(job: Any, workflow: Any) -> tuple[list[str], dict[str, str]] | None:
    """Return the arguments and the environment variables of a job that is only a shell command.

    :return: None: the job needs a Snakemake
    """
    from snakemake.shell import shell

    if not _is_mere_command(job, workflow):
        return None
    try:
        text = _format_command(job, workflow)
    except Exception:  # expressions of a Snakefile can raise anything; Snakemake reports it where it runs the job
        return None
    text = " ".join((shell._get_process_prefix(), text, shell._process_suffix)).strip()
    files = [str(each) for each in job.input]
    if UNKNOWN in text or len(os.fsencode(text)) + sum(len(os.fsencode(each)) + 1 for each in files) > MOST_TEXT:
        return None
    start = start_command(int(workflow.execution_settings.latency_wait), has_tmpdir="tmpdir" in job.rule.resources)
    arguments = [*start, shell.get_executable() or "/bin/sh", text, *files]
    return arguments, dict.fromkeys(THREADS, str(job.threads))


def start_command(patience: int, *, has_tmpdir: bool) -> list[str]:
    """Return a command that waits for files and then runs a shell. Its arguments are the shell, a text, and the files.

    :param patience: how long it waits for the files, in seconds
    :param has_tmpdir: whether to set all variables that name the folder for temporary files, like Snakemake
    """
    return ["/bin/sh", "-c", WAIT.format(patience=patience) + (TMPDIRS if has_tmpdir else "") + 'exec "$0" -c "$1"']


def _is_mere_command(job: Any, workflow: Any) -> bool:
    """Whether a job has nothing besides its shell command, regardless of what that is."""
    if job.is_group() or not job.is_shell:
        return False
    rule, settings = job.rule, workflow.storage_settings
    reasons_against = (
        job.is_shadow,
        job.benchmark,
        job.pipe_or_service_output,
        rule.is_handover,
        "tmpdir" in rule.resources and rule.resources["tmpdir"].raw != SYSTEM_TMPDIR,
        job.resources.get("shell_exec") is not None,
        settings.default_storage_provider is not None,
        set(settings.shared_fs_usage) != set(SharedFSUsage),
        workflow.deployment_settings.deployment_method,
        workflow.remote_execution_settings.precommand,
        workflow.workflow_settings.cache is not None and rule.cache,
        any(each.is_storage or each.is_directory for each in (*job.input, *job.output, *job.log)),
        any("update" in (getattr(each, "flags", None) or {}) for each in job.output),
    )
    return not any(reasons_against)


def _format_command(job: Any, workflow: Any) -> str:
    """Return what the rule's function passes to ``shell()``, formatted in the frame of that function.

    :raises Exception: the function does something else, or needs values that are known only where the job runs
    """
    from snakemake.shell import shell
    from snakemake.utils import format as format_in_frame

    run = job.rule.run_func
    if type(run) is not FunctionType or run.__globals__.get("shell") is not shell:
        raise _InDoubt
    found: list[str] = []

    def take(command: str, *, bench_record: None, bench_iteration: None) -> None:
        # The rule's frame is two frames above Snakemake's format(), as it is for shell().
        found.append(format_in_frame(command, stepout=2, bench_iteration=bench_iteration))

    resources = _mark_undecided(job.resources)
    if any(callable(each) and "resources" in inspect.signature(each).parameters for each in job.rule.params):
        # job.params may have been evaluated with values that are unknown here.
        with_undecided = SimpleNamespace(resources=resources)
        job.rule.expand_params(job.wildcards_dict, job.input, job.output, with_undecided)
    given = {
        "input": job.input._plainstrings(),
        "output": job.output._plainstrings(),
        "params": job.params,
        "wildcards": job.wildcards,
        "threads": job.threads,
        "resources": resources,
        "log": job.log._plainstrings(),
        "rule": job.rule.name,
        "singularity_args": workflow.deployment_settings.apptainer_args,
        "use_singularity": False,
        "jobid": job.jobid,
        "is_shell": True,
        "cleanup_scripts": workflow.execution_settings.cleanup_scripts,
        "conda_base_path": workflow.conda_base_path,
        "basedir": job.rule.basedir,
        "sourcecache_path": workflow.sourcecache.cache_path,
        "runtime_sourcecache_path": workflow.sourcecache.runtime_cache_path,
        "runtime_paths": workflow.runtime_paths,
    }
    names = run.__code__.co_varnames[: run.__code__.co_argcount - len(run.__defaults__ or ())]
    mine = FunctionType(run.__code__, {**run.__globals__, "shell": take}, run.__name__, run.__defaults__)
    mine(**{name: given.get(name) for name in names})
    [command] = found
    return command


def _mark_undecided(resources: Any) -> Any:
    """Copy the resources of a job, with :class:`_Undecided` for those that are evaluated where the job runs."""
    marked = resources._clone()
    for name, (index, _) in list(marked._get_names()):
        if marked[index] == UNKNOWN:
            marked[index] = _Undecided()
            marked._set_name(name, index)
    return marked


def changed_variables() -> list[str]:
    """Return the names of the environment variables that this process has changed since it started, as a Snakefile can.

    Snakemake's commands get the changes: in the local executor from this process, and in a job's Snakemake from the
    Snakefile, which it reads as well. A command that runs by itself does not get them.
    """
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    # If a name occurs twice, Python uses the first value.
    before = dict(entry.split(b"=", 1) for entry in reversed(entries) if b"=" in entry)
    now = dict(os.environb)
    changed = {name for name in {*before, *now} - SET_BY_PYTHON if before.get(name) != now.get(name)}
    return sorted(map(os.fsdecode, changed))


async def prepare(job: Any) -> None:
    """Prepare a job like Snakemake does: remove its old output, and create the folders of the new output.

    :raises Exception: old output is protected, or cannot be removed
    """
    await job.check_protected_output()
    await job.remove_existing_output()
    for file in (*job.output, *job.log):
        file.prepare()
