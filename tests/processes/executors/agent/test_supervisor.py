"""What a job's process does to itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from lading.executors.agent import supervisor
from lading.executors.agent.supervisor import OOM_SCORE
from tests.services import forked


@pytest.mark.parametrize(("inherited", "own"), [(100, OOM_SCORE), (800, 800)])
def test_the_kernel_ends_jobs_first_but_an_inherited_score_is_not_lowered(
    tmp_path: Path, inherited: int, own: int
) -> None:
    score, found = Path("/proc/self/oom_score_adj"), tmp_path / "score"

    def job() -> None:
        score.write_text(str(inherited))
        supervisor._volunteer_for_the_oom_killer()
        found.write_text(score.read_text())

    forked.run(job)
    assert int(found.read_text()) == own
