"""What runs is what Snakemake's own executor runs, to the letter: generated workflows, and cases of their own."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import forking
import pytest
from flows import Workflow
from snakemake_executor_plugin_lading import direct

Make = Callable[[str], Workflow]

# What a command leaves: its own text, as the shell has it, and the variables that Snakemake sets or must not set.
REPORT = (
    r"""printf '%s\\n' "$BASH_EXECUTION_STRING" "$OMP_NUM_THREADS" "${{n-unset}} ${{f-unset}} ${{MARK-unset}}" """
    r""""$([ "$TMPDIR" = "$TMP" ] && [ "$TEMP" = "$TMP" ] && echo same)" > {output:q}"""
)
# What is formatted into a command, of which each place has values of its own.
FIELDS = (
    "{config[k]}", "{config[deep][k]}", "{VALUE}", "{VALUE!r}", "{THING.attribute}", "{LIST}", "{LIST[1]:q}",
    "{LIST:q}", "{params.constant}", "{params.function:q}", "{params.of_input:q}", "{params.of_resources}",
    "{params.table[x]}", "{params.wild:q}", "{params}", "{wildcards.w:q}", "{input:q}", "{input.given:q}",
    "{input[0]:q}", "{threads}", "{resources.mem_mb}", "{resources.weight}", "{log:q}", "{rule}", "{{braces}}",
    "${{VALUE-unset}}", "'$HOME'", "{params.of_attempt}",
)  # fmt: skip
WILDCARDS = ("a", "it's", 'say "x"', "$HOME", "a b", "ü", "*")
PARAMS = """
        constant="constant of PLACE",
        function=lambda wildcards: f"{VALUE} {wildcards.w}",
        of_input=lambda wildcards, input: [each.upper() for each in input],
        of_resources=lambda wildcards, resources, threads: resources.mem_mb * threads,
        of_attempt=lambda wildcards, resources: resources.weight,
        table={"x": "PLACE"},
        wild="wild {w}","""


def shell_of(rng: random.Random) -> str:
    """A shell directive, of one of the kinds of expressions that people write there."""
    fields = rng.sample(FIELDS, 6)
    text = ": " + " ".join(f"'<'{each}'>'" if each.endswith("q}") else f'"{each}"' for each in fields)
    return rng.choice(
        (
            f"{text + '; ' + REPORT!r}",
            f"{text!r} '; ' {REPORT!r}",
            f"command_of({text!r})",
            f"PREFIX + {text!r} + '; ' + REPORT",
            f'f": {{VALUE}} {{config[\'k\']}}; " + {text!r} + "; " + REPORT',
            f"({text!r} if FLAG else ': ') + '; ' + REPORT",
        )
    )


def rule_of(rng: random.Random, name: str, place: str) -> str:
    return f"""
rule {name}:
    input: given="given.txt", also=lambda wildcards: ["given.txt", "more.txt"][:{rng.randint(1, 2)}]
    output: "out/{name}.{{w}}.txt"
    log: "log/{name}.{{w}}.log"
    params:{PARAMS.replace("PLACE", place)}
    threads: {rng.randint(1, 2)}
    resources: mem_mb={rng.randint(100, 200)}, weight=lambda wildcards, attempt: attempt * {rng.randint(2, 9)}
    shell: {shell_of(rng)}
"""


def globals_of(rng: random.Random, place: str) -> str:
    return f"""
from types import SimpleNamespace
VALUE, LIST, FLAG = "value of {place}", ["{place}", "it's {rng.random()}"], {rng.random() < 0.5}
THING, PREFIX = SimpleNamespace(attribute="{place}'s"), ": prefix of {place}; "
REPORT = {REPORT!r}
def command_of(text):
    return ": by {{VALUE}}; " + text + "; " + REPORT
"""


def generate(seed: int) -> tuple[dict[str, str], list[str]]:
    """The files of a workflow with modules in modules, includes and rules that are used again; and its outputs."""
    rng = random.Random(seed)
    files, names = {"given.txt": "1\n", "more.txt": "2\n"}, []

    def rules(place: str, prefix: str = "") -> str:
        made = [f"{place}{number}" for number in range(2)]
        names.extend(f"{prefix}{each}" for each in made)
        return "".join(rule_of(rng, each, place) for each in made)

    def config(place: str) -> str:
        return f'{{"k": "k of {place}", "deep": {{"k": "deep of {place}"}}}}'

    # Of every other workflow all jobs but one are known only after a checkpoint.
    targets = "checkpoints.plan.get().output[0]" if seed % 2 else "'targets'"
    late = 'VALUE = "value that was redefined"\nPREFIX = ": other prefix; "\n'
    files["included.smk"] = rules("included") + 'LIST = ["changed", "by include"]\n'
    files["part.smk"] = rules("part") + rng.choice(("", 'VALUE = "value by the include"\n'))
    files["nested.smk"] = globals_of(rng, "nested") + rules("nested", "inner_") + rng.choice(("", late))
    # The names of outputs say which rule of which file: a rule has the same function by every name.
    files["module.smk"] = f"""{globals_of(rng, "module")}{rules("module")}
include: "part.smk"
module inner:
    snakefile: "nested.smk"
    config: {rng.choice(("config", config("nested")))}
use rule * from inner as inner_*
{rng.choice(("", late))}"""
    derived = '\n        constant="of the user {w}",\n        function="const",\n        of_input="i",'
    derived += '\n        of_resources=lambda wildcards, resources: resources.mem_mb,\n        table={"x": VALUE},'
    derived += '\n        of_attempt=1,\n        wild="w"\n'
    files["Snakefile"] = f"""
config.update({config("top")})
rule all:
    input: "list.txt"
{globals_of(rng, "top")}
include: "included.smk"
{rules("top")}
use rule top0 as again with:
    output: "out/again.{{w}}.txt"
    params:{derived}
module outer:
    snakefile: "module.smk"
    config: {config("module")}
use rule * from outer as outer_*
use rule module0 from outer as outer_module0 with:
    output: "out/module0.{{w}}.txt"
    params:{derived}
{rng.choice(("", late))}
{rng.choice(("", 'shell.prefix(f"set -euo pipefail; : {VALUE!r}; ")', 'shell.suffix("; true")'))}
checkpoint plan:
    input: "targets"
    output: "plan.txt"
    shell: "cp {{input}} {{output}}"
rule list:
    input: lambda wildcards: open({targets}).read().splitlines()
    output: "list.txt"
    run:
        open(output[0], "w").close()
"""
    names.append("again")
    outputs = [f"out/{name.removeprefix('inner_')}.{rng.choice(WILDCARDS)}.txt" for name in names]
    files["targets"] = "\n".join(outputs)
    return files, outputs


def write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def run_plainly(folder: Path, *options: str) -> None:
    """Run a workflow with Snakemake's own local executor."""
    done = forking.run("snakemake", "--cores", "4", *options, cwd=folder)
    assert done.returncode == 0, done.stderr


def run_both(make: Make, tmp_path: Path, files: Mapping[str, str], *options: str) -> tuple[Workflow, Path]:
    """Run the same files with Lading and with Snakemake's own executor."""
    plain = tmp_path / "plain"
    write(plain, files)
    run_plainly(plain, *options)
    flow = make(files["Snakefile"])
    write(flow.folder, files)
    flow.run(*options)
    return flow, plain


def direct_tasks(flow: Workflow) -> list[str]:
    """The tasks whose jobs started no Snakemake."""
    rows = [(task, json.loads(workload)["arguments"]) for task, workload in flow.jobs("task_id, workload")]
    return [task for task, arguments in rows if arguments[1:3] != ["-m", "snakemake"]]


@pytest.mark.parametrize("seed", range(4))
def test_a_command_is_the_one_that_snakemakes_own_executor_runs(make: Make, tmp_path: Path, seed: int) -> None:
    files, outputs = generate(seed)
    flow, plain = run_both(make, tmp_path, files)
    differences = {
        name: (ours, theirs)
        for name in outputs
        if (ours := (flow.folder / name).read_text()) != (theirs := (plain / name).read_text())
    }
    assert differences == {}
    planned = ["plan"] if (plain / "plan.txt").exists() else []
    assert len(direct_tasks(flow)) == len(outputs + planned), "each of them is certain"
    assert bool(planned) == bool(seed % 2)


def test_a_checkpoint_of_a_module_takes_the_branch_of_its_own_config(make: Make, tmp_path: Path) -> None:
    files = {
        "Snakefile": """
config["way"] = "left"
module part:
    snakefile: "part.smk"
    config: {"way": "right"}
use rule * from part as part_*
""",
        "part.smk": """
def chosen(wildcards):
    with open(checkpoints.decide.get().output[0]) as file:
        return f"{file.read().strip()}.txt"
rule all:
    input: chosen
    default_target: True
checkpoint decide:
    output: "way"
    shell: "echo {config[way]} > {output}"
rule go:
    output: "{way,left|right}.txt"
    shell: "echo {config[way]} {wildcards.way} > {output}"
""",
    }
    flow, plain = run_both(make, tmp_path, files)
    for folder in (flow.folder, plain):
        assert (folder / "right.txt").read_text() == "right right\n"
        assert not (folder / "left.txt").exists()
    assert sorted(direct_tasks(flow)) == ["part_decide", "part_go"]


REDEFINED = """
VALUE = "before of PLACE"
def redefine(wildcards):
    global VALUE
    VALUE = f"after of PLACE for {wildcards.w}"
    return VALUE
rule PLACE:
    input: "given.txt"
    output: "PLACE.{w}.txt"
    params: now=redefine
    shell: "echo '{VALUE} {params.now}' > {output}"
"""


def test_a_function_that_redefines_a_global_does_so_for_the_command_of_its_module(make: Make, tmp_path: Path) -> None:
    files = {
        "Snakefile": """
rule all:
    input: "top.x.txt", "inner.x.txt"
module part:
    snakefile: "part.smk"
use rule * from part as part_*
"""
        + REDEFINED.replace("PLACE", "top"),
        "part.smk": REDEFINED.replace("PLACE", "inner"),
        "given.txt": "",
    }
    flow, plain = run_both(make, tmp_path, files)
    for place in ("top", "inner"):
        said = f"after of {place} for x"
        assert (flow.folder / f"{place}.x.txt").read_text() == f"{said} {said}\n"
        assert (plain / f"{place}.x.txt").read_text() == f"{said} {said}\n"
    assert sorted(direct_tasks(flow)) == ["part_inner", "top"]


IN_DOUBT = r"""
rule all:
    input: expand("{name}.txt", name=["plain", "field", "all_of_them", "params", "expression", "given"])
REPORT = "echo $([ '{params.p}' = \"$TMPDIR\" ] && echo same) ${{n-unset}} ${{f-unset}} ${{TMP#$TMPDIR}} "
def of_tmpdir(wildcards, resources):
    return resources.tmpdir
rule plain:
    output: "plain.txt"
    resources: mem_mb=100
    params: p=lambda wildcards, resources: resources.mem_mb
    shell: REPORT + "> {output}"
rule field:
    output: "field.txt"
    params: p=""
    shell: "[ {resources.tmpdir} = $TMPDIR ] && echo same > {output}"
rule all_of_them:
    output: "all_of_them.txt"
    shell: "case '{resources}' in *\"$TMPDIR\"*) echo same > {output};; esac"
rule params:
    output: "params.txt"
    params: p=of_tmpdir
    shell: REPORT + "> {output}"
rule expression:
    output: "expression.txt"
    shell: "echo " + ("set" if "resources" in locals() and resources.tmpdir else "unset") + " > {output}"
rule given:
    output: "given.txt"
    resources: tmpdir="given"
    shell: "echo $TMPDIR $TMP > {output}"
"""


def test_what_is_known_only_where_a_job_runs_is_left_to_a_snakemake(make: Make, tmp_path: Path) -> None:
    flow, plain = run_both(make, tmp_path, {"Snakefile": IN_DOUBT})
    for folder in (flow.folder, plain):
        assert (folder / "plain.txt").read_text() == "unset unset\n"
        assert (folder / "field.txt").read_text() == "same\n"
        assert (folder / "all_of_them.txt").read_text() == "same\n"
        assert (folder / "params.txt").read_text() == "same unset unset\n"
        assert (folder / "expression.txt").read_text() == "set\n"
        assert (folder / "given.txt").read_text() == "given given\n"
    assert sorted(direct_tasks(flow)) == ["plain"]


def test_a_shell_of_the_snakefiles_own_runs_in_a_snakemake(make: Make, tmp_path: Path) -> None:
    text = """
from snakemake.shell import shell as snakemakes
def shell(command, **options):
    snakemakes(command.replace("mine", "theirs"))
rule all:
    output: "all.txt"
    shell: "echo mine > all.txt"
"""
    flow, plain = run_both(make, tmp_path, {"Snakefile": text})
    assert (flow.folder / "all.txt").read_text() == (plain / "all.txt").read_text() == "theirs\n"
    assert direct_tasks(flow) == []


def test_commands_have_the_environment_that_a_snakefile_sets(make: Make, tmp_path: Path) -> None:
    text = """
import os
def mark(wildcards):
    if os.path.exists("first.txt"):
        os.environ["MARK"] = "set"
rule all:
    input: "first.txt"
    output: "all.txt"
    params: mark
    shell: "echo ${{MARK-unset}} > {output}"
rule first:
    output: "first.txt"
    shell: "touch {output}"
"""
    flow, plain = run_both(make, tmp_path, {"Snakefile": text})
    assert (flow.folder / "all.txt").read_text() == (plain / "all.txt").read_text() == "set\n"
    assert direct_tasks(flow) == ["first"]


def test_a_command_whose_input_does_not_appear_fails(tmp_path: Path) -> None:
    there, missing = tmp_path / "it's there", tmp_path / "missing"
    there.touch()
    start = [*direct.start_command(1, has_tmpdir=False), "bash", 'echo "ran ${n-unset}"; true']
    done = subprocess.run([*start, there], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ran unset\n")
    done = subprocess.run([*start, there, missing], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"input {missing} is missing after 1 s" in done.stderr
