"""Estimate pi on a batch cluster whose nodes need no Airflow.

A job array throws darts, with one element for each seed. After that, a task adds up the results. The site is a batch
site of ``[lading] sites_file``, for example::

    [sites.hpc]
    kind = "slurm"              # or pbspro, torque, lsf, sge: the Dag stays the same
    ssh_conn_id = "hpc_login"
    work_dir = "/scratch/me/lading"

Without ``ssh_conn_id``, the commands of the batch system run on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow.sdk import Param, dag, task

from lading.operators import JobScriptOperator, resources, scatter

DARTS = """\
echo "job $CLUSTERJOB_ID throws {darts} darts with seed {seed} in $CLUSTERJOB_WORKDIR"
awk -v seed={seed} -v darts={darts} '
    BEGIN { srand(seed); for (i = 0; i < darts; i++) if (rand() ^ 2 + rand() ^ 2 < 1) hits++; print hits }'
"""


@dag(
    schedule=None,
    tags=["lading", "example"],
    params={"site": Param("hpc", type="string", description="a batch site of the sites file")},
    doc_md="Estimate pi on a batch cluster.",
)
def batch_script() -> None:
    @task(executor_config=resources(cpus=0.25))
    def seeds() -> list[dict[str, int]]:
        return [{"seed": seed, "darts": 20_000} for seed in (1, 2, 3)]

    @task(executor_config=resources(cpus=0.25))
    def pi(hits: Sequence[str]) -> float:
        return 4 * sum(map(int, hits)) / (20_000 * len(hits))

    throw = JobScriptOperator.partial(
        task_id="throw",
        site="{{ params.site }}",
        body=DARTS,
        properties={"nodes": 1, "ppn": 1, "time": "10 min"},
        executor_config=resources(cpus=0.25),
    )
    pi(scatter(throw, attributes=seeds()))  # type: ignore[arg-type]  # an XComArg stands for what the task will return


batch_script()
