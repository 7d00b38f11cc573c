"""The outputs of a chunk's finished jobs, kept in Airflow's task state store for the next try."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from airflow.sdk.serde import deserialize, serialize

log = logging.getLogger(__name__)

KEY = "lading_finished_{}"


class FinishedOutputs:
    """The outputs of finished jobs.

    :param store: ``context["task_state_store"]``, which outlives a try
    """

    def __init__(self, store: Any) -> None:
        self.store = store
        self.batch: dict[str, str] = {}
        self.size = 0
        self.batches = 0
        self.saved_at = time.monotonic()

    def load(self) -> dict[int, Any]:
        outputs: dict[int, Any] = {}
        while (batch := self.store.get(KEY.format(self.batches))) is not None:
            outputs |= {int(number): deserialize(json.loads(text)) for number, text in batch.items()}
            self.batches += 1
        return outputs

    def add(self, number: int, output: Any) -> None:
        """Add an output, to be saved soon."""
        try:
            text = json.dumps(serialize(output))
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            log.warning("The output of job %d is not saved for the next try: %s", number, error)
            return
        # By default Airflow accepts no larger batches.
        if self.size + len(text) > 48_000:
            self.save()
        self.batch[str(number)] = text
        self.size += len(text)
        # Outputs are saved often, so that little is lost if the process is killed.
        if time.monotonic() - self.saved_at > 5.0:
            self.save()

    def save(self) -> None:
        self.saved_at = time.monotonic()
        if not self.batch:
            return
        try:
            self.store.set(KEY.format(self.batches), self.batch)
            self.batches += 1
        except Exception as error:  # a full store must not fail the task; the next try repeats more
            log.warning("%d outputs are not saved for the next try: %s", len(self.batch), error)
        self.batch, self.size = {}, 0
