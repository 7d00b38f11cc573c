"""`lading script` as a user meets it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lading.plugin.offline.command import main

PREFIXES = {"slurm": "#SBATCH", "pbspro": "#PBS", "torque": "#PBS", "lsf": "#BSUB", "sge": "#$"}


class Folder:
    """Files to render from, and the command line."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.capsys = path, capsys
        self.write("body.sh", "echo {jobname} $CLUSTERJOB_ID ${HOME}\n")

    def write(self, name: str, text: str) -> str:
        (self.path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
        return str(self.path / name)

    def run(self, *options: str) -> tuple[int, str, str]:
        arguments = ["script", *options]
        if "--body" not in options:
            arguments += ["--body", str(self.path / "body.sh")]
        try:
            status = main(arguments)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        captured = self.capsys.readouterr()
        return status, captured.out, captured.err.replace(str(self.path) + "/", "")

    def script(self, *options: str) -> str:
        status, out, err = self.run(*options)
        assert (status, err) == (0, "")
        return out

    def fault(self, *options: str) -> str:
        status, out, err = self.run(*options)
        assert (status, out, err.count("\n")) == (2, "", 1)
        return err.rstrip("\n")


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(tmp_path, capsys)


def test_a_script(folder: Folder) -> None:
    options = ["-r", "jobname=demo", "-r", "nodes=2", "-r", "ppn=32", "--resource", "threads=1", "-r", "account=x"]
    lines = folder.script("--scheduler", "slurm", *options, "-r", "exclusive=true", "-r", "hold=false").splitlines()
    assert lines[0] == "#!/bin/bash"
    assert sorted(lines[1:-2]) == [
        "#SBATCH --account=x",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --exclusive",
        "#SBATCH --job-name=demo",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=32",
    ]
    assert lines[-2:] == ["export OMP_NUM_THREADS=1", "echo demo $SLURM_JOB_ID ${HOME}"]


@pytest.mark.parametrize("name", PREFIXES)
def test_each_scheduler(folder: Folder, name: str) -> None:
    script = folder.script("--scheduler", name, "-r", "jobname=demo", "-r", "A=x", "-r", "time=2h")
    lines = script.splitlines()
    assert all(line.startswith(f"{PREFIXES[name]} -") for line in lines[1:-1])
    assert len(lines) == 5
    assert f"{PREFIXES[name]} -A x" in lines or f"{PREFIXES[name]} -P x" in lines


def test_a_profile_and_an_ini_file_are_layers_below_the_call(folder: Folder) -> None:
    profile = folder.write(
        "hpc.toml",
        'kind = "slurm"\nqueue = "batch"\n[resources]\naccount = "a"\nnodes = 1\nexclusive = true\n'
        '[attributes]\nscratch = "/s"\n',
    )
    ini = folder.write("job.ini", "[Attributes]\nscratch = /t\n[Resources]\nqueue = fast\nnodes = 2\nA-b = x\n")
    body = folder.write("b.sh", "cd {scratch}\n")
    script = folder.script("--profile", profile, "--ini", ini, "--body", body, "-r", "nodes=3", "-r", "account=")
    assert set(script.splitlines()) == {
        "#!/bin/bash",
        "#SBATCH --partition=fast",
        "#SBATCH --nodes=3",
        "#SBATCH --exclusive",
        "#SBATCH --A-b=x",
        "cd /t",
    }


def test_a_profile_changes_the_dialect(folder: Folder) -> None:
    profile = folder.write("ge.toml", 'kind = "sge"\nparallel_environment = "smp"\n')
    assert "#$ -pe smp 4\n" in folder.script("--profile", profile, "-r", "threads=4", "-r", "jobname=x")
    profile = folder.write("mem.toml", '[memory]\nper = "cpu"\n')
    script = folder.script(
        "--scheduler", "slurm", "--profile", profile, "-r", "mem=8GiB", "-r", "threads=4", "-r", "jobname=x"
    )
    assert "#SBATCH --mem-per-cpu=2048\n" in script


def test_a_profile_ignores_nodes_or_says_how_many(folder: Folder) -> None:
    ignoring = folder.write("i.toml", 'kind = "slurm"\nnodes = "ignore"\n')
    options = ["-r", "nodes=2", "-r", "ppn=32", "-r", "threads=1", "-r", "jobname=x"]
    script = folder.script("--profile", ignoring, *options)
    assert script.splitlines()[2:4] == ["#SBATCH --ntasks=64", "#SBATCH --cpus-per-task=1"]
    number = folder.write("n.toml", 'kind = "slurm"\nnodes = 3\n')
    assert "#SBATCH --nodes=3\n" in folder.script("--profile", number, "-r", "jobname=x")
    both = folder.write("b.toml", 'kind = "slurm"\nnodes = "ignore"\n[resources]\nnodes = 3\n')
    assert "#SBATCH --ntasks=3\n" in folder.script("--profile", both, "-r", "jobname=x")


def test_the_ini_file_names_the_scheduler(folder: Folder) -> None:
    ini = folder.write("job.ini", "[Attributes]\nbackend = pbs\n[Resources]\njobname = x\nnodes = 2\nthreads = 4\n")
    assert "#PBS -l nodes=2:ppn=4\n" in folder.script("--ini", ini)
    status, out, err = folder.run("--ini", ini, "--scheduler", "pbspro")
    assert (status, err) == (0, "warning: backend torque of the INI file is ignored; pbspro is used\n")
    assert "#PBS -l select=2:ncpus=4:mpiprocs=1:ompthreads=4\n" in out


def test_a_site(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = folder.write(
        "sites.toml",
        '[sites.hpc]\nkind = "lsf"\nssh_conn_id = "x"\nqueue = "night"\n[sites.here]\nkind = "local"\n',
    )
    monkeypatch.setenv("AIRFLOW__LADING__SITES_FILE", sites)
    assert "#BSUB -q night\n" in folder.script("--site", "hpc", "-r", "jobname=x")
    assert folder.fault("--site", "x") == "--site x: sites.toml has no such site; the sites are: hpc, here"
    assert folder.fault("--site", "here").startswith("scheduler 'local' is unknown; the schedulers are: ")
    monkeypatch.setenv("AIRFLOW__LADING__SITES_FILE", "")
    assert folder.fault("--site", "hpc").startswith("--site hpc: there is no [lading] sites_file; set it, or give")


def test_warnings_are_no_errors(folder: Folder) -> None:
    ini = folder.write("job.ini", "[Attributes]\nremote = login\nbackend = slurm\n")
    status, out, err = folder.run("--ini", ini)
    assert (status, out) == (0, "#!/bin/bash\necho {jobname} $SLURM_JOB_ID ${HOME}\n")
    assert err == (
        "warning: job.ini: remote ignored: the Airflow connection of the site takes their place\n"
        "warning: the body has {jobname}, but the job has no jobname; it stays as it is\n"
    )
    assert folder.fault("--ini", ini, "-r", "nodes=0").startswith("nodes: '0' is not valid")


BRACES = r"""docker ps --format '{{.Names}}'  # don't take '{mem}' for the shell's
jq '{time}' "it's '{queue}'" \' {nodes} $'{ppn}'
python - <<'END'
print(f"{jobname} isn't {{mem}}")
END
cat <<END
{threads}
END
"""


def test_what_may_have_been_meant_for_another_program_is_a_warning(folder: Folder) -> None:
    body = folder.write("braces.sh", BRACES)
    given = {"time": "2h", "mem": "1GiB", "queue": "q", "nodes": "2", "ppn": "3", "jobname": "x", "threads": "1"}
    options = [word for name, value in given.items() for word in ("-r", f"{name}={value}")]
    status, out, err = folder.run("--body", body, "--scheduler", "slurm", *options)
    assert status == 0
    assert "docker ps --format '{{.Names}}'  # don't take '1GiB'" in out
    assert "jq '2h' \"it's 'q'\" \\' 2 $'3'" in out
    assert 'print(f"x isn\'t {mem}")' in out
    assert err == (
        "warning: the body has {jobname} in quotes, which becomes 'x'; write {{jobname}} to keep {jobname}\n"
        "warning: the body has {ppn} in quotes, which becomes '3'; write {{ppn}} to keep {ppn}\n"
        "warning: the body has {time} in quotes, which becomes '2h'; write {{time}} to keep {time}\n"
        "warning: the body has {{mem}}, which becomes {mem}; write {{{mem}}} to keep {{mem}}\n"
    )


def test_bytes_come_out_as_they_went_in(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    body = folder.write("b.sh", "# caf\udce9\necho é\r\n")
    done = subprocess.run(
        [sys.executable, "-m", "lading.plugin.offline.command", "script", "--scheduler", "slurm", "--body", body],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
    )
    assert (done.stdout, done.stderr) == (b"#!/bin/bash\n# caf\xe9\necho \xc3\xa9\n", b"")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"true\r\n")))
    assert folder.script("--scheduler", "slurm", "--body", "-") == "#!/bin/bash\ntrue\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no scheduler is named; give --scheduler, --profile, --site or an INI file with backend; the schedulers"),
        (["--scheduler", "moab"], "scheduler 'moab' is unknown; the schedulers are: "),
        (["-r", "nodes"], "-r 'nodes' has no value; write KEY=VALUE, or nodes=true for a bare flag"),
        (["-r", "nodes=1", "-r", "nodes=2"], "-r nodes is given twice: '1' and '2'"),
        (["-r", "nodes=two"], "nodes: 'two' is not valid; valid: a whole number above 0"),
        (["-r", "time=soon"], "time: 'soon' is not a length of time"),
        (["-r", "=1"], "resource '' is not a name"),
        (["-r", "jobname=a\nb"], "jobname 'a\\nb' has the control character '\\n'"),
        (["-r", "account=a\n#SBATCH -x"], "account 'a\\n#SBATCH -x' has the control character '\\n'"),
        (["--body", "nowhere.sh"], "--body: nowhere.sh cannot be read: No such file or directory"),
        (["--ini", "nowhere.ini"], "nowhere.ini cannot be read: No such file or directory"),
        (["--profile", "nowhere.toml"], "nowhere.toml cannot be read: No such file or directory"),
        (["--profile", "a.toml", "--site", "x"], "--profile a.toml and --site x both describe the site"),
        (["--nonsense"], "lading: unrecognized arguments: --nonsense"),
    ],
)
def test_faults_are_one_line(folder: Folder, options: list[str], message: str) -> None:
    scheduler = [] if not options or "--scheduler" in options else ["--scheduler", "slurm"]
    assert folder.fault(*scheduler, *options).startswith(message)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("kind = ", "p.toml is not valid TOML: "),
        (
            'kindness = "slurm"',
            "p.toml: 'kindness' is unknown; did you mean kind? The keys are: kind, resources, attributes, ",
        ),
        ("kind = 4", "p.toml: kind = 4 is not text"),
        ('kind = "moab"', "scheduler 'moab' is unknown; the schedulers are: "),
        ('kind = "lsf"', "--scheduler slurm does not match the kind of the site, 'lsf'; leave --scheduler out"),
        ('resources = "x"', "p.toml: resources = 'x' is not a table; write [resources] and a line for each"),
        ("[resources]\nx = [1]", "p.toml: resources.x = [1] is not text, a number or a boolean"),
        (
            'queue = "a"\n[resources]\nqueue = "b"',
            "p.toml: queue is set both at the top level and in [resources]; keep one",
        ),
        ('[resources]\nQueue = "b"', "p.toml: 'Queue' is not 'queue'"),
        ('[memory]\nper = "house"', "p.toml: memory.per = 'house': "),
        ('[memory]\npre = "cpu"', "p.toml: 'memory.pre' is unknown"),
        ('nodes = "spread"', "p.toml: nodes = 'spread' is not valid; valid: a number or 'ignore'"),
        ('nodes = "ignore"\n[whole_node]\ncpus = 4', "p.toml: nodes = 'ignore' and whole_node contradict each other"),
    ],
)
def test_faults_of_profiles(folder: Folder, profile: str, message: str) -> None:
    path = folder.write("p.toml", profile)
    scheduler = ["--scheduler", "slurm"] if "kind" not in profile or "lsf" in profile else []
    assert folder.fault(*scheduler, "--profile", path).startswith(message)


def test_a_directive_in_the_body(folder: Folder) -> None:
    body = folder.write("b.sh", "true\n#PBS -q x\n")
    assert folder.fault("--scheduler", "slurm", "--body", body).startswith(
        "line 2 of the body is a directive: '#PBS -q x'; remove it"
    )


def test_it_imports_no_airflow_and_no_planner(folder: Folder) -> None:
    code = (
        "import sys; from lading.plugin.offline.command import main; status = main(sys.argv[1:]);"
        "print(status, [m for m in ('airflow', 'numpy', 'highspy', 'rich', 'sqlalchemy') if m in sys.modules])"
    )
    arguments = ["script", "--scheduler", "sge", "--body", str(folder.path / "body.sh"), "-r", "jobname=x"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("0 []\n")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("tim", "time"),
        ("tiem", "time"),
        ("timee", "time"),
        ("walltime", "time"),
        ("memory", "mem"),
        ("node", "nodes"),
        ("job-nam", "jobname"),
        ("thread", "threads"),
        ("que", None),
        ("quue", "queue"),
        ("pnp", "ppn"),
        ("shel", "shell"),
    ],
)
def test_a_slip_is_reported(folder: Folder, key: str, meant: str | None) -> None:
    status, out, err = folder.run("--scheduler", "slurm", "-r", f"{key}=5", "-r", "jobname=demo")
    assert status == 0
    assert f"#SBATCH --{key}=5" in out.splitlines()
    expected = f"warning: {key} becomes the directive --{key}=5; did you mean {meant}?\n"
    assert err == (expected if meant else "")


@pytest.mark.parametrize(
    "name",
    [
        "job-name",
        "job_name",
        "mem-per-cpu",
        "nodelist",
        "time-min",
        "requeue",
        "partition",
        "output",
        "tmp",
        "ntasks",
        "nice",
        "gres",
        "threads-per-core",
        "thread-spec",
        "mail-type",
        "exclusive",
        "mem-bind",
        "nodefile",
        "wait",
        "qos",
    ],
)
def test_slurms_own_directives_are_no_slips(folder: Folder, name: str) -> None:
    folder.write("body.sh", "echo\n")
    folder.script("--scheduler", "slurm", "-r", f"{name}=1")


def test_short_directives_are_no_slips(folder: Folder) -> None:
    folder.write("body.sh", "echo\n")
    for scheduler in ("pbspro", "torque", "lsf", "sge"):
        for key in ("A", "P", "M", "W", "app", "ti", "cwd", "is"):
            folder.script("--scheduler", scheduler, "-r", f"{key}=x")


@pytest.mark.parametrize(
    ("scheduler", "key"),
    [("pbspro", "pmem"), ("pbspro", "vmem"), ("torque", "pmem"), ("torque", "vmem"), ("sge", "tmem")],
)
def test_memory_by_other_names_is_no_slip(folder: Folder, scheduler: str, key: str) -> None:
    folder.write("body.sh", "echo\n")
    assert f"-l {key}=4gb" in folder.script("--scheduler", scheduler, "-r", f"{key}=4gb")
    _, _, err = folder.run("--scheduler", "slurm", "-r", f"{key}=4gb")
    assert "did you mean mem?" in err


@pytest.mark.parametrize("name", ["input", "Input_2", "in-put"])
def test_a_quoted_placeholder_without_a_property_is_refused(folder: Folder, name: str) -> None:
    """A shell would read it as plain text."""
    folder.write("body.sh", f"cat {{{name}!q}}\n")
    fault = folder.fault("--scheduler", "slurm", "-r", "jobname=demo")
    assert f"the body has {{{name}!q}}, but the job has no property {name!r}; it has jobname: give {name}" in fault
    folder.write("body.sh", f"cat {{{{{name}!q}}}} ${{{name}!q}} {{!q}} {{a b!q}} {{{name}!r}} {{1!q}}\n")
    assert f"cat {{{{{name}!q}}}} ${{{name}!q}} {{!q}} {{a b!q}} {{{name}!r}} {{1!q}}" in folder.script(
        "--scheduler", "slurm"
    )
