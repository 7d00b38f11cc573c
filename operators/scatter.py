"""``scatter``: run one annotated task as many jobs, and gather their outputs into one value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lading.scheduling.hints.hints import HINT_KEY
from lading.scheduling.scatter import DOTPRODUCT, ScatterError, check_method, job_count, not_a_list

if TYPE_CHECKING:
    from airflow.sdk import XComArg


def scatter(
    task: Any,
    /,
    *,
    method: str | None = None,
    max_instances: int | None = None,
    max_jobs: int | None = None,
    resources: Mapping[str, Any] | None = None,
    chunk_size: int | None = None,
    **inputs: Any,
) -> XComArg:
    """Run a task once per element, or combination of elements, of its inputs::

        bams = scatter(align.partial(ref=REF), sample=samples(), region=["chr1", "chr2"], method="nested_crossproduct")

    Each job is a mapped task instance with its own log and retries. A small task before them plans the jobs, and
    another one after them gathers their outputs.

    :param task: a TaskFlow function, or the result of ``.partial(...)`` on one or on an operator class
    :param method: ``dotproduct``: first elements together, second elements together, and so on; ``flat_crossproduct``:
        every combination, the first input varying slowest; ``nested_crossproduct``: the same, with outputs nested one
        level per input. Not needed for a single input
    :param max_instances: how many machines the jobs can use at once in one run of the Dag
    :param max_jobs: how many of the jobs can run at once in one run of the Dag
    :param resources: the result of ``resources(...)``: hints for the jobs, which override those of the task
    :param chunk_size: how many elements one task instance runs; without it, one, or as few as ``[core] max_map_length``
        allows
    :param inputs: by parameter of the task, in scatter order: a list, a tuple, a dict (its key-value pairs), or the
        output of a task
    :return: an input for downstream tasks: a sequence of the outputs, nested if the method nests them
    :raises ScatterError: invalid arguments; errors that depend on the output of a task are raised once it has run
    """
    from airflow.sdk import XComArg

    from lading.operators.scattering.tasks import Template, build

    check_method(method, inputs)
    check_literals(method, {name: value for name, value in inputs.items() if not isinstance(value, XComArg)})
    check_positive("max_instances", max_instances)
    check_positive("max_jobs", max_jobs)
    check_positive("chunk_size", chunk_size)
    template = Template.from_task(task)
    template.check_inputs(inputs)
    hints = given_hints(resources)
    limits = {"max_instances": max_instances, "max_jobs": max_jobs}
    hints |= {name: most for name, most in limits.items() if most is not None}
    return build(template, inputs, method, hints, chunk_size)


def check_literals(method: str | None, literals: Mapping[str, object]) -> None:
    """Check the inputs that are known when the Dag is parsed.

    :raises ScatterError: one is not a list, or their lengths do not match
    """
    lengths = {}
    for name, value in literals.items():
        if not isinstance(value, (list, tuple, dict)):
            raise not_a_list(name, value)
        lengths[name] = len(value)
    if method == DOTPRODUCT and lengths:
        job_count(method, lengths)


def check_positive(name: str, value: object) -> None:
    """Check that a limit is a positive whole number.

    :raises ScatterError: it is not
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ScatterError(f"{name} is {value!r}; valid: a whole number of at least 1")


def given_hints(resources: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the hints in the result of ``resources(...)``.

    :raises ScatterError: the value is something else
    """
    if resources is None:
        return {}
    hints = resources.get(HINT_KEY) if isinstance(resources, Mapping) else None
    if not isinstance(hints, Mapping):
        raise ScatterError(
            f'resources is {resources!r}; valid: the result of resources(...), as in resources(memory="4 GiB")'
        )
    return dict(hints)
