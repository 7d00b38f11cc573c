"""``python -m lading.plugin controller``: lets an executor start a controller without Airflow's command line."""

from __future__ import annotations

import argparse

from lading.plugin.service import serve

parser = argparse.ArgumentParser(prog="python -m lading.plugin")
commands = parser.add_subparsers(required=True)
controller = commands.add_parser("controller", help="run a controller")
controller.add_argument(
    "--managed", action="store_true", help="started by an executor: log to a file, and exit when Airflow has stopped"
)
serve(parser.parse_args().managed)
