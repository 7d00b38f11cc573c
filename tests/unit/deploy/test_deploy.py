"""The files of ``deploy/`` against what Lading and Airflow really have: commands, options, paths, ports and names."""

from __future__ import annotations

import importlib.util
import re
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from importlib.metadata import metadata, version
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from airflow.cli.cli_parser import get_parser
from airflow.configuration import retrieve_configuration_description
from cryptography.fernet import Fernet

from lading.executors.settings import DEFAULTS, SECTION, Settings
from lading.plugin.sites import load_sites
from tests.clusters.sites import make_settings

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
# What a user puts there: the secrets, Dags, and what the image is built from.
OF_USERS = (
    "docker/.env",
    "docker/*.whl",
    "docker/requirements.lock",
    "docker/dags/*",
    "*/__pycache__/*",
    "__pycache__/*",
)
FILES = sorted(
    path
    for path in DEPLOY.rglob("*")
    if path.is_file() and not any(fnmatch(str(path.relative_to(DEPLOY)), each) for each in OF_USERS)
)
GUIDE = DEPLOY.parent / "docs/how_to/deployment.md"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
# What may be repeated in a unit: systemd joins the values. Of anything else it takes the last.
REPEATABLE = {
    "After",
    "Before",
    "Environment",
    "EnvironmentFile",
    "ExecStartPre",
    "Requires",
    "StateDirectory",
    "Wants",
}
OPTION = re.compile(r"\bAIRFLOW__([A-Z_]+?)__([A-Z_]+)\b")
SHUTDOWN_SECONDS = int(DEFAULTS["shutdown_timeout"] or 0)

Environment = Mapping[str, str]


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())
    return loaded


def airflow_services() -> dict[str, dict[str, Any]]:
    """Those of the compose file that are of Lading's image."""
    return {name: each for name, each in compose()["services"].items() if each["image"] == "airflow-lading"}


def objects() -> dict[tuple[str, str], dict[str, Any]]:
    """Those of controller.yaml, by kind and name."""
    loaded = yaml.safe_load_all((DEPLOY / "kubernetes/controller.yaml").read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in loaded}


def values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes/values.yaml").read_text())
    return loaded


def pod() -> dict[str, Any]:
    found: dict[str, Any] = objects()["StatefulSet", "lading-controller"]["spec"]["template"]["spec"]
    return found


def airflow_containers() -> list[dict[str, Any]]:
    """Those of the pod that are of Lading's image."""
    containers = [*pod()["initContainers"], *pod()["containers"]]
    return [each for each in containers if "airflow-lading" in each["image"]]


def image_environment() -> dict[str, str]:
    """What the image sets."""
    text = (DEPLOY / "docker/Dockerfile").read_text()
    return dict(re.findall(r"^(?:ENV|   ) +(AIRFLOW\w+)=(\S+?)(?: \\)?$", text, re.MULTILINE))


def unit(path: Path) -> dict[str, dict[str, str]]:
    return parsed_unit(path.read_text())


def parsed_unit(text: str) -> dict[str, dict[str, str]]:
    """The sections of a unit; a value per line of what is repeated.

    :raises AssertionError: something is repeated that should not be
    """
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            assert section not in found, f"[{section}] is repeated"
            found[section] = {}
        elif line and not line.startswith("#"):
            key, is_set, value = line.partition("=")
            assert is_set, f"{line} sets nothing"
            assert key not in found[section] or key in REPEATABLE, f"{key} is repeated in [{section}]"
            found[section][key] = f"{found[section][key]}\n{value}" if key in found[section] else value
    return found


def unit_environment() -> dict[str, str]:
    lines = (DEPLOY / "systemd/airflow.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def secrets(host: str = "127.0.0.1") -> dict[str, str]:
    """What make_secrets.py makes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "secrets.env")
        make_secrets(host, str(file)).check_returncode()
        return dict(line.split("=", 1) for line in file.read_text().splitlines())


def make_secrets(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, DEPLOY / "make_secrets.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, umask=0)


def guided(begin: str, end: str = "") -> str:
    """The commands of the guide from the line that has ``begin`` to the next that is ``end``, or that line alone."""
    lines = GUIDE.read_text().splitlines()
    [first] = [number for number, line in enumerate(lines) if begin in line]
    last = lines.index(end, first) if end else first
    return "\n".join(line.strip() for line in lines[first : last + 1])


def recorded(folder: Path, program: str, commands: str) -> tuple[list[str], str]:
    """Run commands in a folder, where a program only notes its arguments and its standard input; return both."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    written = f'#!/bin/sh\nprintf "%s\\n" "$@" >{folder}/arguments\ncat >{folder}/input\n'
    (bin_folder / program).write_text(written)
    (bin_folder / program).chmod(0o700)
    environment = {"PATH": f"{bin_folder}:/usr/bin:/bin"}
    subprocess.run(["bash", "-e", "-c", commands], cwd=folder, env=environment, check=True, stdin=subprocess.DEVNULL)
    return (folder / "arguments").read_text().splitlines(), (folder / "input").read_text()


@cache
def environments() -> dict[str, Environment]:
    """What Airflow's processes have, by where that is said."""
    kubernetes = {**objects()["ConfigMap", "lading-options"]["data"], **secrets()}
    services = {
        f"compose {name}": image_environment() | each["environment"] for name, each in airflow_services().items()
    }
    return {**services, "kubernetes": image_environment() | kubernetes, "systemd": unit_environment() | secrets()}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command of Airflow, without its first word."""
    for name, service in airflow_services().items():
        yield f"compose {name}", service["command"]
        if (test := service.get("healthcheck", {}).get("test", ())) and "airflow" in test:
            yield f"health of {name}", test[1:]
    for container in airflow_containers():
        yield f"kubernetes {container['name']}", container["args"]
    for path in UNITS:
        service = unit(path)["Service"]
        for command in (*service.get("ExecStartPre", "").splitlines(), service["ExecStart"]):
            program, *arguments = shlex.split(command)
            yield path.name, [PurePosixPath(program).name, *arguments]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_each_file_says_what_of_it_was_checked(path: Path) -> None:
    head = path.read_text().partition("\n\n")[0] + path.read_text()[:1500]
    assert "Checked: " in head


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_each_option_is_one_of_airflow_or_lading(path: Path) -> None:
    known = retrieve_configuration_description(include_providers=False)
    for section, option in OPTION.findall(path.read_text()):
        if section.lower() == SECTION:
            assert option.lower() in DEFAULTS
        else:
            assert option.lower() in known[section.lower()]["options"], f"[{section.lower()}] {option.lower()}"


@pytest.mark.parametrize("name", sorted(environments()))
def test_ladings_options_are_valid_and_the_controller_is_a_service(name: str) -> None:
    environment = environments()[name]

    class Conf:
        def get(self, section: str, key: str, *, fallback: Any) -> Any:
            return environment.get(f"AIRFLOW__{section}__{key}".upper(), fallback)

    settings = Settings.load(Conf())
    assert not settings.starts_controller
    assert settings.state_folder == Path("/var/lib/lading/state")
    assert environment["AIRFLOW__CORE__EXECUTOR"] == "lading.executors.LadingExecutor"


def test_each_command_is_one_of_airflow() -> None:
    parser = get_parser()
    for where, (program, *arguments) in commands():
        assert program == "airflow", where
        assert callable(parser.parse_args(arguments).func), where


def test_one_controller_is_started_in_each_deployment() -> None:
    started = [where for where, (_, *arguments) in commands() if arguments == ["lading", "controller"]]
    assert started == ["compose controller", "kubernetes controller", "lading-controller.service"]
    assert objects()["StatefulSet", "lading-controller"]["spec"]["replicas"] == 1


def test_ports_are_those_on_which_airflow_listens() -> None:
    options = retrieve_configuration_description(include_providers=False)
    api = options["api"]["options"]["port"]["default"]
    health = options["scheduler"]["options"]["scheduler_health_check_server_port"]["default"]
    services = airflow_services()
    assert services["api-server"]["ports"] == [f"127.0.0.1:{api}:{api}"]
    assert f":{api}/api/v2/monitor/health" in services["api-server"]["healthcheck"]["test"][-1]
    assert f":{health}/health" in services["scheduler"]["healthcheck"]["test"][-1]
    hosts = {"compose": services["api-server"]["hostname"], "kubernetes": "airflow-api-server", "systemd": "127.0.0.1"}
    for name, environment in environments().items():
        url = f"http://{hosts[name.partition(' ')[0]]}:{api}/execution/"
        assert environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == url
    assert f"--port {api}" in unit(DEPLOY / "systemd/airflow-api-server.service")["Service"]["ExecStart"]


@pytest.mark.parametrize("name", ["docker/sites.toml", "kubernetes/controller.yaml"])
def test_the_sites_file_is_valid(tmp_path: Path, name: str) -> None:
    path = DEPLOY / name
    if path.suffix == ".yaml":
        path = tmp_path / "sites.toml"
        path.write_text(objects()["ConfigMap", "lading-sites"]["data"]["sites.toml"])
    load_sites(make_settings(tmp_path / "state", sites_file=path))


def test_sites_file_and_state_folder_lie_where_volumes_are_mounted() -> None:
    for name, service in airflow_services().items():
        mounted = {each.split(":")[1]: each.split(":")[0] for each in service["volumes"]}
        environment = environments()[f"compose {name}"]
        assert mounted[environment["AIRFLOW__LADING__SITES_FILE"]] == "./sites.toml"
        assert mounted[str(Path(environment["AIRFLOW__LADING__STATE_FOLDER"]).parent)] == "state"
        assert set(mounted.values()) - {"./dags", "./sites.toml"} <= compose()["volumes"].keys()
    controller = pod()["containers"][0]
    mounted = {each["mountPath"]: each["name"] for each in controller["volumeMounts"]}
    options = objects()["ConfigMap", "lading-options"]["data"]
    state = objects()["StatefulSet", "lading-controller"]["spec"]["volumeClaimTemplates"][0]
    assert mounted[str(Path(options["AIRFLOW__LADING__STATE_FOLDER"]).parent)] == state["metadata"]["name"]
    assert mounted[str(Path(options["AIRFLOW__LADING__SITES_FILE"]).parent)] == "sites"
    assert values()["volumeMounts"][0]["mountPath"] == str(Path(options["AIRFLOW__LADING__SITES_FILE"]).parent)
    for path in UNITS:
        dags = ["airflow/dags"] if path.name == "airflow-migrate.service" else []
        assert unit(path)["Service"]["StateDirectory"].split() == ["airflow", *dags, "lading"]


def test_chart_and_controller_have_the_same_image_options_secrets_and_logs() -> None:
    chart = values()
    image = "{repository}:{tag}".format(**chart["images"]["airflow"])
    containers = airflow_containers()
    assert {each["image"] for each in containers} == {image}
    assert image.endswith(f":{version('airflow-lading')}")
    sources = yaml.safe_load(chart["extraEnvFrom"])
    assert [each["envFrom"] for each in containers] == [sources, sources]
    turned_off = {name for name, enabled in chart["enableBuiltInSecretEnvVars"].items() if not enabled}
    assert {name for name in secrets() if name.startswith("AIRFLOW")} <= turned_off
    [logs] = [each for each in pod()["volumes"] if each["name"] == "logs"]
    assert logs["persistentVolumeClaim"]["claimName"] == chart["logs"]["persistence"]["existingClaim"]
    made = shlex.split(guided("create secret"))
    there = {*objects(), ("Secret", made[made.index("generic") + 1])}
    for source in (*sources, {"configMapRef": chart["volumes"][0]["configMap"]}):
        [(kind, named)] = source.items()
        assert ({"configMapRef": "ConfigMap", "secretRef": "Secret"}[kind], named["name"]) in there
    assert {kind for source in sources for kind in source} == {"configMapRef", "secretRef"}
    assert ("PersistentVolumeClaim", chart["logs"]["persistence"]["existingClaim"]) in objects()
    assert ("ServiceAccount", pod()["serviceAccountName"]) in objects()


def test_the_chart_makes_no_secret_and_no_user_with_a_known_password() -> None:
    chart = values()
    assert chart["createUserJob"] == {"enabled": False}
    named = [chart[f"{name}SecretName"] for name in ("fernetKey", "apiSecretKey", "jwt")]
    assert {*named, chart["data"]["metadataSecretName"]} == {"lading-secrets"}


def test_tasks_outlive_a_restart_of_all_units_and_of_the_pod() -> None:
    assert environments()["systemd"]["AIRFLOW__LADING__ON_SHUTDOWN"] == "leave"
    assert environments()["kubernetes"]["AIRFLOW__LADING__ON_SHUTDOWN"] == "leave"
    # With the container of the controller the tasks in it stop anyway, so they are cancelled in order.
    assert "AIRFLOW__LADING__ON_SHUTDOWN" not in environments()["compose controller"]


def test_a_stop_has_more_time_than_lading_takes_for_it() -> None:
    assert pod()["terminationGracePeriodSeconds"] > SHUTDOWN_SECONDS
    for name in ("controller", "scheduler"):
        assert int(airflow_services()[name]["stop_grace_period"].removesuffix("s")) > SHUTDOWN_SECONDS
    for name in ("lading-controller", "airflow-scheduler"):
        service = unit(DEPLOY / f"systemd/{name}.service")["Service"]
        assert int(service["TimeoutStopSec"]) > SHUTDOWN_SECONDS
        assert service["KillMode"] == "process", "else systemd ends the tasks"
        assert service["OOMPolicy"] == "continue"


def test_the_image_is_of_the_airflow_that_is_tested_and_has_an_extra_that_exists() -> None:
    text = (DEPLOY / "docker/Dockerfile").read_text()
    [arguments] = re.findall(r"^ARG AIRFLOW_IMAGE=apache/airflow:(\S+)$", text, re.MULTILINE)
    locked = re.search(r"^apache-airflow==(\S+)", (DEPLOY.parent / "requirements.lock").read_text(), re.MULTILINE)
    assert locked
    assert arguments == locked[1] == values()["airflowVersion"]
    [extra] = re.findall(r"^ARG EXTRAS=\[(\w+)\]$", text, re.MULTILINE)
    assert extra in metadata("airflow-lading").get_all("Provides-Extra", [])


def test_no_secret_is_in_the_files_and_nothing_starts_without_them() -> None:
    for path in FILES:
        assert "CHANGE-ME" not in path.read_text()
    names = secrets().keys()
    for service in airflow_services().values():
        for name in names & service["environment"].keys():
            assert service["environment"][name].startswith(f"${{{name}:?"), "compose refuses to start without it"
    assert not names & (unit_environment() | objects()["ConfigMap", "lading-options"]["data"]).keys()
    for path in UNITS:
        # Without "-" in front: the unit fails if the file is missing.
        assert "\nEnvironmentFile=/etc/lading/secrets.env\n" in path.read_text()


def test_secrets_are_new_each_time_and_valid() -> None:
    first, second = secrets("postgres"), secrets("postgres")
    assert all(first[name] != second[name] and len(first[name]) > 40 for name in first)
    assert Fernet(first["AIRFLOW__CORE__FERNET_KEY"])
    address = f"postgresql+psycopg2://airflow:{first['POSTGRES_PASSWORD']}@postgres/airflow"
    assert first["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == address


def test_the_file_of_secrets_is_its_owners_alone_and_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "secrets.env"
    assert make_secrets("postgres", str(file)).returncode == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    first = file.read_text()
    again = make_secrets("postgres", str(file))
    assert again.returncode == 1
    assert f"{file} exists" in again.stderr
    assert file.read_text() == first
    for arguments, why in (
        ((), "name the host of the database"),
        (("postgres",), "and a new file"),
        (("postgres", str(tmp_path / "missing" / "secrets.env")), "cannot be written: No such file or directory"),
    ):
        refused = make_secrets(*arguments)
        assert refused.returncode == 1
        assert why in refused.stderr
        assert refused.stdout == ""


def test_every_hint_names_the_host_and_the_file_of_the_secrets() -> None:
    hints = {"../make_secrets.py postgres .env"}
    assert set(re.findall(r":\?run ([^}]+)\}", (DEPLOY / "docker/compose.yaml").read_text())) == hints
    for path in (*FILES, GUIDE):
        used = re.findall(r"\S*/make_secrets\.py (?!makes)[^\n}]*", path.read_text())
        assert all(re.fullmatch(r"\S+ [\w.]+ \S*\.env", each) for each in used), used


def test_the_password_of_the_database_is_on_no_command_line_of_the_guide(tmp_path: Path) -> None:
    file = tmp_path / "secrets.env"
    make_secrets("127.0.0.1", str(file)).check_returncode()
    password = dict(line.split("=", 1) for line in file.read_text().splitlines())["POSTGRES_PASSWORD"]
    commands = guided("-- psql", ")").replace("/etc/lading/", "./")
    arguments, sql = recorded(tmp_path, "runuser", commands)
    assert not [each for each in arguments if password in each]
    assert sql.splitlines() == [
        f"create user airflow password '{password}';",
        "create database airflow owner airflow;",
    ]


def test_pods_have_the_secrets_of_airflow_only(tmp_path: Path) -> None:
    file = tmp_path / "secrets.env"
    make_secrets("postgres.example.org", str(file)).check_returncode()
    arguments, given = recorded(tmp_path, "kubectl", guided("create secret"))
    assert arguments[-2:] == ["--from-env-file", "/dev/stdin"]
    made = file.read_text().splitlines()
    assert given.splitlines() == [line for line in made if not line.startswith("POSTGRES_PASSWORD=")]
    assert len(made) - len(given.splitlines()) == 1


def test_only_the_api_server_and_the_database_have_their_passwords() -> None:
    for name, service in compose()["services"].items():
        mounted = {volume.split(":")[0]: volume.split(":")[1] for volume in service["volumes"]}
        variables = service["environment"]
        assert ("logins" in mounted) == (name == "api-server")
        assert ("POSTGRES_PASSWORD" in variables) == (name == "postgres")
        file = variables.get("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE")
        assert (file is not None) == (name == "api-server")
        if file:
            folder = str(PurePosixPath(file).parent)
            assert mounted["logins"] == folder
            # A new volume has the owner of the image's folder.
            [made] = re.findall(r"install --directory --owner 50000 .*", (DEPLOY / "docker/Dockerfile").read_text())
            assert folder in made.split()


def test_compose_starts_on_a_machine_of_any_size() -> None:
    limits = {name: service["cpus"] for name, service in compose()["services"].items() if "cpus" in service}
    assert limits == {"controller": "${CONTROLLER_CPUS:-0}"}, "Docker refuses more cores than there are; 0: no limit"


def test_every_unit_waits_for_the_migration_which_waits_for_the_database() -> None:
    migrate = "airflow-migrate.service"
    for path in UNITS:
        wanted = unit(path)["Unit"]
        assert {"network-online.target", "postgresql.service"} <= set(wanted["After"].split())
        assert "network-online.target" in wanted["Wants"].split()
        if path.name != migrate:
            assert migrate in wanted["Requires"].split()
            assert migrate in wanted["After"].split()
    service = unit(DEPLOY / "systemd" / migrate)["Service"]
    program, *arguments = shlex.split(service["ExecStartPre"])
    waiting = get_parser().parse_args(arguments)
    assert program == shlex.split(service["ExecStart"])[0]
    assert arguments[:2] == ["db", "check"]
    # Enough for a database that recovers, less than systemd gives to the unit.
    assert 300 <= waiting.retry * waiting.retry_delay < int(service["TimeoutStartSec"])


def test_nothing_is_repeated_in_a_unit_but_what_systemd_joins() -> None:
    parsed = parsed_unit("[Unit]\nAfter=a\nAfter=b\n# a comment\n[Service]\nExecStart=/bin/true\n")
    assert parsed == {"Unit": {"After": "a\nb"}, "Service": {"ExecStart": "/bin/true"}}
    for text in ("[Service]\nUser=a\nUser=b\n", "[Unit]\n[Service]\n[Unit]\n"):
        with pytest.raises(AssertionError, match="is repeated"):
            parsed_unit(text)


def test_the_controller_has_the_charts_configuration_and_the_same_dags() -> None:
    volumes = {each["name"]: each for each in pod()["volumes"]}
    for container in airflow_containers():
        mounted = {each["mountPath"]: each for each in container["volumeMounts"]}
        assert mounted["/opt/airflow/airflow.cfg"]["subPath"] == "airflow.cfg"
        assert volumes[mounted["/opt/airflow/airflow.cfg"]["name"]]["configMap"] == {"name": "airflow-config"}
    git = values()["dags"]["gitSync"]
    syncing = [each for each in (*pod()["initContainers"], *pod()["containers"]) if each["name"].startswith("git-sync")]
    assert len(syncing) == 2
    for container in syncing:
        environment = {each["name"]: each["value"] for each in container["env"]}
        # Git-sync 4 reads `ref`, whose default in the chart is a branch of Airflow's own, and git-sync 3 `branch`.
        assert git["ref"] == git["branch"]
        assert (environment["GITSYNC_REPO"], environment["GITSYNC_REF"]) == (git["repo"], git["ref"])
        assert (environment["GITSYNC_ROOT"], environment["GITSYNC_LINK"]) == ("/git", "repo")
    [controller] = pod()["containers"][:1]
    assert {"name": "dags", "mountPath": "/opt/airflow/dags", "readOnly": True} in controller["volumeMounts"]


def test_every_container_has_a_limit_of_memory_and_every_service_with_a_port_or_a_heartbeat_a_probe() -> None:
    for container in (*pod()["initContainers"], *pod()["containers"]):
        assert container["resources"]["limits"]["memory"]
    for component in ("apiServer", "scheduler", "dagProcessor", "triggerer"):
        assert values()[component]["resources"]["limits"]["memory"]
    for component in ("scheduler", "dagProcessor", "triggerer"):
        assert values()[component]["logGroomerSidecar"]["resources"]["limits"]["memory"]
    for small in (values()["dags"]["gitSync"], values()["migrateDatabaseJob"], values()["statsd"]):
        assert small["resources"]["limits"]["memory"]
    services = compose()["services"]
    assert all(service["mem_limit"] for service in services.values())
    # The migration exits; a controller that hangs exits by itself.
    assert {name for name, service in services.items() if "healthcheck" not in service} == {"migrate", "controller"}


def test_the_image_gets_from_the_lock_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("missing", DEPLOY / "docker/missing.py")
    assert spec
    assert spec.loader
    missing: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(missing)
    assert missing.missing("airflow-lading[aws]") == set()
    whole = missing.requires

    def requires(name: str) -> list[str] | None:
        if name in ("simpleeval", "highspy"):
            raise missing.PackageNotFoundError(name)
        found: list[str] | None = whole(name)
        return found

    monkeypatch.setattr(missing, "requires", requires)
    assert missing.missing("airflow-lading") == {"simpleeval"}
    assert missing.missing("airflow-lading[aws]") == {"simpleeval", "highspy"}
    lock = (DEPLOY.parent / "requirements.lock").read_text()
    lines = missing.entries(lock, {"simpleeval", "google-re2"}).splitlines()
    assert [line.partition("==")[0] for line in lines if "==" in line] == ["google-re2", "simpleeval"]
    assert all("--hash=sha256:" in line for line in lines if "==" not in line)
    both = missing.entries("a==1 ; python_version < '3.11'\na==2 ; python_version >= '3.11'\nb==1\n", {"a"})
    assert [line.partition(" ")[0] for line in both.splitlines()] == ["a==1", "a==2"]
    with pytest.raises(SystemExit, match="no entry for nothing-such"):
        missing.entries(lock, {"nothing-such"})
