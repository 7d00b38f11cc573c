"""Job scripts as they are submitted."""

from __future__ import annotations

import stat
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.hooks.batch.system import BatchSystem, Profile
from lading.hooks.job_scripts.properties import JobProperties, JobScriptWarning, PropertyError, parse_ini
from lading.hooks.job_scripts.script import JobScript, JobScriptError
from lading.plugin.manager import batch_systems

SYSTEMS = batch_systems()
SLURM = SYSTEMS["slurm"]
every_system = pytest.mark.parametrize("system", SYSTEMS.values())
PREFIXES = {"slurm": "#SBATCH", "pbspro": "#PBS", "torque": "#PBS", "lsf": "#BSUB", "sge": "#$"}
SMP = Profile(parallel_environment="smp")


def directives(system: BatchSystem, profile: Profile | None = None, **resources: Any) -> set[str]:
    """The directives of a script, without the prefix."""
    lines = JobScript("true\n", **resources).render(system, profile).splitlines()
    prefix = f"{system.prefix} "
    found = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    assert len(found) == len(set(found))
    return set(found)


# Issue 5, the table of the parallel model; the last column is what a smp environment makes of one node.
MPI = {"nodes": 2, "ppn": 32, "threads": 1}
OPENMP = {"nodes": 1, "ppn": 1, "threads": 32}
HYBRID = {"nodes": 4, "ppn": 2, "threads": 16}


@pytest.mark.parametrize(
    ("name", "resources", "expected"),
    [
        ("slurm", MPI, ["--nodes=2", "--ntasks-per-node=32", "--cpus-per-task=1"]),
        ("slurm", OPENMP, ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=32"]),
        ("slurm", HYBRID, ["--nodes=4", "--ntasks-per-node=2", "--cpus-per-task=16"]),
        ("slurm", {"threads": 4}, ["--cpus-per-task=4"]),
        ("slurm", {}, []),
        ("pbspro", MPI, ["-l select=2:ncpus=32:mpiprocs=32:ompthreads=1"]),
        ("pbspro", OPENMP, ["-l select=1:ncpus=32:mpiprocs=1:ompthreads=32"]),
        ("pbspro", HYBRID, ["-l select=4:ncpus=32:mpiprocs=2:ompthreads=16"]),
        ("pbspro", {"ppn": 4}, ["-l select=1:ncpus=4:mpiprocs=4:ompthreads=1"]),
        ("pbspro", {}, []),
        ("torque", MPI, ["-l nodes=2:ppn=32"]),
        ("torque", OPENMP, ["-l nodes=1:ppn=32"]),
        ("torque", HYBRID, ["-l nodes=4:ppn=32"]),
        ("torque", {"nodes": 3}, ["-l nodes=3:ppn=1"]),
        ("torque", {}, []),
        ("lsf", MPI, ["-n 64", '-R "span[ptile=32]"']),
        ("lsf", OPENMP, ["-n 32", '-R "span[ptile=32]"']),
        ("lsf", HYBRID, ["-n 128", '-R "span[ptile=32]"']),
        ("lsf", {"nodes": 1}, ["-n 1"]),
        ("lsf", {}, []),
    ],
)
def test_the_parallel_model(name: str, resources: dict[str, int], expected: list[str]) -> None:
    assert directives(SYSTEMS[name], **resources) == set(expected)


def test_grid_engine_needs_a_parallel_environment() -> None:
    assert directives(SYSTEMS["sge"], SMP, threads=4) == {"-pe smp 4"}
    assert directives(SYSTEMS["sge"], nodes=1) == set()
    with pytest.raises(ValueError, match="parallel_environment"):
        directives(SYSTEMS["sge"], threads=4)


@every_system
def test_the_script_is_shebang_directives_threads_body(system: BatchSystem) -> None:
    body = "#!/bin/sh -e\n# a comment\n\necho {jobname}\n\n"
    lines = JobScript(body, jobname="demo", threads=2, queue="q").render(system, SMP).split("\n")
    head = lines.index("export OMP_NUM_THREADS=2")
    assert lines[0] == "#!/bin/sh -e"
    assert head >= 3
    assert all(line.startswith(f"{PREFIXES[system.name]} ") for line in lines[1:head])
    assert lines[head + 1 :] == ["# a comment", "", "echo demo", "", ""]


def test_a_shebang_is_added() -> None:
    assert JobScript("true").render(SLURM) == "#!/bin/bash\ntrue\n"
    assert JobScript("true", shell="/bin/ksh -l").render(SLURM) == "#!/bin/ksh -l\ntrue\n"
    assert JobScript("\n\n#!/usr/bin/perl -w\ntrue", shell="/bin/ksh").render(SLURM) == "#!/usr/bin/perl -w\ntrue\n"
    assert JobScript("").render(SLURM) == "#!/bin/bash\n"
    with pytest.raises(JobScriptError, match="shell 'bash' is not an absolute path"):
        JobScript("true", shell="bash").render(SLURM)
    with pytest.raises(JobScriptError, match="shell"):
        JobScript("true", shell="/bin/sh\n#SBATCH --uid=0").render(SLURM)


def test_a_body_from_windows() -> None:
    script = JobScript("\ufeff#!/bin/sh\r\necho 'a\r\nb'\r\nprintf 'x\ry'", jobname="x").render(SLURM)
    assert script == "#!/bin/sh\n#SBATCH --job-name=x\necho 'a\nb'\nprintf 'x\ry'\n"


@pytest.mark.parametrize(
    ("shebang", "export"),
    [
        ("#!/bin/sh", "export OMP_NUM_THREADS=3"),
        ("#!/usr/bin/env bash", "export OMP_NUM_THREADS=3"),
        ("#! /usr/bin/env -S LANG=C zsh -l", "export OMP_NUM_THREADS=3"),
        ("#!/bin/tcsh -f", "setenv OMP_NUM_THREADS 3"),
    ],
)
def test_threads_are_exported_in_the_syntax_of_the_shell(shebang: str, export: str) -> None:
    assert JobScript(f"{shebang}\ntrue", threads="3").render(SLURM).split("\n")[-3:] == [export, "true", ""]


def test_threads_need_a_shell() -> None:
    with pytest.raises(JobScriptError, match=r"OMP_NUM_THREADS.*not '#!/usr/bin/env python3'; call that program"):
        JobScript("#!/usr/bin/env python3\npass", threads=3).render(SLURM)
    assert JobScript("#!/usr/bin/env python3\npass").render(SLURM) == "#!/usr/bin/env python3\npass\n"


DIRECTIVES = [
    "#SBATCH --mem=1",
    "#SBATCH",
    "#PBS -l nodes=1",
    "  #PBS -l nodes=1",
    "\t#SBATCH --mem=1",
    "#PBS-q x",
    "#BSUB -n 4",
    "#$ -pe smp 4",
    "#$ -cwd",
    "#$-N x",
    "#SLURM --mem=1",
    "#SBATCH --mem=1 # why",
]


@every_system
@pytest.mark.parametrize("line", DIRECTIVES)
def test_a_body_with_directives_is_refused(system: BatchSystem, line: str) -> None:
    for body, number in [
        (f"{line}\ntrue", 1),
        (f"#!/bin/sh\n\n{line}\n", 3),
        (f"true\ncat > x <<EOF\n{line}\nEOF\n", 3),
        (f"#!/bin/sh\r\n{line}\r\n", 2),
    ]:
        with pytest.raises(JobScriptError, match=f"line {number} of the body is a directive") as caught:
            JobScript(body).render(system)
        assert repr(line.strip()) in str(caught.value)


@pytest.mark.parametrize(
    "line",
    ["##SBATCH --mem=1", "# SBATCH --mem=1", "echo '#SBATCH --mem=1'", "#sbatch", "#PB S", "# #$ -cwd", "#!$", "#"],
)
@every_system
def test_comments_are_no_directives(system: BatchSystem, line: str) -> None:
    assert JobScript(f"true\n{line}\n").render(system).endswith(f"true\n{line}\n")


def test_a_comment_that_only_grid_engine_would_read() -> None:
    assert JobScript("true\n#$HOME/x\n").render(SLURM).endswith("#$HOME/x\n")
    with pytest.raises(JobScriptError, match=r"line 2 of the body is a directive: '#\$HOME/x'"):
        JobScript("true\n#$HOME/x\n").render(SYSTEMS["sge"])


@every_system
def test_a_value_cannot_become_a_directive(system: BatchSystem) -> None:
    script = JobScript("echo {text!q}\n", attributes={"text": f"a\n{system.prefix} -x"})
    with pytest.raises(JobScriptError, match="line 2 of the body is a directive"):
        script.render(system)


@every_system
@pytest.mark.parametrize("key", ["jobname", "queue", "stdout", "stderr", "A", "account"])
@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\x1b", "\x85", "\u2028"])
def test_a_value_cannot_break_out_of_its_line(system: BatchSystem, key: str, character: str) -> None:
    value = f"a{character}{system.prefix} -x"
    with pytest.raises(JobScriptError) as caught:
        JobScript("true", **{key: value}).render(system)
    assert key in str(caught.value)
    assert repr(value) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::lading.hooks.job_scripts.properties.JobScriptWarning")
@every_system
@given(value=st.text(max_size=12))
def test_whatever_a_name_is_it_makes_no_line(system: BatchSystem, value: str) -> None:
    try:
        plain = JobScript("true\n", jobname="x", A="x").render(system)
        script = JobScript("true\n", jobname=f"x{value}", A=f"x{value}").render(system)
    except ValueError:
        return
    assert script.count("\n") == plain.count("\n")


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"nodes": 0}, "nodes: 0 is not valid; valid: a whole number above 0"),
        ({"nodes": (2, 8)}, r"nodes: \(2, 8\) is not valid; .* only a task.s hint nodes can be a range"),
        ({"nodes": "two"}, "nodes: 'two' is not valid; valid: a whole number above 0"),
        ({"ppn": 1.5}, "ppn: 1.5 is not valid"),
        ({"threads": True}, "threads: True is not valid"),
        ({"time": "1:30"}, "time: '1:30' is not a length of time"),
        ({"time": 0}, "time: 0 must be more than 0"),
        ({"mem": "8 apples"}, "mem: '8 apples' is not an amount of memory"),
        ({"jobname": True}, "jobname = true is not text"),
        ({"account": ["a"]}, r"account = \['a'\] cannot be a directive: it is not text, a number or a boolean"),
    ],
)
def test_wrong_values_are_named(resources: dict[str, Any], message: str) -> None:
    with pytest.raises(JobScriptError, match=message):
        JobScript("true", **resources).render(SLURM)


def test_wrong_names() -> None:
    with pytest.raises(PropertyError, match="resource 'a b' is not a name"):
        JobScript("true", **{"a b": 1})
    with pytest.raises(PropertyError, match="'Nodes' is not 'nodes'"):
        JobScript("true", Nodes=1)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(90, 90), ("90", 90), ("2h", 7200), ("00:05:00", 300), ("1-02:03:04", 93784), ("1.5 min", 90), (0.5, 1)],
)
def test_time_is_in_seconds(value: object, seconds: int) -> None:
    assert JobScript("true", time=value).request().time == seconds


def test_what_a_script_asks_for() -> None:
    request = JobScript(
        "true", jobname="x", queue="", nodes="2", mem="8 GiB", stderr=None, exclusive=True, nice=5, hold=False, A=None
    ).request()
    assert (request.jobname, request.queue, request.nodes, request.mem) == ("x", None, 2, 8192)
    assert (request.ppn, request.stderr, request.time) == (None, None, None)
    assert dict(request.native) == {"exclusive": True, "nice": "5", "hold": False}


def test_native_directives_and_properties() -> None:
    script = JobScript("echo {account} {A} {exclusive}\n", account="x", exclusive=True, contiguous=False, A="y")
    with pytest.raises(ValueError, match=r"account|A"):
        script.render(SLURM)  # -A is --account
    assert directives(SLURM, account="x", exclusive=True, contiguous=False) == {"--account=x", "--exclusive"}
    assert directives(SYSTEMS["torque"], A="y") == {"-A y"}


@every_system
def test_core_variables_in_the_body(system: BatchSystem) -> None:
    names = ("ID", "WORKDIR", "SUBMIT_HOST", "NAME", "ARRAY_INDEX", "NODELIST")
    body = "".join(f"echo ${{CLUSTERJOB_{name}}} $LADING_{name} ${{LADING_{name}:-none}}\n" for name in names)
    script = JobScript(body + "echo $CLUSTERJOB_IDENTIFIER\n").render(system)
    used = script.replace("CLUSTERJOB_IDENTIFIER", "").split("\necho", 1)[1]
    assert "CLUSTERJOB_" not in used
    assert script.endswith("echo $CLUSTERJOB_IDENTIFIER\n")
    done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_placeholder_for_a_resource_that_is_not_given() -> None:
    with pytest.warns(JobScriptWarning, match=r"the body has \{queue\}, but the job has no queue"):
        assert JobScript("echo {queue}\n").render(SLURM).endswith("echo {queue}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert JobScript("echo {{queue}} {other}\n").render(SLURM).endswith("echo {queue} {other}\n")


def test_a_value_with_shell_characters() -> None:
    with pytest.raises(JobScriptError, match=r"in the body: \{text\} is 'a; b'.*write \{text!q\}"):
        JobScript("echo {text}", attributes={"text": "a; b"}).render(SLURM)
    assert JobScript("echo {text!q}", attributes={"text": "a; b"}).render(SLURM).endswith("echo 'a; b'\n")


def test_layers() -> None:
    site = JobProperties({"queue": "batch", "account": "a"}, {"scratch": "/s"})
    ini = parse_ini("[Attributes]\nscratch = /t\n[Resources]\nqueue = fast\nmem = 1000\n", "x.ini")
    script = JobScript("cd {scratch}\n", mem=2000, account=None).over(ini).over(site)
    assert script.render(SLURM) == "#!/bin/bash\n#SBATCH --partition=fast\n#SBATCH --mem=2000\ncd /t\n"


def test_prologue_and_epilogue() -> None:
    script = JobScript(
        "true",
        prologue="\r\nrsync {input!q} {queue}:$CLUSTERJOB_ID\r\n",
        epilogue="#!/bin/ksh\necho {jobname} #PBS\n#PBS -x",
        jobname="x",
        queue="q",
        attributes={"input": "a b"},
    )
    assert script.render_prologue() == "#!/bin/bash\n\nrsync 'a b' q:$CLUSTERJOB_ID\n"
    assert script.render_epilogue() == "#!/bin/ksh\necho x #PBS\n#PBS -x\n"
    assert JobScript("true").render_prologue() is None
    assert JobScript("true").render_epilogue() is None


def test_what_the_connection_replaces_is_missed_in_a_prologue() -> None:
    text = "[Attributes]\nremote = login\nprologue = ssh {remote} mkdir x\n"
    with pytest.warns(JobScriptWarning, match="remote ignored"):
        script = JobScript("true").over(parse_ini(text, "x.ini"))
    with pytest.raises(JobScriptError, match=r"the prologue has \{remote\}, which the Airflow connection"):
        script.render_prologue()
    script = JobScript("true", attributes={"remote": "login"}).over(script.properties)
    assert script.render_prologue() == "#!/bin/bash\nssh login mkdir x\n"


def test_auxiliary_scripts_are_placed_next_to_the_main_one(tmp_path: Path) -> None:
    aux = {"step.sh": "echo {nodes} $CLUSTERJOB_ID\r\n", "plot.py": "#!/usr/bin/env python3\nprint('{}')\n"}
    script = JobScript("sh step.sh\n", jobname="my_job/1", nodes=2, aux_scripts=aux)
    assert list(script.files(SLURM)) == ["my_job_1.sh", "step.sh", "plot.py"]
    main = script.write(tmp_path, SLURM)
    assert main == tmp_path / "my_job_1.sh"
    assert main.read_text() == script.render(SLURM)
    assert (tmp_path / "step.sh").read_text() == "#!/bin/bash\necho 2 $SLURM_JOB_ID\n"
    assert (tmp_path / "plot.py").read_text() == aux["plot.py"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o700}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/x", "a\nb"])
def test_file_names(name: str) -> None:
    with pytest.raises(JobScriptError):
        JobScript("true", aux_scripts={name: "true"}).files(SLURM)
    if name:
        with pytest.raises(JobScriptError):
            JobScript("true", filename=name).files(SLURM)


def test_two_files_of_one_name() -> None:
    with pytest.raises(JobScriptError, match=r"an auxiliary script is called 'a\.sh' like the main one"):
        JobScript("true", filename="a.sh", aux_scripts={"a.sh": "true"}).files(SLURM)


def test_nul() -> None:
    with pytest.raises(JobScriptError, match="line 2 has a NUL character"):
        JobScript("true\n\0").render(SLURM)
