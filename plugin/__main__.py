"""``python -m lading.plugin controller``: what an executor starts, without the weight of Airflow's command line."""

from __future__ import annotations

import argparse

from lading.plugin.service import serve

parser = argparse.ArgumentParser(prog="python -m lading.plugin")
commands = parser.add_subparsers(required=True)
controller = commands.add_parser("controller", help="run a controller")
controller.add_argument("--managed", action="store_true", help="an executor has started it")
serve(parser.parse_args().managed)
