"""What of a chunk has finished, kept in Airflow's task state store for the next try."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from airflow.sdk.serde import deserialize, serialize

log = logging.getLogger(__name__)

KEY = "lading_finished_{}"
# Written so often, seconds, so that little is lost with a process that is killed.
INTERVAL = 5.0
# Airflow takes no larger values by default; what does not fit into one goes into the next.
LARGEST = 48_000


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
        """The outputs of all jobs that finished in earlier tries."""
        outputs: dict[int, Any] = {}
        while (batch := self.store.get(KEY.format(self.batches))) is not None:
            outputs |= {int(number): deserialize(json.loads(text)) for number, text in batch.items()}
            self.batches += 1
        return outputs

    def add(self, number: int, output: Any) -> None:
        """Remember an output, to be saved soon."""
        try:
            text = json.dumps(serialize(output))
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            log.warning("The output of job %d is not kept for another try: %s", number, error)
            return
        if self.size + len(text) > LARGEST:
            self.save()
        self.batch[str(number)] = text
        self.size += len(text)
        if time.monotonic() - self.saved_at > INTERVAL:
            self.save()

    def save(self) -> None:
        """Write what has been added."""
        self.saved_at = time.monotonic()
        if not self.batch:
            return
        try:
            self.store.set(KEY.format(self.batches), self.batch)
            self.batches += 1
        except Exception as error:  # a store that is too small is no reason to fail; the next try does more
            log.warning("%d outputs are not kept for another try: %s", len(self.batch), error)
        self.batch, self.size = {}, 0
