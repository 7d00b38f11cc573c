"""Scatter a task in the three ways of CWL: over pairs, over all combinations, and over all combinations as a table.

Each Dag runs with any executor. With Lading, its jobs are packed by the resources that they request.
"""

from __future__ import annotations

import bz2
import difflib
import lzma
import zlib
from collections.abc import Callable, Sequence

from airflow.sdk import dag, task

from lading.operators import resources, scatter

TEXTS = ["to be or not to be", "all work and no play", "so it goes"]
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {"zlib": zlib.compress, "bz2": bz2.compress, "lzma": lzma.compress}
SMALL = resources(cpus=0.25)


@dag(schedule=None, tags=["lading", "example"], doc_md="Join each name with the year at the same position.")
def scatter_dotproduct() -> None:
    @task(executor_config=SMALL)
    def names() -> list[str]:
        return ["Ada", "Grace", "Mary"]

    @task(executor_config=SMALL)
    def describe(name: str, year: int, sep: str) -> str:
        return f"{name}{sep}{year}"

    @task(executor_config=SMALL)
    def report(lines: Sequence[str]) -> str:
        return "; ".join(lines)

    described = scatter(describe.partial(sep=", "), name=names(), year=[1815, 1906, 1893], method="dotproduct")
    report(described)  # type: ignore[arg-type]  # an XComArg stands for what the task will return


@dag(schedule=None, tags=["lading", "example"], doc_md="Compress every text with every compressor, and find the best.")
def scatter_flat_crossproduct() -> None:
    @task(executor_config=SMALL)
    def compress(text: str, how: str) -> dict[str, object]:
        return {"text": text, "how": how, "bytes": len(COMPRESSORS[how](text.encode() * 1000))}

    @task(executor_config=SMALL)
    def best(sizes: Sequence[dict[str, object]]) -> dict[str, object]:
        """Return the best compressor for each text."""
        ways: dict[str, tuple[object, object]] = {}
        for each in sizes:
            candidate = (each["bytes"], each["how"])
            text = str(each["text"])
            ways[text] = min(ways.get(text, candidate), candidate)
        return {text: how for text, (_, how) in ways.items()}

    best(scatter(compress, text=TEXTS, how=list(COMPRESSORS), method="flat_crossproduct"))  # type: ignore[arg-type]


@dag(schedule=None, tags=["lading", "example"], doc_md="Compute a table with the similarity of each pair of texts.")
def scatter_nested_crossproduct() -> None:
    @task(executor_config=SMALL)
    def similarity(left: str, right: str) -> float:
        return round(difflib.SequenceMatcher(None, left, right).ratio(), 3)

    @task(executor_config=SMALL)
    def table(rows: Sequence[Sequence[float]]) -> list[list[float]]:
        return [list(row) for row in rows]

    table(scatter(similarity, left=TEXTS, right=TEXTS, method="nested_crossproduct"))  # type: ignore[arg-type]


scatter_dotproduct()
scatter_flat_crossproduct()
scatter_nested_crossproduct()
