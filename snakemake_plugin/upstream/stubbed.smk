

# What follows is not of this workflow: each rule writes into its outputs what its command would have been, and runs
# nothing else. The rest is the workflow's own: files, wildcards, params, input functions, resources, groups.
rule lading_stub:
    output:
        "lading/stub",
    shell:
        "LADING STUB"


def stub_rules():
    import shlex
    import sys
    from pathlib import Path
    from types import FunctionType

    from snakemake.io import is_flagged

    def command_of(one):
        outputs = [
            f"{{output[{number}]:q}}" + ("/" if is_flagged(each, "directory") else "")
            for number, each in enumerate(one.output)
        ]
        text = one.shellcmd or f"{one.name} {{input}} {{params}} {{threads}} {{log}}"
        stub = shlex.join([sys.executable, str(Path(workflow.current_basedir, "stub.py"))])
        return f"{stub} {' '.join(outputs)} -- {{input:q}} <<'LADING END'\n{text}\nLADING END"

    template = next(each for each in workflow.rules if each.name == "lading_stub").run_func
    for one in workflow.rules:
        if one.norun or one.name == "lading_stub":
            continue
        one.shellcmd = command_of(one)
        for name in ("script", "notebook", "wrapper", "template_engine", "cwl"):
            setattr(one, name, None)
        # Of a wrapper it is where the wrapper is, and Snakemake notes its content.
        one.conda_env = None
        constants = tuple(one.shellcmd if each == "LADING STUB" else each for each in template.__code__.co_consts)
        code = template.__code__.replace(co_consts=constants)
        one.run_func = FunctionType(code, one.run_func.__globals__, one.name, template.__defaults__)


stub_rules()
