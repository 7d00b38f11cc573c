"""What a job's process does to itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lading.executors.agent.supervisor import OOM_SCORE


@pytest.mark.parametrize(("inherited", "own"), [(100, OOM_SCORE), (800, 800)])
def test_the_kernel_ends_jobs_first_but_an_inherited_score_is_not_lowered(inherited: int, own: int) -> None:
    code = (
        "from lading.executors.agent import supervisor\n"
        "score = open('/proc/self/oom_score_adj', 'r+')\n"
        f"score.write('{inherited}'); score.flush()\n"
        "supervisor._volunteer_for_the_oom_killer()\n"
        "print(open('/proc/self/oom_score_adj').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) == own
