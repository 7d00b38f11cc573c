"""SLURM where the conformance suite does not look: several clusters, reasons in words."""

from __future__ import annotations

from datetime import datetime

import pytest

from lading.hooks.batch.slurm.messages import in_words
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.system import CouldNotAsk
from lading.hooks.ssh.answer import Answer


def test_ids_of_several_clusters() -> None:
    system = SLURM()
    assert system.element("7;far", 3) == "7_3;far"
    assert system.cancel(["7;far", "7_3;far"]) == ["scancel", "-M", "far", "7", "7_3"]
    *shell, script = system.cancel(["7;far", "8", "9;near"])
    assert shell == ["sh", "-c"]
    each = " || status=$?\n"
    assert f"scancel -M far 7{each}scancel 8{each}scancel -M near 9{each}" in script, "each number in its own cluster"
    assert system.status("hpc", ["7;far", "8;near"])[:3] == ["squeue", "-M", "far,near"]
    words = system.accounting(["7;far"], "hpc", datetime(2026, 11, 20))
    assert words is not None
    assert words[:3] == ["sacct", "-M", "far"]
    assert words[-1].startswith("Cluster,JobID,")


def test_accounting_that_a_site_does_not_have() -> None:
    with pytest.raises(CouldNotAsk, match="disabled"):
        SLURM().accounted(Answer(1, "", "Slurm accounting storage is disabled\n"))


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("None", None),
        ("(null)", None),
        ("Resources", "it waits for resources to become free (Resources)"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n1",
            "nodes that it needs are not available (ReqNodeNotAvail, UnavailableNodes:n1)",
        ),
        ("QOSMaxCpuPerUserLimit", "a limit of the QOS is reached (QOSMaxCpuPerUserLimit)"),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_reasons_in_words(reason: str, expected: str | None) -> None:
    assert in_words(reason) == expected


def test_elements_that_slurm_has_not_told_apart() -> None:
    rows = "4559_[2-3%2]|PENDING||Priority|a\n4560_[1,3,...]|PENDING||Priority|a\n4561|RUNNING|n1|None|b\n"
    jobs = SLURM().statuses(Answer(0, rows))
    assert [(job.id, job.index) for job in jobs] == [("4559", 2), ("4559", 3), ("4561", None)]
