"""What listeners of jobs receive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from lading.executors.store import Change, State
from lading.plugin.hookspecs import hookimpl
from lading.plugin.manager import plugin_manager
from lading.plugin.serving import notify_listeners
from lading.scheduling.model.reasons import because


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    @hookimpl
    def job_changed(
        self, token: str, state: str, reason: str | None, reason_code: str | None, reason_params: Mapping[str, Any]
    ) -> None:
        self.heard.append((token, state, reason, reason_code, reason_params))


class OlderListener:
    """One that asks for the sentence alone."""

    def __init__(self) -> None:
        self.heard: list[str | None] = []

    @hookimpl
    def job_changed(self, token: str, reason: str | None) -> None:
        self.heard.append(reason)


@pytest.fixture(params=[Listener, OlderListener])
def listener(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = request.param()
    plugin_manager().register(made)
    yield made
    plugin_manager().unregister(made)


def test_a_listener_is_given_the_sentence_the_code_and_the_parameters(listener: Any) -> None:
    why = because("over_memory", used=2048, limit=1024)
    notify_listeners(
        [
            Change("a", {"state": State.FAILED, "cause": "out_of_memory", "reason": why}),
            Change("b", {"state": State.RUNNING, "reason": None}),
            Change("c", {"reason": why}),
        ]
    )
    sentence = "the task used 2 GiB of memory; its limit is 1 GiB"
    if isinstance(listener, OlderListener):
        assert listener.heard == [sentence, None]
    else:
        assert listener.heard == [
            ("a", "failed", sentence, "over_memory", {"limit": 1024, "used": 2048}),
            ("b", "running", None, None, {}),
        ]
