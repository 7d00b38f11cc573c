"""What the tests of the suite are made of: answers in other dress, and errors that are expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from lading.hooks.batch.system import NativeJob
from lading.hooks.conformance.inputs import BANNER
from lading.hooks.ssh.answer import CommandResult

E = TypeVar("E", bound=Exception)


def read(call: Callable[[CommandResult], object], kind: type[Exception], answer: CommandResult) -> object:
    """What is read in an answer; None: nothing can be."""
    try:
        return call(answer)
    except kind:
        return None


def dressed(answer: CommandResult) -> list[CommandResult]:
    """The answer as it is, with other lines around it, and with other ends of lines."""
    return [
        answer,
        replace(answer, stdout=BANNER + answer.stdout),
        replace(answer, stdout=answer.stdout.rstrip("\n") + "\n" + BANNER),
        replace(answer, stdout=answer.stdout.replace("\n", "\r\n")),
    ]


def compare(jobs: Sequence[NativeJob], expected: Sequence[Mapping[str, object]]) -> None:
    found = {(job.id, job.index): job for job in jobs}
    assert len(found) == len(jobs), "a job comes twice"
    assert set(found) == {(each["id"], each.get("index")) for each in expected}
    for each in expected:
        job = found[each["id"], each.get("index")]  # type: ignore[index]
        seen = {name: getattr(job, name) for name in each}
        assert seen == dict(each)


def raised_words(kind: type[Exception], call: Callable[..., object], *arguments: object) -> str:
    return str(raised(kind, call, *arguments))


def raised(kind: type[E], call: Callable[..., object], *arguments: object) -> E:
    try:
        result = call(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised, but {result!r} given")
