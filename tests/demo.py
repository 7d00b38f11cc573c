"""``make demo``: a real Airflow with Lading runs an example Dag; a table and a few lines say what ran where.

Everything happens in ``.demo`` next to the Makefile, which each demo recreates. ``SITE=slurm`` and ``SITE=ec2`` run it
on a SLURM and on a mock of EC2, which need root. ``KEEP=1`` leaves the UI up until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tests.demo_sites import Demo, DemoError, chosen
from tests.demo_summary import Job, table
from tests.services import processes
from tests.services.account import NeedsRootError
from tests.services.airflow import FINISHED, Airflow, AirflowError
from tests.services.debian import MissingPackagesError

FOLDER = Path(__file__).resolve().parents[1] / ".demo"
PATIENCE = 600  # seconds that the run may take
MOST_JOBS = 1000  # of a run, more than the command prints by default
SECONDS_BETWEEN_LINES = 5  # of progress, where the output is no terminal
MACHINES = "/plugin/lading?view=machines"
ENDED = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})

console = Console()


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with alone(FOLDER), chosen()(FOLDER) as demo, stopped_gently(airflow_of(demo)) as airflow:
            state = demonstrate(airflow, demo)
            if os.environ.get("KEEP"):
                show_how_to_look(airflow, demo)
                with contextlib.suppress(KeyboardInterrupt):
                    signal.pause()
            return 0 if state == "success" else 1
    except (AirflowError, DemoError, MissingPackagesError, NeedsRootError) as error:
        show_plainly(str(error))
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def airflow_of(demo: Demo) -> Airflow:
    """An Airflow in the demo's folder, not started."""
    config = {}
    if demo.sites:
        file = FOLDER / "sites.toml"
        file.write_text("\n".join(line.strip() for line in demo.sites.strip().splitlines()) + "\n")
        config["lading.sites_file"] = file
    airflow = Airflow(FOLDER, config=config, preloaded=True)
    airflow.environment |= demo.environment
    return airflow


def page_line(airflow: Airflow) -> str:
    """Where the page is, which is up after the summary only if it is kept."""
    kept = "" if os.environ.get("KEEP") else " until Airflow stops; make demo KEEP=1 keeps it up"
    return f"{airflow.url}{MACHINES}{kept}"


def show_how_to_look(airflow: Airflow, demo: Demo) -> None:
    """Print how another terminal asks this Airflow: its variables are in a file, for some are secret."""
    names = sorted(name for name in airflow.environment if name.startswith(("AIRFLOW", "AWS_")))
    exports = [f"export {name}={shlex.quote(airflow.environment[name])}" for name in names]
    file = FOLDER / "environment"
    file.touch(mode=0o600)
    file.write_text("\n".join([*exports, f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"]) + "\n")
    listed = [f"airflow lading {command}" for command in demo.commands]
    lines = [f". {file}", f"airflow dags trigger {demo.dag}", *listed]
    how = f"\nAirflow runs until Ctrl-C. Open {airflow.url}{MACHINES}, or type in another terminal:"
    show_plainly("\n".join([how, *(f"    {each}" for each in lines)]))


def demonstrate(airflow: Airflow, demo: Demo) -> str:
    """Run the example, as often as the demo does, and print what there is to see; return the last run's state."""
    show_plainly(f"UI: {airflow.url}{MACHINES}")
    airflow.wait_for_dag(demo.dag)
    runs, state, run_id = [], "", ""
    for number in range(1, demo.runs + 1):
        if demo.runs > 1:
            console.print(f"Run {number} of {demo.runs}")
        run_id = airflow.trigger(demo.dag, demo.conf)
        state = watch(airflow, demo.dag, run_id)
        runs.append(ended_jobs(airflow, run_id))
        if state != "success":
            console.print(table(runs))
            show_failures(airflow, demo.dag, run_id)
            return state
    show_result(airflow.xcom(demo.dag, run_id, demo.result))
    console.print(table(runs))
    lines = [*demo.lines(airflow, run_id, runs), ("Machines page", page_line(airflow))]
    grid = Table.grid(padding=(0, 2, 0, 0))
    for about, line in lines:
        grid.add_row(Text(about), Text(line))
    console.print(grid)
    return state


def ended_jobs(airflow: Airflow, run_id: str) -> list[Job]:
    """The jobs of a run when all have ended, or as they are after a while.

    A task reports its end to Airflow itself; its site reports it later.
    """
    listing = ("lading", "jobs", "--run-id", run_id, "--limit", str(MOST_JOBS), "--output", "json")
    found: list[Job] = []

    def ended() -> bool:
        found[:] = [Job.of(row) for row in json.loads(airflow.cli(*listing))]
        return all(job.ended_at for job in found)

    processes.wait_until(ended, 60, 1)
    return found


def show_result(result: Any) -> None:
    """Print what the run has found out: a report in Markdown with the file that has all of it, or a few values."""
    if isinstance(result, dict) and "summary" in result:
        console.print(Markdown(result["summary"]))
        show_plainly(f"\nThe whole report: {result['report']}\n")
    else:
        show_plainly(json.dumps(result, indent=2))


# -- before and after


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Empty ``folder`` and hold it against a second demo; end what a demo left there that was killed."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AirflowError(f"another demo is running in {folder}: end it first") from None
        processes.kill(processes.belonging(folder, ()))
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        yield


@contextlib.contextmanager
def stopped_gently(airflow: Airflow) -> Iterator[Airflow]:
    """Start Airflow, and stop it whatever happens; a second Ctrl-C does not interrupt the stopping."""
    with contextlib.ExitStack() as stack:
        console.print("Starting Airflow: API server, scheduler, Dag processor, triggerer")
        begin = time.monotonic()
        stack.enter_context(airflow)
        console.print(f"Airflow is up after {time.monotonic() - begin:.0f} s", highlight=False)
        try:
            yield airflow
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            console.print("Stopping Airflow")


# -- while it runs


def watch(airflow: Airflow, dag: str, run_id: str) -> str:
    """Show how far the run is, until it has finished; return its state.

    :raises AirflowError: it did not finish in time
    """
    end = time.monotonic() + PATIENCE
    with progress(dag) as show:
        while (state := airflow.run_state(dag, run_id)) not in FINISHED:
            show(Counter(ti["state"] or "waiting" for ti in airflow.task_instances(dag, run_id)))
            if time.monotonic() > end:
                raise AirflowError(f"the run has not finished within {PATIENCE} s\n{airflow.log_tails()}")
            time.sleep(1)
    return state


@contextlib.contextmanager
def progress(dag: str) -> Iterator[Any]:
    """A function that shows how many task instances are in which state: as a bar on a terminal, else as lines."""
    if not console.is_terminal:
        last, due = "", 0.0

        def print_changed(states: Counter[str]) -> None:
            nonlocal last, due
            if (line := describe(states)) != last and time.monotonic() >= due:
                console.print(line, highlight=False)
                last, due = line, time.monotonic() + SECONDS_BETWEEN_LINES

        yield print_changed
        return
    columns = (
        TextColumn(dag),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def update_bar(states: Counter[str]) -> None:
            done = sum(states[state] for state in ENDED)
            bar.update(task, total=states.total(), completed=done, description=describe(states))

        yield update_bar


def describe(states: Counter[str]) -> str:
    return ", ".join(f"{states[state]} {state}" for state in sorted(states))


def show_failures(airflow: Airflow, dag: str, run_id: str) -> None:
    """Print the ends of the logs of what failed: of the tasks, and of Airflow's components if no task says why."""
    failed = [ti for ti in airflow.task_instances(dag, run_id) if ti["state"] == "failed"]
    for ti in failed[:5]:
        log = airflow.logs(dag, run_id, ti["task_id"], map_index=ti["map_index"], try_number=max(1, ti["try_number"]))
        tail = "\n".join(log.splitlines()[-15:])
        show_plainly(f"--- {ti['task_id']}[{ti['map_index']}] failed:\n{tail}")
    if len(failed) > 5:
        console.print(f"... and {len(failed) - 5} more tasks failed")
    show_plainly(airflow.log_tails(15))


def show_plainly(text: str) -> None:
    """Print the output of other programs as it is, whatever its brackets and line lengths."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
