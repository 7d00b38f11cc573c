"""The sites file: what is valid, and the messages for a wrong one."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lading.executors.controller import housekeeping
from lading.executors.settings import Settings, cpus_here
from lading.hooks.files import hardware
from lading.hooks.machines.local import LocalSite
from lading.hooks.site import Observation, ObservedLocation
from lading.plugin import hint_checks
from lading.plugin.hookspecs import hookimpl
from lading.plugin.host import AirflowHost
from lading.plugin.manager import binding_filters, plugin_manager
from lading.plugin.published import bindings
from lading.plugin.sites import SitesError, known_sites, load_sites
from lading.scheduling.gangs.room import options
from lading.scheduling.gangs.supply import demand, shortage
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.matching.bindings import Binding
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.resources import Resources
from tests.clusters.published import site
from tests.clusters.sites import make_settings

Make = Callable[[str | None], Settings]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(text: str | None) -> Settings:
        path = tmp_path / "sites.toml"
        if text is not None:
            path.write_text(text)
        return make_settings(tmp_path / "state", sites_file=path if text is not None else None)

    return make


HPC = '[sites.a]\nkind = "slurm"\npython = "/py"\nnode_cpus = 4\nnode_memory = 4000\n'
DIRECTIVES = f'{HPC}work_dir = "/w"\n[sites.a.resources]'


def test_without_a_file_there_is_this_machine(make: Make, tmp_path: Path) -> None:
    [site] = load_sites(make(None)).values()
    assert isinstance(site, LocalSite)
    assert site.folder == tmp_path / "state/spool/local"
    assert site.capacity.cpus >= 1


def test_a_full_disk_is_no_smaller_one(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [site] = load_sites(make(None)).values()
    size = shutil.disk_usage(tmp_path).total
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=size, free=0))
    assert site.capacity.disk == site.potential()[0].capacity.disk == size // 2**20


def test_a_declared_capacity_wins_over_what_is_found(make: Make) -> None:
    [site] = load_sites(
        make('[sites.box]\nkind = "local"\ncpus = 3\nmemory = "5 GiB"\ndisk = "7 GiB"\ngpus = 2\ntime_limit = "2h"')
    ).values()
    assert site.potential()[0].capacity == Resources(cpus=3, memory=5120, disk=7168, gpus=2)
    assert site.config.time_limit == 7200


def test_a_file_of_shares_and_budgets_alone_is_about_this_machine(make: Make) -> None:
    settings = make('[[shares]]\nteam = "a"\n[[budgets]]\nteam = "a"\ncpu_hours = 1')
    [site] = load_sites(settings).values()
    assert (site.name, site.kind, site.config.accept_untargeted) == ("local", "local", True)
    assert cpus_here(settings.sites_file) == cpus_here(None) > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sites", "is not valid TOML"),
        ("", "declares no site"),
        ("[sites]", "declares no site"),
        ("[site.a]\nkind='local'", "unknown table site"),
        ("[sites.a]", "[sites.a] kind = None is unknown; the kinds are: ec2, local"),
        ("[sites.a]\nkind='cloud9'", "[sites.a] kind = 'cloud9' is unknown; the kinds are: ec2, local"),
        ("[sites.'../a']\nkind='local'", "site name '../a' is not valid"),
        ("[sites.a]\nkind='local'\ncpu=3", "[sites.a] cpu is unknown; did you mean cpus? The keys are: "),
        ("[sites.a]\nkind='local'\nmemory='much'", "[sites.a] memory = 'much'"),
        ("[sites.a]\nkind='local'\ncpus=-1", "[sites.a] cpus = -1"),
        ("[sites]\na=1", "[sites.a] is not a table"),
        ("[sites.a]\nkind='ssh'\npython='/p'", "[sites.a] work_dir is missing; it must be given"),
        ("[sites.a]\nkind='ssh'\nhosts=[{cpus=1}]", "[sites.a] hosts.0.ssh_conn_id is missing; it must be given"),
        ("[sites.a]\nkind = []", "[sites.a] kind = [] is unknown; the kinds are: ec2, local"),
        ("[sites.a]\nkind = {a = 1}", "[sites.a] kind = {'a': 1} is unknown; the kinds are: ec2, local"),
        ("[sites.a]\nkind='local'\ncpus = inf", "[sites.a] cpus = inf: a finite number is expected"),
        ("[sites.a]\nkind='local'\ncpus = nan", "[sites.a] cpus = nan: a finite number is expected"),
        ("[sites.a]\nkind='local'\ncpus = true", "[sites.a] cpus = True: neither true nor false is valid here"),
        ("[sites.a]\nkind='local'\ncpus = 1e300", "[sites.a] cpus = 1e+300: it is too large; valid: at most"),
        ("[sites.a]\nkind='local'\ngpus = true", "[sites.a] gpus = True: neither true nor false is valid here"),
        ("[sites.a]\nkind='local'\nreserve_cpus = inf", "[sites.a] reserve_cpus = inf: a finite number"),
        ('[sites.a]\nkind="local"\ninstance_type="a\\u0000b"', "sites.a.instance_type = 'a\\x00b' has a NUL character"),
        (
            '[sites.a]\nkind="local"\ninstance_type="a\\u001bb"',
            "instance_type = 'a\\x1bb': it has the character '\\x1b'",
        ),
        (f"x = {'[' * 3000}{']' * 3000}", "is not valid TOML: it is nested too deeply"),
        (f"x = {'{a=' * 3000}1{'}' * 3000}", "is not valid TOML: it is nested too deeply"),
        (f"{'a.' * 3000}a = 1", "is not valid TOML: line 1 has more than 200 dots"),
        (f"{'a.' * 30}a = 1", "is nested too deeply; valid: at most 20"),
        (f"{DIRECTIVES}\nx = inf", "[sites.a] resources.x = inf: a finite number is expected"),
        (f"{DIRECTIVES}\nx = nan", "[sites.a] resources.x = nan: a finite number is expected"),
        (f'{DIRECTIVES}\nx = "a\\nb"', "[sites.a] resources.x = 'a\\nb': one line of text is expected"),
        (
            f'{DIRECTIVES}\nx = "a\\u2028b"',
            "[sites.a] resources.x = 'a\\u2028b': one line of text is expected",
        ),
        (f'{HPC}work_dir = "/{"x" * 5000}"', ": it has 5,001 bytes; valid: at most 4,096"),
        (f'{HPC}work_dir = "/{"ü" * 2500}"', ": it has 5,001 bytes; valid: at most 4,096"),
        (f"x = 0x{'f' * 5000}", "x is a number of more than 64 bits"),
        (f"x = {'1' * 5000}", "is not valid TOML: "),
    ],
)
def test_a_wrong_file_is_named_with_the_place_and_what_is_valid(make: Make, text: str, words: str) -> None:
    with pytest.raises(SitesError) as caught:
        load_sites(make(text))
    assert words in str(caught.value)
    assert "sites.toml" in str(caught.value)


def test_a_missing_file_is_named(make: Make, tmp_path: Path) -> None:
    settings = make("")
    (tmp_path / "sites.toml").unlink()
    with pytest.raises(SitesError, match=r"sites_file cannot be read: .*sites.toml"):
        load_sites(settings)


def test_a_reserve_that_leaves_nothing_is_said(make: Make) -> None:
    [site] = load_sites(make('[sites.a]\nkind = "local"\nreserve_cpus = 4096')).values()
    with pytest.raises(ValueError, match="lower the reserve"):
        _ = site.capacity


def test_what_the_controller_published_is_what_is_known(make: Make) -> None:
    settings = make('[sites.a]\nkind = "local"\ncpus = 3\nmemory = 1024\ndisk = 5\ninstance_type = "m7i.large"')
    [declared] = known_sites(settings)["a"].locations
    assert (declared.capacity, declared.instance_type) == (Resources(cpus=3, memory=1024, disk=5), "m7i.large")
    settings.state_folder.mkdir(exist_ok=True)
    sites = {"a": site(9, 8, 7, 0, "c7i.large")}
    settings.published_sites.write_text(json.dumps({"sites": sites}))
    [seen] = known_sites(settings)["a"].locations
    assert (seen.capacity, seen.instance_type) == (Resources(cpus=9, memory=8, disk=7), "c7i.large")
    settings.published_sites.write_text(json.dumps({"sites": {"a": {"capacity": None}}}))
    assert known_sites(settings)["a"].locations == (declared,), "what another version has published is ignored"


def test_what_a_batch_site_adds_to_requests_is_known(make: Make) -> None:
    text = f'{HPC}work_dir = "/w"\n[sites.b]\nkind = "local"\ncpus = 3'
    assert {name: each.memory_overhead for name, each in known_sites(make(text)).items()} == {"a": 384, "b": 0}
    less = known_sites(make(f'{HPC}work_dir = "/w"\nmemory_overhead = 100'))["a"]
    assert less.memory_overhead == 100


def test_a_site_that_could_not_be_asked_yet_is_known_by_its_table(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make('[sites.a]\nkind = "local"\ncpus = 3\nmemory = 1024\n[sites.b]\nkind = "local"\ncpus = 5')
    settings.state_folder.mkdir(exist_ok=True)
    sites = load_sites(settings)
    monkeypatch.setattr(housekeeping.store, "save_locations", lambda *_: None)
    monkeypatch.setattr(housekeeping.capacity, "save", lambda *_: None)
    monkeypatch.setattr(housekeeping.capacity, "save", lambda *_: None)
    seen = [
        ObservedLocation(replace(site.potential()[0], capacity=Resources(cpus=2, memory=512))) for site in [sites["a"]]
    ]
    housekeeping.Housekeeping(AirflowHost(), settings, True, sites).save_locations(None, sites["a"], Observation(seen))  # type: ignore[arg-type]
    known = known_sites(settings)
    assert [each.capacity for each in known["a"].locations] == [Resources(cpus=2, memory=512)]
    assert [each.capacity.cpus for each in known["b"].locations] == [5]


def test_a_third_party_adds_a_kind(make: Make) -> None:
    class Moon(LocalSite):
        kind = "moon"

    class Plugin:
        @staticmethod
        @hookimpl
        def site_kinds() -> list[type[LocalSite]]:
            return [Moon]

    plugin_manager().register(Plugin)
    try:
        text = '[sites.a]\nkind = "moon"'
        with pytest.raises(SitesError, match="Input should be 'local'"):
            load_sites(make(text))
        with pytest.raises(SitesError, match="the kinds are: ec2, local, lsf, moon, pbspro, sge, slurm, ssh, torque"):
            load_sites(make('[sites.a]\nkind = "sun"'))
    finally:
        plugin_manager().unregister(Plugin)


CLUSTER = """
[sites.hpc]
kind = "slurm"
ssh_conn_id = "login"
work_dir = "/scratch/lading"
python = "/apps/python"
node_cpus = 32
node_memory = "128 GiB"
"""


def test_every_batch_system_is_a_kind(make: Make) -> None:
    for kind in ("slurm", "pbspro", "torque", "lsf", "sge"):
        local, site = load_sites(make(CLUSTER.replace("slurm", kind))).values()
        assert local.kind == "local"
        assert site.kind == kind
        assert site.potential()[0].capacity == Resources(32, 128 * 1024 - 384)
        assert site.jwt_seconds == 86400


@pytest.mark.parametrize("mode", ["job", "allocation"])
def test_allocations_are_machines_and_queues_are_none(make: Make, mode: str) -> None:
    """A queue takes so many jobs whatever they ask for; in an allocation gangs find room."""
    site = list(load_sites(make(f"{CLUSTER}\nmode = '{mode}'")).values())[1]
    [node] = site.potential()
    assert (site.holds, node.max_jobs is None) == ((True, True) if mode == "allocation" else (False, False))
    there = SiteView(name="hpc", possible=[node], holds=site.holds, launches=site.launches)
    members = [WaitingJob(name, Resources(1, 300), site="hpc") for name in "ab"]
    asked = demand("workers", members, options(members, [there]), {"hpc": there})
    assert asked is None if mode == "job" else asked is not None and shortage([asked]) is None


def test_what_the_machines_of_a_site_are_besides_amounts(make: Make) -> None:
    words = 'arch = "arm64"\nos = "rocky9"\nfeatures = ["sve", "nvme"]\ncapacity_type = "spot"'
    words += '\nproperties = {license = "matlab"}'
    for mode in ("job", "allocation"):
        settings = make(f"{CLUSTER}\n{words}\nmode = '{mode}'")
        local, site = load_sites(settings).values()
        [here], [node] = local.potential(), site.potential()
        assert (here.arch, here.os, here.features, here.capacity_type) == (
            hardware.arch(), "linux", frozenset(), "on-demand",
        )  # fmt: skip
        assert (local.arch, site.arch) == (hardware.arch(), "aarch64")
        assert (node.arch, node.os, node.capacity_type) == ("aarch64", "rocky9", "spot")
        assert node.features == {"sve", "nvme", "license=matlab"}
        [known] = known_sites(settings)["hpc"].locations
        assert known.kind == node.kind._replace(hints=frozenset())
    [plain] = list(load_sites(make(CLUSTER)).values())[1].potential()
    assert (plain.arch, plain.os, plain.features, plain.capacity_type) == ("x86_64", "linux", frozenset(), "on-demand")
    for wrong, said in (("arch = 7", "arch = 7: 7 is not an architecture"),
                        ("features = [1]", "not a list of features"), ("properties = ['x']", "are not properties"),
                        ("capacity_type = 'cheap'", "not a capacity type; valid: on-demand or spot")):  # fmt: skip
        with pytest.raises(SitesError, match=said):
            load_sites(make(f"{CLUSTER}\n{wrong}"))


def test_a_cluster_without_a_directive_for_excluded_nodes_says_so(make: Make) -> None:
    text = CLUSTER.replace('"slurm"', '"torque"')
    assert text != CLUSTER
    load_sites(make(text))
    load_sites(make(f"{text}\nexclude_nodes_for = 0"))
    load_sites(make(f"{CLUSTER}\nexclude_nodes_for = '1h'"))
    with pytest.raises(SitesError, match="exclude_nodes_for = 3600: torque has no option"):
        load_sites(make(f"{text}\nexclude_nodes_for = '1h'"))


def test_a_batch_site_says_by_what_its_hints_are_checked(make: Make) -> None:
    settings = make(f"{CLUSTER}\n[sites.local]\nkind = 'local'")
    known = known_sites(settings)
    assert known["local"].dialect is None
    dialect = known["hpc"].dialect
    assert dialect is not None
    assert json.loads(json.dumps(dialect))["system"] == "slurm"
    assert dialect["takes_layouts"]
    packed = known_sites(make(f"{CLUSTER}\nmode = 'allocation'"))["hpc"].dialect
    assert packed is not None
    assert not packed["takes_layouts"]


def test_the_rules_of_a_site_hold_before_a_controller_has_published_them(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = "allowed_dags = ['etl_*']\nrefused_native = ['account']\nallowed_native = ['account', 'qos']"
    settings = make(f"{CLUSTER}\n{rules}")
    monkeypatch.setattr(Settings, "load", lambda: settings)
    monkeypatch.setattr(hint_checks, "_read_sites", hint_checks._read_sites.__wrapped__)
    hint_checks.check(Hints.parse({"site": "hpc", "native": {"qos": "a"}}), "etl_1")
    for dag, native, words in (
        ("evil", {}, r"Dag 'evil' is not allowed there: site 'hpc' has allowed_dags = \['etl_\*'\]"),
        ("etl_1", {"account": "a"}, r"account is not accepted here: refused_native = \['account'\]"),
        ("etl_1", {"comment": "a"}, r"comment is not accepted here: allowed_native = \['account', 'qos'\]"),
    ):
        with pytest.raises(HintError, match=words):
            hint_checks.check(Hints.parse({"site": "hpc", "native": native} if native else {"site": "hpc"}), dag)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("work_dir = 'scratch'", "absolute path is expected"),
        ("work_dir = '/'", "work_dir = '/': a path with at least one name"),
        ("work_dir = '//./'", "work_dir = '//./': a path with at least one name"),
        ("work_dir = '/scratch/../..'", "work_dir = '/scratch/../..': a path with at least one name"),
        ('work_dir = "/scratch/\\na"', "absolute path is expected"),
        ("python = '/'", "python = '/': a path with at least one name"),
        ("node_cpus = true", "node_cpus = True: neither true nor false is valid here"),
        ("node_cpus = inf", "node_cpus = inf: a finite number is expected"),
        ("max_jobs = true", "max_jobs = True: neither true nor false is valid here"),
        ("max_jobs = 1000000000000", "max_jobs = 1000000000000: it is too large"),
        ("node_gpus = nan", "node_gpus = nan: a finite number is expected"),
        ('queue = "a\\nb"', "queue = 'a\\nb': one line of text is expected"),
        ("[sites.hpc.whole_node]\ncpus = true", "whole_node.cpus = True: neither true nor false"),
        ("max_poll_interval = 1", "max_poll_interval = 1"),
        ("poll_longest = 30", "[sites.hpc] poll_longest is now called max_poll_interval; rename it"),
        (
            "poll_shortest = 2",
            "[sites.hpc] poll_shortest is no longer a key; its former default applies, so remove it",
        ),
        ("boot = 'true'", "[sites.hpc] boot is unknown; the keys are: "),
        ("mode = 'pilot'", "mode = 'pilot'"),
        ("modes = 'job'", "modes is unknown; did you mean mode? The keys are: "),
        ("nodes = 2", "nodes = 2: Input should be 'ignore'"),
        ("[sites.hpc.memory]\nper = 'core'", "memory.per = 'core'"),
        ("control_master = 'login'", "ssh_conn_id and control_master are two ways"),
    ],
)
def test_a_cluster_says_what_is_wrong(make: Make, line: str, words: str) -> None:
    key = line.partition(" ")[0]
    text = "\n".join(each for each in CLUSTER.splitlines() if not each.startswith(key))
    with pytest.raises(SitesError) as caught:
        load_sites(make(f"{text}\n{line}"))
    assert words in str(caught.value)


OTHER = CLUSTER.replace("hpc", "other")


@pytest.mark.parametrize(
    ("text", "takers", "others"),
    [
        (None, ["local"], []),
        (CLUSTER, ["local"], ["hpc"]),
        (CLUSTER + "accept_untargeted = true", ["hpc"], ["local"]),
        (CLUSTER + "accept_untargeted = false", ["local"], ["hpc"]),
        (CLUSTER + "accept_untargeted = true" + OTHER + "accept_untargeted = true", ["hpc", "other"], ["local"]),
        ("[sites.local]\nenabled = false" + CLUSTER + OTHER, ["hpc"], ["other"]),
        (CLUSTER + OTHER + "[sites.local]\nenabled = false\nkind = 'local'", ["hpc"], ["other"]),
        ("[sites.local]" + CLUSTER, ["local"], ["hpc"]),
        (CLUSTER + "[sites.local]\ncpus = 2", ["hpc"], ["local"]),
        (CLUSTER + "[sites.box]\nkind = 'local'", ["hpc"], ["box"]),
        ("[sites.local]" + CLUSTER + "accept_untargeted = true", ["local", "hpc"], []),
        ("[sites.local]\naccept_untargeted = false" + CLUSTER + "accept_untargeted = true", ["hpc"], ["local"]),
        ("[sites.local]\naccept_untargeted = false" + CLUSTER, [], ["local", "hpc"]),
        (CLUSTER.replace("hpc", "local") + OTHER, ["local"], ["other"]),
    ],
)
def test_which_sites_there_are_and_which_take_tasks_that_name_none(
    make: Make, text: str | None, takers: list[str], others: list[str]
) -> None:
    sites = load_sites(make(text))
    assert [name for name, site in sites.items() if site.config.accept_untargeted] == takers
    assert [name for name, site in sites.items() if not site.config.accept_untargeted] == others
    known = known_sites(make(text))
    assert [name for name, site in known.items() if site.accept_untargeted] == takers


@pytest.mark.parametrize(
    "text", ['kind = "local"', *(f'kind = "{kind}"' for kind in ("slurm", "lsf", "sge", "torque"))]
)
def test_every_kind_takes_the_options_of_all(make: Make, text: str) -> None:
    table = CLUSTER.replace('kind = "slurm"', text) if "local" not in text else f"[sites.hpc]\n{text}\n"
    [site] = [
        site
        for name, site in load_sites(make(f"{table}\nburst_after = '1h'\naccept_untargeted = true")).items()
        if name == "hpc"
    ]
    assert (site.config.burst_after, site.config.accept_untargeted) == (3600, True)
    assert load_sites(make(f"{table}\nburst_after = 0"))["hpc"].config.burst_after == 0
    for line in ("accept_untargeted = 'yes'", "accept_untargeted = 1", "burst_after = -1", "burst_after = 'soon'"):
        with pytest.raises(SitesError, match=line.partition(" ")[0]):
            load_sites(make(f"{table}\n{line}"))


def test_a_file_that_leaves_no_site_is_refused(make: Make) -> None:
    with pytest.raises(SitesError, match="leaves no site"):
        load_sites(make("[sites.local]\nenabled = false"))


def test_what_is_published_has_the_order_of_the_file_and_its_options(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make(
        '[sites.a]\nkind = "local"\n[sites.b]\nkind = "local"\nburst_after = 5\naccept_untargeted = true' + CLUSTER
    )
    settings.state_folder.mkdir(exist_ok=True)
    sites = load_sites(settings)
    monkeypatch.setattr(housekeeping.store, "save_locations", lambda *_: None)
    monkeypatch.setattr(housekeeping.capacity, "save", lambda *_: None)
    monkeypatch.setattr(housekeeping.capacity, "save", lambda *_: None)
    seen = [
        ObservedLocation(replace(site.potential()[0], capacity=Resources(cpus=2, memory=512))) for site in [sites["b"]]
    ]
    housekeeping.Housekeeping(AirflowHost(), settings, True, sites).save_locations(None, sites["b"], Observation(seen))  # type: ignore[arg-type]
    found = [
        (name, site.accept_untargeted, site.burst_after, site.has_sites_file)
        for name, site in known_sites(settings).items()
    ]
    assert found == [("a", True, 0, True), ("b", True, 5, True), ("hpc", False, 0, False)]


def test_bindings_are_read_with_the_sites_and_published_for_the_parse_of_dags(make: Make) -> None:
    text = f'{CLUSTER}[[bindings]]\ndag = "train_*"\ntargets = ["hpc/long", "local"]\n'
    settings = make(text)
    sites = load_sites(settings)
    assert bindings(settings) == [Binding(("hpc/long", "local"), dag="train_*")], "no controller has run yet"
    settings.state_folder.mkdir()
    housekeeping.Housekeeping(AirflowHost(), settings, True, sites)._publish({})
    Path(str(settings.sites_file)).write_text(CLUSTER)
    assert bindings(settings) == [Binding(("hpc/long", "local"), dag="train_*")], "what the controller goes by counts"
    with pytest.raises(
        SitesError, match=r"sites.toml: \[\[bindings\]\] 1: targets: 'moon' names no existing site; valid: "
    ):
        load_sites(make(f'{CLUSTER}[[bindings]]\ntargets = ["moon"]'))


def test_the_filters_of_a_third_party_have_names_of_their_own() -> None:
    class Ours:
        @hookimpl
        def binding_filters(self) -> dict[str, object]:
            return {"ours": len, "shuffle": len} if self.is_rude else {"ours": len}

        is_rude = False

    plugin = Ours()
    plugin_manager().register(plugin)
    try:
        assert set(binding_filters()) == {"shuffle", "ours"}
        plugin.is_rude = True
        with pytest.raises(ValueError, match="binding filter 'shuffle' is offered by"):
            binding_filters()
    finally:
        plugin_manager().unregister(plugin)


def test_a_site_that_buys_nothing_buys_nothing_by_a_forecast(make: Make) -> None:
    words = (
        "policy = 'forecast' is not a policy of this kind of site; leave it out for 'greedy', or give one of greedy, "
        "priced, first_"
    )
    with pytest.raises(SitesError, match=words):
        load_sites(make('[sites.local]\nkind = "local"\npolicy = "forecast"\n'))


@pytest.mark.parametrize(
    ("policy", "why"), [("hours", "is unknown"), ("priced", "is not a policy of this kind of site")]
)
def test_policies_that_a_forecast_has_replaced_are_refused(make: Make, policy: str, why: str) -> None:
    table = (
        '[sites.cloud]\nkind = "ec2"\nsubnets = ["subnet-0a1b2c3d"]\nami = {x86_64 = "ami-0a1b2c3d"}\n'
        f'work_dir = "/w"\npython = "/p"\npolicy = "{policy}"\n'
    )
    words = f"policy = '{policy}' {why}; leave it out for 'forecast', or give one of forecast, greedy"
    with pytest.raises(SitesError, match=words):
        load_sites(make(table))
    assert load_sites(make(table.replace(f'"{policy}"', '"greedy"')))["cloud"].config.policy == "greedy"


def test_a_policy_is_one_of_ladings_or_of_a_plugin(make: Make) -> None:
    class Ours:
        name = "ours"

        @hookimpl
        def policies(self) -> dict[str, object]:
            return {self.name: self}

    table = '[sites.local]\nkind = "local"\npolicy = "ours"\n'
    words = "policy = 'ours' is unknown; leave it out for 'greedy', or give one of greedy, priced, first_come, data_loc"
    with pytest.raises(SitesError, match=words):
        load_sites(make(table))
    plugin = Ours()
    plugin_manager().register(plugin)
    try:
        assert load_sites(make(table))["local"].config.policy == "ours"
        plugin.name = "greedy"
        with pytest.raises(ValueError, match="policy 'greedy' of a plugin has the name of a built-in policy"):
            load_sites(make(table))
    finally:
        plugin_manager().unregister(plugin)


def test_what_is_for_another_policy_is_refused(make: Make) -> None:
    with pytest.raises(SitesError, match="locality_fallback cannot be used without policy = 'data_locality'"):
        load_sites(make('[sites.local]\nkind = "local"\nlocality_fallback = "cheapest"\n'))


# -- the extra `planning`

EC2 = (
    '[sites.a]\nkind = "ec2"\nregion = "us-east-1"\nsubnets = ["subnet-0a1b2c3d"]\nsecurity_groups = ["sg-0a1b2c3d"]\n'
    'ami = {x86_64 = "ami-0a1b2c3d"}\nuser = "ec2-user"\nwork_dir = "/w"\npython = "/py"\ninstance_types = ["c7i.*"]\n'
)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ('[sites.local]\nkind = "local"\npolicy = "priced"\n', 'policy = "priced"'),
    ],
)
def test_what_needs_numpy_and_highs_is_refused_where_they_are_not_installed(
    make: Make, monkeypatch: pytest.MonkeyPatch, table: str, key: str
) -> None:
    load_sites(make(table))
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(SitesError) as refusal:
        load_sites(make(table))
    remedy = "needs HiGHS, which is not installed: pip install 'airflow-lading[planning]'"
    assert f"] {key} {remedy}" in str(refusal.value)


@pytest.mark.parametrize(
    "table",
    [
        '[sites.local]\nkind = "local"\n',
        '[sites.local]\nkind = "local"\npolicy = "first_come"\n',
        '[sites.lab]\nkind = "ssh"\nwork_dir = "/w"\npython = "/py"\nhosts = [{ssh_conn_id = "lab1"}]\n',
        f'{HPC}work_dir = "/w"\n',
        f'{HPC}work_dir = "/w"\nmode = "allocation"\n',
        EC2,
        f'{EC2}policy = "data_locality"\n',
        f'{EC2}policy = "greedy"\n',
    ],
)
def test_other_sites_need_neither(make: Make, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setitem(sys.modules, "highspy", None)
    load_sites(make(table))
