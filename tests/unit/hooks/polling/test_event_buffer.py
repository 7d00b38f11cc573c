"""When files of events may be removed."""

from __future__ import annotations

from itertools import pairwise

from lading.hooks.polling.event_buffer import EventBuffer
from lading.hooks.polling.job_life import JobAtSite
from lading.scheduling.model.reasons import because
from tests.reasons import message_in
from tests.recordings import FOLDER


def test_a_file_goes_when_all_that_was_reported_before_its_end_is_stored() -> None:
    event_buffer = EventBuffer()
    event_buffer.add({"event": "finished", "token": "a"})
    event_buffer.drop("1.jsonl")
    event_buffer.add({"event": "waiting", "token": "b"}, "2.jsonl")
    event_buffer.drop("3.jsonl")
    assert event_buffer.done() == []
    assert [event["token"] for event in event_buffer.acknowledge(1)] == ["a"]
    assert event_buffer.done() == ["1.jsonl"]
    event_buffer.acknowledge(1)
    assert event_buffer.done() == ["1.jsonl", "2.jsonl", "3.jsonl"]


def test_a_file_of_which_nothing_was_reported_goes_at_once() -> None:
    event_buffer = EventBuffer()
    event_buffer.drop("1.jsonl")
    event_buffer.drop(None)
    assert event_buffer.done() == ["1.jsonl"]
    event_buffer.removed(["1.jsonl"])
    assert event_buffer.done() == []


def test_a_reason_that_differs_in_its_numbers_alone_is_reported_once() -> None:
    """Of a Dag of 20 tasks on OpenPBS, each line one row of Airflow's event log."""
    lines = (FOLDER / "pbspro/waits-events-of-one-run.txt").read_text().splitlines()
    event_buffer, jobs = EventBuffer(), dict[str, JobAtSite]()
    for line in lines:
        _, _, _, task, index, reason = line.split(" ", 5)
        job = jobs.setdefault(f"{task} {index}", JobAtSite(f"{task} {index}"))
        event_buffer.add_reason(job, because("batch_queue", queue="batch", text=reason))
    told = [(event["token"], "".join(filter(str.isalpha, message_in(event)))) for event in event_buffer.unread()]
    assert len(told) < len(lines)
    assert all(first != then for name in jobs for first, then in pairwise(each for each in told if each[0] == name))
    job = JobAtSite("other")
    reasons = [because("max_submitted", most=number) for number in (10, 11)]
    reasons += [
        because("site_limit", system="slurm", text=words)
        for words in ("a limit of the account", "it is held", "it is held")
    ]
    for reason in reasons:
        event_buffer.add_reason(job, reason)
    assert [message_in(each) for each in event_buffer.unread() if each["token"] == "other"] == [
        "waits: 10 jobs are already submitted (max_submitted)",
        "waits: slurm accepts no more jobs for now: a limit of the account",
        "waits: slurm accepts no more jobs for now: it is held",
    ]
