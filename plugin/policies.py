"""The cluster policy that checks hints when a Dag is parsed, and gives tasks the hints of their Dag and task groups.

Every Airflow process loads this module and calls it for every task of every Dag, so it imports little, and does only a
few look-ups for a task without hints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from lading.executors.orchestrator.executor_names import goes_to_lading
from lading.hooks.dags.teams import team_of_task
from lading.plugin.gang_checks import gang_hints
from lading.plugin.hint_checks import check, check_script, check_stage, known_bindings, known_sites
from lading.scheduling.hints.expressions import MEASURES, NAMES
from lading.scheduling.hints.hints import (
    HINT_KEY,
    INPUTS_KEY,
    LAYOUT_HINTS,
    HintError,
    Hints,
    given,
    merge,
    of_the_run,
    refuse_stray_hints,
    without_replaced,
)
from lading.scheduling.hints.patterns import input_names
from lading.scheduling.matching.bindings import FILTERS, binding
from lading.scheduling.text.printable import shortened

if TYPE_CHECKING:
    from airflow.sdk import DAG, BaseOperator
    from airflow.sdk.definitions.mappedoperator import MappedOperator

# The same marker as in airflow.policies. Importing that would import Airflow, which registers this module on import: if
# this module was imported first, Airflow would find it half initialized, without its policy.
hookimpl = pluggy.HookimplMarker("airflow.policy")

# The hints that determine where a task runs.
WHERE = frozenset(("site", "targets", "filters", "matching", "instance_type", "queue", "native", *LAYOUT_HINTS))


@hookimpl
def task_policy(task: BaseOperator | MappedOperator) -> None:
    """Merge the hints of Dag, task groups, operator and task into the task's ``executor_config``, and check them.

    Airflow calls this for one task of a Dag after the other, and stops at the first exception. So if a task is wrong,
    the tasks after it are checked as well, so that the author can fix all of them at once. A Dag policy could not do
    this: it is called before the task policies, and other task policies may still add hints.

    :raises AirflowClusterPolicyViolation: a hint is wrong; the Dag gets an import error with the same message
    """
    try:
        give_checked_hints(task)
    except HintError as error:
        from airflow.exceptions import AirflowClusterPolicyViolation

        faults = [in_task(task, error), *faults_behind(task)]
        # An import error lists the first 20 tasks with wrong hints.
        more = len(faults) - 20
        shown = faults[:20] + ([f"+ {more} more tasks with wrong hints"] if more > 0 else [])
        raise AirflowClusterPolicyViolation("\n".join(shown)) from error


def faults_behind(task: BaseOperator | MappedOperator) -> list[str]:
    """Return the faults of the hints of all tasks after a task in its Dag."""
    dag: DAG | None = task.get_dag()
    tasks = [] if dag is None else list(dag.tasks)
    position = next((number for number, each in enumerate(tasks, 1) if each is task), len(tasks))
    faults = []
    for following in tasks[position:]:
        try:
            give_checked_hints(following)
        except HintError as error:
            faults.append(in_task(following, error))
    return faults


def in_task(task: BaseOperator | MappedOperator, error: HintError) -> str:
    return f"Dag {task.dag_id!r}, task {task.task_id!r}: {error}"


def give_checked_hints(task: BaseOperator | MappedOperator) -> None:
    """Set the merged hints of all levels on a task, if it runs on Lading.

    :raises HintError: a hint is wrong
    """
    team = team_of_task(task)
    ours, is_script = goes_to_lading(task.executor, team), needs_sites_file(task)
    if not (ours or is_script) or runs_a_task():
        return
    if is_script:
        check_script(task)
    if not ours:
        return
    if not getattr(task, "takes_hints", True):
        check(
            Hints(), task.dag_id, team
        )  # the tasks that a scatter adds around its jobs need almost nothing, but they need a site
        return
    above, of_operator, own = executor_configs(task)
    for config in (*above, of_operator, own):
        refuse_stray_hints(config)
    authored = merged(task)
    hints = with_binding(authored, task)
    if is_script and not WHERE & merge(*levels(task)[-2:]).keys():
        hints = beside_the_sites_file(hints)
    parsed = Hints.parse(hints)
    if parsed.gang is not None:
        hints |= gang_hints(
            task,
            parsed.gang,
            lambda each: merged(each).get("gang"),
            lambda each: with_binding(merged(each), each),
        )
        parsed = Hints.parse(hints)
    inputs = sources(task, parsed, is_bound="matching" not in authored)
    if hints or inputs:
        give(task, hints, inputs)
    check(parsed, task.dag_id, team)
    if parsed.stage:
        check_stage(parsed, inputs, task.dag_id, team)


def levels(task: BaseOperator | MappedOperator) -> list[Mapping[str, object]]:
    """Return the hints of Dag, task groups, operator and task.

    :raises HintError: the value of the key is not a mapping
    """
    above, of_operator, own = executor_configs(task)
    return [of_the_run(given(above[0])), *map(given, above[1:]), given(of_operator), given(own)]


def merged(task: BaseOperator | MappedOperator) -> dict[str, object]:
    """Merge the hints of all levels.

    :raises HintError: the value of the key is not a mapping
    """
    return merge(*without_replaced(*levels(task)))


def with_binding(hints: dict[str, object], task: BaseOperator | MappedOperator) -> dict[str, object]:
    """Add the targets that the sites file binds a task to, unless the task names a site or targets itself."""
    if needs_sites_file(task) or any(hints.get(name) is not None for name in ("site", "targets")):
        return hints
    groups = []
    group = task.task_group
    while group is not None and group.group_id is not None:
        groups.append(group.group_id)
        group = group.parent_group
    found = binding(known_bindings(), task.dag_id, task.task_id, groups)
    return hints if found is None else {**hints, **found.hints()}


def executor_configs(task: BaseOperator | MappedOperator) -> tuple[list[Any], Any, Any]:
    """Return the ``executor_config`` of Dag and task groups, outermost first; of the operator; and of the task itself.

    A task without one gets the same object as the innermost ``default_args`` (``_apply_defaults`` of
    :class:`airflow.sdk.bases.operator.BaseOperatorMeta`), which does not count as the task's own. That of an operator
    is a class attribute, which Airflow ignores.
    """
    dag: DAG | None = task.get_dag()
    above = [dag.default_args.get("executor_config") if dag is not None else None]
    groups = []
    group = task.task_group
    while group is not None:
        groups.append(group.default_args.get("executor_config"))
        group = group.parent_group
    above += reversed(groups)
    own: Any = task.executor_config
    is_inherited = any(own is each for each in above)
    return above, getattr(operator_class(task), "executor_config", None), None if is_inherited else own


def operator_class(task: BaseOperator | MappedOperator) -> Any:
    return getattr(task, "operator_class", type(task))


def needs_sites_file(task: BaseOperator | MappedOperator) -> bool:
    """Whether the task itself reads the sites file on the machine where it runs, like JobScriptOperator."""
    return bool(getattr(operator_class(task), "needs_sites_file", False))


def beside_the_sites_file(hints: Mapping[str, object]) -> dict[str, object]:
    """Return the hints of a task that reads the sites file: it has to run at a site that has the file.

    :raises HintError: no site has it
    """
    kept = {name: value for name, value in hints.items() if name not in WHERE}
    known, _ = known_sites()
    if not known:
        return kept
    sites = [name for name, site in known.items() if site.has_sites_file]
    if not sites:
        raise HintError(
            "the task reads the sites file, but no site runs jobs on a machine that has it: remove `enabled = "
            "false` from [sites.local], or name a site whose machines have the file, too, as in "
            f"executor_config=resources(site={next(iter(known))!r})"
        )
    return {**kept, "site": sites[0]}


def sources(task: BaseOperator | MappedOperator, hints: Hints, *, is_bound: bool = False) -> dict[str, Any]:
    """Return, for the controller, the sources of the inputs that hints, plugins or policies of sites can depend on;
    ``{}``: of none.

    :param is_bound: whether the patterns come from the sites file, where they apply to many tasks with various inputs
    :raises HintError: a hint uses an input that the task does not have
    """
    matched = dict(input_names(hints.matching))
    patterns = matched.keys() | {*hints.stage}
    sites = known_sites()[0].values()
    needs_files = any(site.needs_files for site in sites)
    needs_values = any(site.needs_inputs for site in sites) or not set(hints.filters) <= FILTERS.keys()
    if not (hints.expressions or hints.auto or patterns or needs_files or needs_values):
        return {}
    from lading.operators.scattering import input_sources

    known = input_sources.names(task) if hints.expressions or patterns else set()
    if (strange := sorted({*hints.stage} - known)) and not input_sources.takes_rows(task):
        valid = ", ".join(sorted(known)) or "none"
        raise HintError(f"hint stage: {strange[0]!r} is not an input of the task; its inputs: {valid}")
    if not is_bound and matched.keys() - known and not input_sources.takes_rows(task):
        # An optional input that this task does not set is valid, too; no pattern matches it.
        could_be = input_sources.declared(task)
        if strange := sorted(matched.keys() - could_be):
            valid = ", ".join(sorted(could_be)) or "none"
            raise HintError(
                f"hint matching: {shortened(strange[0])}, which has a pattern for target {matched[strange[0]]!r}, is "
                f"not an input of the task; its inputs: {valid}"
            )
    for name, expression in hints.expressions.items():
        unknown = sorted(expression.inputs - known)
        if unknown and not input_sources.takes_rows(task):
            valid = ", ".join(sorted(known)) or "none"
            raise HintError(
                f"hint {name}: {expression.text!r} uses {unknown[0]}, which is not an input of the task; "
                f"its inputs: {valid}; other names: {', '.join(NAMES)}"
            )
    every = (
        needs_files
        or needs_values
        or bool(hints.auto)
        or any(expression.uses(name) for expression in hints.expressions.values() for name in MEASURES)
    )
    used = {name for expression in hints.expressions.values() for name in expression.inputs} | patterns & known
    if hints.expressions or patterns:
        return input_sources.of_task(task, None if every else used)
    try:
        found = input_sources.of_task(task, None)
    except (TypeError, ValueError):  # the signature of its function cannot be read
        return {}
    has_inputs = any(found.get(each) for each in ("fixed", "mapped", "rows"))
    return found if (needs_values and has_inputs) or may_name_files(found) else {}


def may_name_files(sources: Mapping[str, Any]) -> bool:
    from lading.executors.sizing.file_sizes import named_files

    every = [*sources["fixed"].values(), *sources.get("mapped", {}).values(), sources.get("rows", {})]
    return any({"xcom", "outputs"} & each.keys() or any(named_files(each.get("value", 0))) for each in every)


def give(task: BaseOperator | MappedOperator, hints: Mapping[str, object], inputs: Mapping[str, Any]) -> None:
    """Set the hints of a task, in a new ``executor_config``, because other tasks can share the old one.

    :param inputs: the sources of the inputs that the hints depend on
    :raises HintError: the task's own ``executor_config`` is not a mapping
    """
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    own: object = task.executor_config
    if not isinstance(own, Mapping):
        raise HintError(f"executor_config is {own!r}, which cannot carry the hints of the Dag; valid: a dict")
    config = {**own, HINT_KEY: dict(hints), **({INPUTS_KEY: dict(inputs)} if inputs else {})}
    if isinstance(task, MappedOperator):
        task.partial_kwargs["executor_config"] = config
    else:
        task.executor_config = config


def runs_a_task() -> bool:
    """Whether the Dag is parsed to run one of its tasks. It was checked before, and the sites can be unknown here."""
    from airflow.sdk import get_parsing_context

    return get_parsing_context().task_id is not None
