"""Jobs that need nothing of Snakemake where they run: their shell command is the job.

Snakemake's own local executor runs such a rule without another Snakemake, and so does this: what comes before is done
here, and what comes after by the main Snakemake, as for any other job. To start Snakemake in each job costs more than
many a short job itself.
"""

from __future__ import annotations

import shlex
from typing import Any

from snakemake_interface_executor_plugins.settings import SharedFSUsage

# A system takes no argument of 128 KiB: what is longer is left to a Snakemake, which reads it from a file, bytes.
MOST_TEXT = 96 * 1024
# What libraries take for the number of threads, as Snakemake sets it.
THREADS = (
    "OMP_NUM_THREADS", "GOTO_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)  # fmt: skip


def is_direct(job: Any, workflow: Any) -> bool:
    """Whether a job is its shell command, and nothing else."""
    if job.is_group() or not job.is_shell or job.rule.shellcmd is None:
        return False
    rule, settings = job.rule, workflow.storage_settings
    reasons_against = (
        job.is_shadow,
        job.benchmark,
        job.pipe_or_service_output,
        rule.is_handover,
        "tmpdir" in rule.shellcmd,  # it is known only where the job runs
        job.resources.get("shell_exec") is not None,
        settings.default_storage_provider is not None,
        set(settings.shared_fs_usage) != set(SharedFSUsage),
        workflow.deployment_settings.deployment_method,
        workflow.remote_execution_settings.precommand,
        workflow.workflow_settings.cache is not None and rule.cache,
        any(each.is_storage or each.is_directory for each in (*job.input, *job.output, *job.log)),
        any("update" in (getattr(each, "flags", None) or {}) for each in job.output),
    )
    return not any(reasons_against) and _length(job) <= MOST_TEXT


def _length(job: Any) -> int:
    """Of its command with the names of the files that are waited for, bytes; longer where these are quoted."""
    files = sum(len(shlex.quote(str(each)).encode()) + 1 for each in job.input)
    return files if files > MOST_TEXT else files + len(job.shellcmd.encode())


async def prepare(job: Any) -> None:
    """Do what Snakemake does right before a job: remove its old output, and make the folders of the new one.

    :raises Exception: output of it is protected, or cannot be removed
    """
    await job.check_protected_output()
    await job.remove_existing_output()
    for file in (*job.output, *job.log):
        file.prepare()


def shell_command(job: Any, workflow: Any) -> tuple[list[str], dict[str, str]]:
    """The program and the arguments of a job, and the variables that it has besides those of the run."""
    from snakemake.shell import shell

    program = shell.get_executable() or "/bin/sh"
    text = f"{shell._get_process_prefix()} {job.shellcmd} {shell._process_suffix}".strip()
    patience = int(workflow.execution_settings.latency_wait)
    if files := [str(each) for each in job.input]:
        # A file server may show what another machine has written a moment later.
        wait = f'until [ -e "$f" ] || [ $n -ge {patience} ]; do sleep 1; n=$((n+1)); done'
        text = f"n=0; for f in {shlex.join(files)}; do {wait}; done\n{text}"
    return [program, "-c", text], dict.fromkeys(THREADS, str(job.threads))
