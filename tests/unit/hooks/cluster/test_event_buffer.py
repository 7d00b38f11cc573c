"""When files of events may be removed."""

from __future__ import annotations

from lading.hooks.cluster.event_buffer import News


def test_a_file_goes_when_all_that_was_told_before_its_end_is_stored() -> None:
    news = News()
    news.tell({"event": "finished", "token": "a"})
    news.drop("1.jsonl")
    news.tell({"event": "waiting", "token": "b"}, "2.jsonl")
    news.drop("3.jsonl")
    assert news.done() == []
    assert [event["token"] for event in news.acknowledge(1)] == ["a"]
    assert news.done() == ["1.jsonl"]
    news.acknowledge(1)
    assert news.done() == ["1.jsonl", "2.jsonl", "3.jsonl"]


def test_a_file_of_which_nothing_was_told_goes_at_once() -> None:
    news = News()
    news.drop("1.jsonl")
    news.drop(None)
    assert news.done() == ["1.jsonl"]
    news.removed(["1.jsonl"])
    assert news.done() == []
