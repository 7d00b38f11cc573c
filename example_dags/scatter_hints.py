"""Scatter a task whose resources depend on the inputs of each job.

The Dag writes texts of different sizes. For each text, a job counts the most frequent words. The memory of each job
depends on the size of its text. At most two of these jobs are active at once. The whole run has at most four active
jobs. A job that runs out of memory or time requests more in its next try.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from airflow.sdk import Param, dag, get_current_context, task

from lading.operators import resources, scatter

WORDS = ("lading", "ship", "harbour", "crane", "sea", "tide", "hold", "anchor")


def folder() -> Path:
    context = get_current_context()
    home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
    return Path(context["params"]["folder"] or home / "scatter_hints")


@dag(
    schedule=None,
    params={"folder": Param("", type="string", description="where the texts go; empty: scatter_hints in AIRFLOW_HOME")},
    default_args={
        "executor_config": resources(cpus=0.25, max_jobs=4),  # the whole run has at most four active jobs
        "retries": 2,
        "retry_delay": timedelta(seconds=1),
    },
    max_active_tasks=1000,  # a high limit, so that only resources limit how many tasks run at once
    tags=["lading", "example"],
    doc_md=__doc__,
)
def scatter_hints() -> None:
    @task
    def texts() -> list[str]:
        """Write texts of 100,000 to 600,000 words."""
        folder().mkdir(parents=True, exist_ok=True)
        paths = []
        for number in range(1, 7):
            path = folder() / f"text{number}.txt"
            path.write_text(" ".join(WORDS[: number + 1]) * (100_000 * number // (number + 1)))
            paths.append(str(path))
        return paths

    @task
    def count(text: str, most: int) -> dict[str, object]:
        words = Counter(Path(text).read_text().split())
        return {"text": Path(text).name, "words": words.total(), "most": [word for word, _ in words.most_common(most)]}

    @task
    def total(counts: Sequence[dict[str, int]]) -> int:
        return sum(each["words"] for each in counts)

    counts = scatter(
        count.partial(most=2),
        text=texts(),
        max_jobs=2,
        resources=resources(
            cpus="min(1, most / 4)",
            memory="40 * input_size + 400 MiB",
            disk="input_size",
            time="5 min * attempt",
        ),
    )
    total(counts)  # type: ignore[arg-type]  # an XComArg stands for what the task will return


scatter_hints()
