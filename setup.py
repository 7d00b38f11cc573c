"""Where the packages are: each room of the checkout is a package of the namespace ``lading``."""

from setuptools import find_packages, setup

ROOMS = ("example_dags", "executors", "hooks", "operators", "plugin", "scheduling")
# What is imported under a name of its own: by the name of the distribution, so that Airflow finds the version.
OWN = {"airflow_lading": "plugin/airflow_lading"}

below = [f"{room}.{package}" for room in ROOMS for package in find_packages(room, exclude=OWN)]
setup(
    packages=[*OWN, *(f"lading.{package}" for package in (*ROOMS, *below))],
    package_dir=OWN | {f"lading.{room}": room for room in ROOMS},
)
