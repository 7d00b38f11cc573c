"""Runs a controller process, for Airflow or Snakemake: its log, its signals and its exit."""

from __future__ import annotations

import gc
import io
import logging
import logging.handlers
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from lading.executors.controller.controller import Controller
from lading.executors.controller.placing import Extensions
from lading.executors.controller.sites_file import rules_of
from lading.executors.orchestrator.orchestrator import Orchestrator
from lading.executors.settings import Settings
from lading.executors.store import Change
from lading.hooks.files.logs import plain_formatter
from lading.hooks.files.safe_files import private_opener
from lading.hooks.site import Site
from lading.plugin.manager import binding_filters, implemented, plugin_manager, policies, rules
from lading.scheduling.model.reasons import Reason

log = logging.getLogger(__name__)


def serve_until_signal(
    host: Orchestrator,
    sites: Mapping[str, Site[Any]],
    mint: Callable[[str, float], str],
    settings: Settings,
    managed: bool,
    start: Callable[[], object] = lambda: None,
) -> None:
    """Run a controller in this process until SIGTERM or SIGINT, or until nothing needs it. It can end the process.

    :param mint: creates the JWT of a job, given a subject and seconds of validity
    :param managed: whether it stops when nothing needs it any more
    :param start: called right before it starts
    """
    acting = Controller(host, sites, mint, settings, managed, notify_listeners, extensions(settings))

    def stop(signum: int, frame: FrameType | None) -> None:
        acting.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # The parent process has blocked SIGTERM. Unblock it before starting processes, which would inherit the block.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    # Imported modules live forever. Freezing them keeps the garbage collector from scanning them during plans.
    gc.collect()
    gc.freeze()
    start()
    acting.leadership.clock.end_process = lambda: end_at_once(1)
    acting.run()
    end_in_spite_of_threads()


def extensions(settings: Settings) -> Extensions:
    found = rules_of(settings.sites_file, rules())
    return Extensions(binding_filters(), policies(), found, implemented("rank_matches"), implemented("assign_jobs"))


def end_in_spite_of_threads() -> None:
    """End the process even if a hanging thread, for example of a third party's site, would keep it alive."""
    kept = [each.name for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    if kept:
        log.info("Exiting without waiting for the threads %s", ", ".join(kept))
        end_at_once(0)


def end_at_once(status: int) -> None:
    """End the process at once, after flushing the log."""
    logging.shutdown()
    os._exit(status)


def notify_listeners(changes: Sequence[Change]) -> None:
    """Call ``job_changed`` of the plugins. An exception in one of them must not delay jobs."""
    for change in changes:
        state = change.values.get("state")
        if state is not None:
            reason: Reason | None = change.values.get("reason")
            try:
                plugin_manager().hook.job_changed(
                    token=change.token,
                    state=state.value,
                    cause=change.values.get("cause"),
                    reason=None if reason is None else str(reason),
                    reason_code=None if reason is None else reason.code,
                    reason_params={} if reason is None else dict(reason.params),
                )
            except Exception:
                log.exception("A listener of job_changed failed")


class PrivateFileHandler(logging.handlers.RotatingFileHandler):
    """A log file that only Airflow's user can read. After a rollover, stdout and stderr go to the new file as well."""

    def _open(self) -> io.TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=private_opener)

    def doRollover(self) -> None:
        with open(self.baseFilename, "rb") as full:
            before = os.fstat(full.fileno())
        ours = [output for output in (1, 2) if os.path.samestat(os.fstat(output), before)]
        super().doRollover()
        if self.stream is not None:
            for output in ours:
                os.dup2(self.stream.fileno(), output)


def log_to(settings: Settings, managed: bool, level: str) -> None:
    """Send the log to a rotating file if an executor started this process, or else to stderr."""
    handler: logging.Handler = logging.StreamHandler()
    if managed:
        handler = PrivateFileHandler(settings.controller_log, maxBytes=10 * 2**20, backupCount=3)
    handler.setFormatter(plain_formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
