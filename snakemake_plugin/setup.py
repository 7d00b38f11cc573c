"""Where the packages are: the executor's own next to this file, and Lading's engine, which the same wheel brings.

The engine is the rooms of the checkout, but for what Airflow alone finds by a name: the examples, the provider's own
package, and the files of the page. A sdist has a copy of them, which is made when it is built.
"""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

ROOMS = ("executors", "hooks", "operators", "plugin", "scheduling")
OWN = "snakemake_executor_plugin_lading"
LEFT_OUT = ("airflow_lading", "static", "__pycache__")
HERE = Path(__file__).parent
IN_SDIST = "engine"
rooms = IN_SDIST if (HERE / IN_SDIST).is_dir() else ".."


class SdistWithEngine(sdist):
    """A sdist from which the same wheel is built without the checkout around it."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, [each for each in files if not each.startswith(("..", IN_SDIST))])
        for room in ROOMS:
            target = Path(base_dir, IN_SDIST, room)
            shutil.copytree(HERE / rooms / room, target, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)


below = [f"{room}.{package}" for room in ROOMS for package in find_packages(HERE / rooms / room, exclude=LEFT_OUT)]
setup(
    cmdclass={"sdist": SdistWithEngine},
    packages=[OWN, *(f"lading.{package}" for package in (*ROOMS, *below))],
    package_dir={f"lading.{room}": f"{rooms}/{room}" for room in ROOMS},
)
