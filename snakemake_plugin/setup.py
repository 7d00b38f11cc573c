"""The packages of the wheel: the executor's own package, which is next to this file, and Lading's engine.

The engine consists of the rooms of the checkout, without the parts that only Airflow uses: the example Dags, the
provider's package, and the files of the page. An sdist contains a copy of the rooms, which is made when the sdist is
built.
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
    """An sdist that contains the engine, so that the wheel can be built without the checkout."""

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
