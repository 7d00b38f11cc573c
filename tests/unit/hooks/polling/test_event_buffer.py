"""When files of events may be removed."""

from __future__ import annotations

from lading.hooks.polling.event_buffer import EventBuffer


def test_a_file_goes_when_all_that_was_told_before_its_end_is_stored() -> None:
    event_buffer = EventBuffer()
    event_buffer.tell({"event": "finished", "token": "a"})
    event_buffer.drop("1.jsonl")
    event_buffer.tell({"event": "waiting", "token": "b"}, "2.jsonl")
    event_buffer.drop("3.jsonl")
    assert event_buffer.done() == []
    assert [event["token"] for event in event_buffer.acknowledge(1)] == ["a"]
    assert event_buffer.done() == ["1.jsonl"]
    event_buffer.acknowledge(1)
    assert event_buffer.done() == ["1.jsonl", "2.jsonl", "3.jsonl"]


def test_a_file_of_which_nothing_was_told_goes_at_once() -> None:
    event_buffer = EventBuffer()
    event_buffer.drop("1.jsonl")
    event_buffer.drop(None)
    assert event_buffer.done() == ["1.jsonl"]
    event_buffer.removed(["1.jsonl"])
    assert event_buffer.done() == []
