"""What the answers of a dry run mean. They are those of SLURM 22.05."""

from __future__ import annotations

import pytest

from lading.hooks.batch.dry_run import DryRun, parse_names
from lading.hooks.batch.refusals import CouldNotAsk
from lading.hooks.batch.slurm.system import SLURM, WORDING
from lading.hooks.batch.system import BatchJobRequest, Profile
from lading.hooks.ssh.answer import CommandResult

DRY_RUN = SLURM.dry_run
GIVEN = {"partition": "x", "account": "x", "qos": "x", "time": "x", "constraint": "x", "gres": "x", "mail-type": "x"}
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


def dry_run() -> DryRun:
    assert DRY_RUN is not None
    return DRY_RUN


@pytest.mark.parametrize(
    ("said", "sentences", "option"),
    [
        (
            "sbatch: error: invalid partition specified: x\nallocation failure: Invalid partition name specified\n",
            "invalid partition specified: x; Invalid partition name specified",
            "partition",
        ),
        (
            "allocation failure: Invalid account or account/partition combination specified\n",
            "Invalid account or account/partition combination specified",
            "account",
        ),
        ("allocation failure: Invalid qos specification\n", "Invalid qos specification", "qos"),
        ("allocation failure: Invalid feature specification\n", "Invalid feature specification", "constraint"),
        (
            "sbatch: error: Invalid generic resource (gres) specification\n",
            "Invalid generic resource (gres) specification",
            "gres",
        ),
        (
            "allocation failure: Requested time limit is invalid (missing or exceeds some limit)\n",
            "Requested time limit is invalid (missing or exceeds some limit)",
            "time",
        ),
        (
            f"sbatch: error: QOSMaxWallDurationPerJobLimit\nallocation failure: {POLICY}\n",
            f"QOSMaxWallDurationPerJobLimit; {POLICY}",
            "time",
        ),
        (
            "allocation failure: User's group not permitted to use this partition\n",
            "User's group not permitted to use this partition",
            "partition",
        ),
        ("sbatch: error: Invalid --mail-type specification\n", "Invalid --mail-type specification", "mail-type"),
        ("sbatch: unrecognized option '--foo=7'\n", "unrecognized option '--foo=7'", None),
    ],
)
def test_what_is_refused_for_good(said: str, sentences: str, option: str | None) -> None:
    refusal = dry_run().refusal(CommandResult(1, "", said), WORDING)
    assert refusal is not None
    assert (refusal.kind, refusal.message) == ("permanent", sentences)
    assert dry_run().option(refusal.message, GIVEN) == option


@pytest.mark.parametrize(
    "said",
    [
        f"sbatch: error: AssocMaxSubmitJobLimit\nallocation failure: {POLICY}\n",
        f"sbatch: error: QOSMaxSubmitJobPerUserLimit\nallocation failure: {POLICY}\n",
        "allocation failure: Required partition not available (inactive or drain)\n",
        "allocation failure: Requested reservation not usable now\n",
        "allocation failure: Requested nodes are busy\n",
        "allocation failure: Required node not available (down, drained or reserved)\n",
    ],
)
def test_what_is_refused_for_now(said: str) -> None:
    refusal = dry_run().refusal(CommandResult(1, "", said), WORDING)
    assert refusal is not None
    assert refusal.kind == "limit"


def test_what_is_accepted() -> None:
    said = "sbatch: Job 2 to start at 2026-11-30T16:44:15 using 1 processors on nodes n1 in partition batch\n"
    assert dry_run().refusal(CommandResult(0, "", said), WORDING) is None


@pytest.mark.parametrize(
    "answer",
    [
        CommandResult(None, "", "no answer within 30 s"),
        CommandResult(124),
        CommandResult(127, "", "sh: 1: sbatch: not found\n"),
        CommandResult(1, "", "sbatch-wrapper: unknown argument --test-only\n"),
        CommandResult(1, "", "allocation failure: Unable to contact slurm controller (connect failure)\n"),
    ],
)
def test_what_is_no_answer(answer: CommandResult) -> None:
    with pytest.raises(CouldNotAsk):
        dry_run().refusal(answer, WORDING)


def test_a_refusal_that_nodes_that_are_down_can_cause_is_unsure() -> None:
    said = "allocation failure: Requested node configuration is not available\n"
    refusal = dry_run().refusal(CommandResult(1, "", said), WORDING)
    assert refusal is not None
    assert dry_run().unsure.search(refusal.message)


def test_valid_names_have_no_amounts() -> None:
    assert parse_names("gpu:a100:4(S:0,1),lscratch:100G\n(null)\n") == ["gpu:a100", "lscratch", "gpu"]
    assert parse_names("normal,long\n\nnormal\n") == ["normal", "long"]


def test_the_options_of_a_script() -> None:
    native: dict[str, str | bool | None] = {"C": "ssd&avx", "exclusive": True, "comment": "a b"}
    lines = SLURM().header(BatchJobRequest(queue="batch", time=60, native=native), Profile(), "/bin/sh")
    options = {"partition": "batch", "time": "00:01:00", "constraint": "ssd&avx", "exclusive": "", "comment": "a b"}
    assert SLURM().options_of_script("\n".join([*lines, "echo", "#SBATCH --time=1"])) == options
