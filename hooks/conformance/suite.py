"""The test suite that every batch system must pass, whether built in or from a third party.

Derive a class from :class:`Conformance` in a module that pytest collects, name the batch system, and supply recorded
answers of its commands with their meaning::

    class TestNomad(Conformance):
        system = Nomad()
        accepted = [(Answer(0, "Submitted 17\\n"), "17")]
        ...

For recording such answers, see ``docs/how_to/new_batch_system.md``. This module does not import pytest. To test a batch
system against a real server, run ``python -m lading.hooks.conformance --live SYSTEM``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import ClassVar, get_args

from lading.hooks.batch.inventory import Inventory
from lading.hooks.batch.status_query import StatusQuery
from lading.hooks.batch.system import (
    ArrayRange,
    BatchJobRequest,
    BatchSystem,
    CancelError,
    Cause,
    CouldNotAsk,
    Profile,
    State,
    SubmitError,
    Unsupported,
)
from lading.hooks.conformance.inputs import (
    BANNER,
    FOREIGN,
    GARBAGE,
    NAMES,
    RESOURCES,
    compare,
    dressed,
    raised,
    raised_message,
    read_answer,
)
from lading.hooks.job_scripts.substitution import CORE_VARIABLES
from lading.hooks.ssh.answer import CommandResult


class Conformance:
    """The requirements. A derived class sets the variables; those with a default are optional.

    :cvar system: the batch system
    :cvar profile: the profile of a site that can provide everything
    :cvar accepted: answers to a submission, each with the native id
    :cvar refused: answers to a submission, each with the kind of the error
    :cvar queues: answers to a status query, each with its jobs; fields that a job does not list are not compared
    :cvar accounts: the same for accounting
    :cvar surveyed: answers to the survey command, each with its nodes and queues; empty: it has no survey
    :cvar questions: ids of one query, the answer, and for each id a state of its jobs in it, ``unknown`` if the answer
        says so, or None if the answer does not mention it, so that nothing is known
    :cvar foreign: answers of batch systems by name; those of other systems must be rejected
    :cvar nothing: answers to a status query without jobs: there are none, or those queried are gone. None of the
        answers is empty, because an empty one does not prove that the command has contacted the server
    :cvar unreachable: answers to a status query that tell nothing
    :cvar strange: an answer to a status query about one job, in a state that no manual lists
    :cvar hopeless: answers to a status query about one job that can never start, whatever changes
    :cvar not_launched: the same for a job that a node could not start, and that is held because of that
    :cvar never: the same for a job that cannot start now, but could if an administrator changes something
    :cvar killed_for_memory: outputs of jobs that were killed for exceeding memory, if its wording has ``memory``
    :cvar cancelled: answers to an accepted cancellation, including those for jobs that had already finished, and for
        jobs already being cancelled, because a cancellation can be repeated
    :cvar not_cancelled: answers to a cancellation that was not accepted
    :cvar conflicts: requests, each with a native directive that sets the same option
    :cvar listing: creates the answer to a status query that lists running jobs with these numbers and names
    :cvar names: job names that ``listing`` can show
    """

    system: ClassVar[BatchSystem]
    profile: ClassVar[Profile] = Profile()
    accepted: ClassVar[Sequence[tuple[CommandResult, str]]]
    refused: ClassVar[Sequence[tuple[CommandResult, str]]]
    queues: ClassVar[Sequence[tuple[CommandResult, Sequence[Mapping[str, object]]]]]
    accounts: ClassVar[Sequence[tuple[CommandResult, Sequence[Mapping[str, object]]]]] = ()
    surveyed: ClassVar[Sequence[tuple[CommandResult, Inventory]]] = ()
    questions: ClassVar[Sequence[tuple[Sequence[str], CommandResult, Mapping[str, str | None]]]] = ()
    foreign: ClassVar[Mapping[str, Sequence[CommandResult]]] = FOREIGN
    nothing: ClassVar[Sequence[CommandResult]]
    unreachable: ClassVar[Sequence[CommandResult]]
    strange: ClassVar[CommandResult]
    hopeless: ClassVar[Sequence[CommandResult]] = ()
    not_launched: ClassVar[Sequence[CommandResult]] = ()
    never: ClassVar[Sequence[CommandResult]] = ()
    killed_for_memory: ClassVar[Sequence[str]] = ()
    cancelled: ClassVar[Sequence[CommandResult]]
    not_cancelled: ClassVar[Sequence[CommandResult]]
    conflicts: ClassVar[Sequence[tuple[BatchJobRequest, str, str]]]
    listing: ClassVar[Callable[[Sequence[tuple[int, str]]], CommandResult]]
    names: ClassVar[Sequence[str]] = NAMES

    # -- requests

    def test_every_common_resource_has_a_directive(self) -> None:
        for name, value in RESOURCES.items():
            # A base request; each resource that is added to it has to change the directives.
            asked: dict[str, object] = {"nodes": 1, "ppn": 1, "threads": 2}
            without = self._directives(**asked)
            given = self._directives(**{**asked, name: value})
            assert given != without, f"{name} = {value!r} makes no difference"

    def test_nothing_asked_for_makes_no_directive(self) -> None:
        assert self.system.directives(BatchJobRequest(), Profile()) == []

    def test_a_directive_is_one_line_with_a_dash(self) -> None:
        for directive in self._directives(**RESOURCES):
            assert directive.startswith("-"), directive
            assert "\n" not in directive

    def test_time_is_rounded_up_to_the_grain(self) -> None:
        grain = self.system.grain
        whole = self._directives(time=60 * grain)
        assert self._directives(time=60 * grain - grain + 1) == whole
        assert self._directives(time=60 * grain + 1) != whole

    def test_native_directives(self) -> None:
        flag = self.system.native_directive("V", True)
        assert flag in self._directives(native={"V": True})
        assert self._directives(native={"V": None, "A": False}) == []
        assert any("a_value" in directive for directive in self._directives(native={"A": "a_value"}))

    def test_a_native_directive_that_says_what_lading_says_is_refused(self) -> None:
        for request, key, value in self.conflicts:
            asked = replace(request, native={key: value})
            assert value in raised_message(Unsupported, self.system.directives, asked, self.profile)

    def test_arrays(self) -> None:
        first = self.system.first_index
        text = f"{first}-{first + 9}"
        asked = self._directives(jobname="j", array=ArrayRange(text, 2))
        assert any(text in directive for directive in asked)
        assert any("2" in directive for directive in asked if text not in directive or "%2" in directive)
        small = Profile(**{**self.profile.model_dump(), "max_array_size": 9})
        request = BatchJobRequest(array=ArrayRange(text))
        assert "max_array_size" in raised_message(Unsupported, self.system.directives, request, small)
        if first:
            raised_message(Unsupported, self.system.directives, BatchJobRequest(array=ArrayRange("0-9")), self.profile)

    def test_what_nodes_there_are(self) -> None:
        survey = self.system.survey
        assert (survey is None) == (not self.surveyed), "a survey needs a recorded answer, and vice versa"
        for answer, there in self.surveyed:
            assert survey is not None
            assert [survey.inventory(each) for each in dressed(answer)] == [there] * 4
            for bad in (
                CommandResult(None),
                CommandResult(127, "", "not found"),
                CommandResult(1, answer.stdout),
                CommandResult(0),
                *GARBAGE,
            ):
                raised(CouldNotAsk, survey.inventory, bad if isinstance(bad, CommandResult) else CommandResult(0, bad))

    def test_nodes_to_keep_away_from(self) -> None:
        request = BatchJobRequest(excluded_nodes=("a_node", "node-2.example.org"))
        if self.system.exclusion is None:
            assert "a_node" in raised_message(Unsupported, self.system.directives, request, self.profile)
            return
        (directive,) = self.system.directives(request, self.profile)
        assert directive.startswith("-")
        assert all(node in directive for node in request.excluded_nodes)
        assert self._directives(excluded_nodes=()) == self._directives()

    def test_core_variables(self) -> None:
        assert set(self.system.variables) == set(CORE_VARIABLES)
        assert all(expression.startswith("$") for expression in self.system.variables.values())

    # -- commands

    def test_commands_are_words(self) -> None:
        id = self.accepted[0][1]
        since = datetime(2026, 11, 20, 19, 37)
        commands = [
            self.system.submit("/a folder/job.sh"),
            self.system.status("a_user"),
            self.system.status("a_user", [id]),
            self.system.cancel([id, self.system.element(id, 3)]),
            self.system.accounting([id], "a_user", since),
        ]
        for command in commands:
            assert command is None or (command and all(isinstance(word, str) for word in command))
            assert command is None or shlex.split(shlex.join(command)) == command
        assert "/a folder/job.sh" in self.system.submit("/a folder/job.sh")
        assert self.system.element(id, 3) in self.system.cancel([id, self.system.element(id, 3)])

    def test_one_query_is_about_all_jobs(self) -> None:
        ids = [self.accepted[0][1]] * 2
        command = self.system.status("a_user", ids)
        assert "a_user" in command or command.count(ids[0]) == 2
        assert "a_user" in self.system.status("a_user")

    # -- submission

    def test_the_id_is_read(self) -> None:
        for answer, id in self.accepted:
            for said in dressed(answer):
                assert self.system.submitted(said) == id

    def test_a_warning_does_not_matter(self) -> None:
        for answer, id in self.accepted:
            assert self.system.submitted(replace(answer, stderr="warning: your quota is low\n")) == id

    def test_refusals_are_told_apart(self) -> None:
        for answer, kind in self.refused:
            error = raised(SubmitError, self.system.submitted, answer)
            assert error.kind == kind, answer
            assert error.message == answer.message

    def test_without_an_answer_nobody_knows_whether_it_was_submitted(self) -> None:
        cut = [CommandResult(None, answer.stdout[:length]) for answer, _ in self.accepted for length in (0, 1, 3)]
        for answer in [
            *cut,
            CommandResult(0),
            CommandResult(0, BANNER),
            CommandResult(None, "", "the connection was lost"),
        ]:
            assert raised(SubmitError, self.system.submitted, answer).kind == "transient"

    def test_a_command_that_is_not_there_is_a_permanent_fault(self) -> None:
        answer = CommandResult(127, "", f"sh: 1: {self.system.submit('x')[0]}: not found")
        assert raised(SubmitError, self.system.submitted, answer).kind == "permanent"

    # -- states

    def test_jobs_are_read(self) -> None:
        for answer, expected in self.queues:
            for said in dressed(answer):
                compare(self.system.statuses(said), expected)

    def test_accounts_are_read(self) -> None:
        for answer, expected in self.accounts:
            for said in dressed(answer):
                compare(self.system.accounted(said), expected)

    def test_jobs_make_sense(self) -> None:
        jobs = [job for answer, _ in self.queues for job in self.system.statuses(answer)]
        jobs += [job for answer, _ in self.accounts for job in self.system.accounted(answer)]
        for job in jobs:
            assert job.id
            assert job.state in get_args(State)
            assert job.cause is None or job.cause in get_args(Cause)
            assert job.succeeded is not True or (job.cause is None and job.exit_code == 0)
            assert job.state == "ended" or (job.exit_code is None and job.succeeded is None)

    def test_the_id_of_an_element_leads_to_its_job(self) -> None:
        ids = {id for _, id in self.accepted}
        for answer, _ in self.queues:
            for job in self.system.statuses(answer):
                if job.index is not None and job.id in ids:
                    assert str(job.index) in self.system.element(job.id, job.index)

    def test_absent_jobs_are_not_invented(self) -> None:
        for answer in self.nothing:
            assert self.system.statuses(answer) == []

    def test_several_ids_in_one_question(self) -> None:
        listing = type(self).listing
        two = listing([(1, "a_name"), (2, "a_name")])
        (third,) = self.system.statuses(listing([(3, "a_name")]))
        ids = [job.id for job in self.system.statuses(two)]
        query = StatusQuery(self.system, "a_user", [*ids, third.id])
        found = query.read(two)
        assert [found.get((id, None), "a_name") is not None for id in ids] == [True, True]
        assert found.get((third.id, None), None) is None
        if type(self.system).unknown is BatchSystem.unknown:
            # A query for all jobs proves that it is gone; a query by id without mention of it proves nothing.
            named = query.command != self.system.status("a_user")
            assert found.is_silent((third.id, None)) == named

    def test_questions_are_answered(self) -> None:
        for ids, answer, expected in self.questions:
            found = StatusQuery(self.system, "a_user", ids).read(answer)
            for id, state in expected.items():
                states = {job.state for job in found.jobs if job.id == id}
                assert (id in found.silent) == (state is None), (id, answer)
                assert state in states or (not states and state in (None, "unknown")), (id, answer)

    def test_empty_answers(self) -> None:
        for text in ("", "\n", "\r\n  \n"):
            for status in (0, 1, 255, None):
                for call, kind in self._readers():
                    found = read_answer(call, kind, CommandResult(status, text))
                    assert not found, f"{found} was read from an empty answer"
                    assert status == 0 or found is None or call == self.system.accounted, "a failure is no answer"
            # An empty answer does not prove that the job is gone: the command must prove that it has asked.
            raised(CouldNotAsk, StatusQuery(self.system, "a_user", ["1"]).read, CommandResult(0, text))

    def test_answers_of_other_systems(self) -> None:
        related = {getattr(each, "name", None) for each in type(self.system).__mro__}
        for answer in [each for name, answers in self.foreign.items() if name not in related for each in answers]:
            for call, kind in self._readers():
                found = read_answer(call, kind, answer)
                assert not found or call == self.system.submitted, f"{found} was read from {answer}"

    def test_an_unknown_state_is_no_end(self) -> None:
        (job,) = self.system.statuses(self.strange)
        assert job.state != "ended"
        assert job.strange, "then its files and the accounting decide after a deadline"
        assert job.succeeded is None
        assert job.reason

    def test_no_answer_is_not_an_answer_without_jobs(self) -> None:
        cut = [CommandResult(None, answer.stdout[: len(answer.stdout) // 2]) for answer, _ in self.queues]
        for answer in [*self.unreachable, *cut, CommandResult(None), CommandResult(127, "", "sh: 1: not found")]:
            assert raised(CouldNotAsk, self.system.statuses, answer).message

    def test_garbage_is_no_answer(self) -> None:
        for text in GARBAGE:
            raised(CouldNotAsk, self.system.statuses, CommandResult(0, text))
            raised(CouldNotAsk, self.system.statuses, CommandResult(1, text))

    def test_an_answer_that_is_cut_says_nothing_that_is_not_so(self) -> None:
        for answer, _ in self.queues:
            whole = {(job.id, job.index): job.state for job in self.system.statuses(answer)}
            for part in range(1, 8):
                said = replace(answer, stdout=answer.stdout[: len(answer.stdout) * part // 8])
                try:
                    jobs = self.system.statuses(said)
                except CouldNotAsk:
                    continue
                assert all(whole.get((job.id, job.index)) == job.state for job in jobs)

    def test_names_of_any_characters(self) -> None:
        for number, name in enumerate(self.names, 1):
            (job,) = self.system.statuses(type(self).listing([(number, name)]))
            assert (job.id.split(".")[0], job.name, job.state) == (str(number), name, "running")

    def test_very_many_jobs(self) -> None:
        jobs = self.system.statuses(type(self).listing([(number, "a_name") for number in range(1, 10_001)]))
        assert [job.id.split(".")[0] for job in jobs] == [str(number) for number in range(1, 10_001)]

    def test_what_can_never_start_waits_and_says_why(self) -> None:
        for answers, expected in (
            (self.hopeless, ("error", False)),
            (self.not_launched, ("node_failure", False)),
            (self.never, (None, True)),
        ):
            for said in [each for answer in answers for each in dressed(answer)]:
                (job,) = self.system.statuses(said)
                assert (job.state, job.cause, job.never) == ("pending", *expected)
                assert job.reason

    # -- how jobs finish

    def test_outputs_of_jobs_that_were_ended_for_their_memory(self) -> None:
        pattern = self.system.wording.memory
        assert (pattern is None) == (not self.killed_for_memory), "its wording needs a recorded output, and vice versa"
        for output in self.killed_for_memory:
            assert pattern is not None
            assert pattern.search(output)
        for other in (BANNER, "MemoryError\n", "Killed\n", *GARBAGE):
            assert pattern is None or not pattern.search(other)

    def test_cancelling(self) -> None:
        for answer in self.cancelled:
            self.system.cancelled(answer)
        for answer in [*self.not_cancelled, CommandResult(None)]:
            assert raised(CancelError, self.system.cancelled, answer).message

    def test_accounting_without_an_answer(self) -> None:
        for answer in (CommandResult(None), CommandResult(127, "", "sh: 1: not found")):
            raised(CouldNotAsk, self.system.accounted, answer)

    def _readers(self) -> list[tuple[Callable[[CommandResult], object], type[Exception]]]:
        """Return the methods that read answers, each with the only error that it can raise."""
        return [
            (self.system.submitted, SubmitError),
            (self.system.statuses, CouldNotAsk),
            (self.system.accounted, CouldNotAsk),
            (self.system.cancelled, CancelError),
        ]

    def _directives(self, **resources: object) -> list[str]:
        return self.system.directives(BatchJobRequest(**resources), self.profile)  # type: ignore[arg-type]
