"""Writes docs/reference/configuration.md from the options of the provider info and the models of the kinds of sites.

Run it after a change to them: python docs/generate_configuration.py
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from os.path import relpath
from pathlib import Path
from typing import get_args

from pydantic.fields import FieldInfo

from lading.executors.settings import SECTION
from lading.hooks.files.table_model import TableModel
from lading.hooks.machines.fixed_config import MachinesConfig
from lading.hooks.machines.local import LocalConfig
from lading.hooks.site import SiteConfig
from lading.hooks.site.rules import BindingTable, RuleTable
from lading.hooks.site.share_tables import BudgetTable, KeptTable, ShareTable
from lading.plugin.manager import site_kinds
from lading.plugin.provider_info import options
from lading.plugin.sites import keys

PAGE = Path(__file__).parent / "reference" / "configuration.md"

INTRODUCTION = f"""\
# Configuration

<!-- Written by docs/generate_configuration.py from plugin/provider_info.py and hooks/: run it again after a change. -->

Lading needs only one option, which is Airflow's own:

```ini
[core]
executor = lading.executors.LadingExecutor
```

To use Lading in addition to another executor, give it an alias. Tasks then choose Lading by this alias, for example
with `@task(executor="lading")`:

```ini
[core]
executor = LocalExecutor,lading:lading.executors.LadingExecutor
```

All other options have defaults. Set them in the section `[{SECTION}]` of `airflow.cfg`, or in environment variables
such as `AIRFLOW__{SECTION.upper()}__DEFAULT_MEMORY`. Amounts have the same units as in [hints](hints.md#units). If a
value is not valid, the scheduler stops with a message that lists the valid values.
"""


SITES = """\
# The sites file

The option `sites_file` names a TOML file that has one table for each site, `[sites.NAME]`. `airflow lading check`
validates the file and runs a trial job at every site. If the file is not valid, no controller starts, and tasks wait.
The scheduler's log, the event logs of the tasks and `airflow lading jobs` then show the error.

Amounts can have units, such as `"4 GiB"` and `"2h"`. A number without a unit means MiB for memory and disk, and seconds
for times.

```toml
[sites.local]
kind = "local"
reserve_memory = "4 GiB"
time_limit = "24h"

[sites.hpc]
kind = "slurm"
ssh_conn_id = "hpc_login"
work_dir = "/scratch/me/lading"
python = "/apps/airflow/bin/python"
queue = "batch"
node_cpus = 32
node_memory = "120 GiB"
```

The how-to guides explain how to connect [a batch cluster](clusters.md), [machines behind SSH](machines.md) and [an AWS
account](ec2.md).

## This machine

The machine of the controller is a site, even if the sites file does not mention it. The site is named `local`, has the
default value of every key, and comes before the sites of the file. To change its keys, write a table that is named
`local` or has `kind = "local"`. To run no tasks on this machine:

```toml
[sites.local]
enabled = false
```

All tasks then run at the other sites. Tasks that read the sites file themselves, such as those of a
[`JobScriptOperator`](script_operator.md), need `local`, because the file is on that machine. Without `local`, such a
task is reported as an import error, unless its own `executor_config` names a site whose machines have the file.

## Tasks that name no site

* **Which sites accept such tasks**: the first site of the file, unless it has `accept_untargeted = false`, and all
  sites with `accept_untargeted = true`. If the file has no table for `local`, `local` counts as the first site, unless
  a site of the file has `accept_untargeted = true`.
* **If several sites accept them**, a task goes to the first one that can ever run it, including on machines that the
  site could launch. If none of these sites can run the task, the Dag has an import error, even if another site could
  run it.
* **If that site has no room** or is unavailable, the task goes to the next one. With `burst_after = "10 min"` in the
  table of a site, a task first waits at this site for ten minutes.

## When the file changes

A controller keeps using the file as it was when the controller started. If the file has changed since, the controller's
log, `airflow lading sites` and `airflow lading check` say so.

If you have just set `sites_file`, or set it to another path, restart Airflow (and the controller's service, if there is
one). A controller that Airflow's scheduler starts has the scheduler's settings, so killing the controller is not
enough.

If only the contents of the file have changed, restart only the controller; running tasks continue:

1. If controllers run on several machines, copy the file to all of them.
2. Run `airflow lading check` to validate the new file.
3. Run `kill PID` with the pid that the check shows. The scheduler starts another controller within seconds. If the
   controller is a service, restart the service instead. If there are controllers on standby, restart these first.

What happens to jobs:

* **A new site** takes jobs at once.
* **A changed table** applies to jobs that are submitted after the restart. A site finds its running jobs by `kind`,
  `mode`, `work_dir` and its connection. Before you change one of these, let the jobs of the site finish. Or write a
  table with another name, and keep the old table until its jobs have finished.
* **A removed site**: jobs that name it fail, and its jobs that had not started are `lost` after a minute. Let its
  running jobs finish before you remove it. Otherwise their logs are no longer fetched, and marking their tasks in
  Airflow does not stop them.
"""


HEAD = "| key | default | meaning |\n|---|---|---|"
FIRST_VERSION = "0.1.0"


Row = tuple[str, str, str]
# Keys that several kinds share are listed once: the title of each group, and whether a kind belongs to it.
GROUPS: Mapping[str, Callable[[type[SiteConfig]], bool]] = {
    "all sites": lambda model: True,
    "all sites but `local`": lambda model: model is not LocalConfig,
    "`ec2` and `ssh`": lambda model: issubclass(model, MachinesConfig),
}


def rows(model: type[TableModel], names: Iterable[str]) -> list[Row]:
    """Return key, default and meaning of the given keys of a table."""
    fields = model.model_fields
    return [(f"`{key}`", default(fields[key]), fields[key].description or "") for key in names]


def lines(found: Iterable[Row]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in found]


def shared_rows(models: Iterable[type[SiteConfig]]) -> dict[str, list[Row]]:
    """Return, by group, the keys that are the same in all its kinds, without those of earlier groups."""
    found: dict[str, list[Row]] = {}
    for group, is_in_group in GROUPS.items():
        known = [row for its in found.values() for row in its]
        first, *others = (site_rows(model) for model in models if is_in_group(model))
        found[group] = [row for row in first if row not in known and all(row in other for other in others)]
    return found


def site_rows(model: type[SiteConfig]) -> list[Row]:
    return rows(model, [key for key in keys(model) if key != "kind"])


def heading(group: str) -> str:
    return f"Keys of {group}"


def link(group: str) -> str:
    """Return the link to the keys of a group on this page."""
    anchor = re.sub(r"[^\w -]", "", heading(group).lower()).replace(" ", "-")
    return f"[{group}](#{anchor})"


def kind(names: list[str], model: type[SiteConfig], shared: Mapping[str, list[Row]]) -> str:
    """Return the section about kinds of sites with the same table."""
    groups = [group for group, is_in_group in GROUPS.items() if is_in_group(model)]
    known = [row for group in groups for row in shared[group]]
    own = [row for row in site_rows(model) if row not in known]
    title = f"## kind = {', '.join(map(repr, names))}"
    parts = (
        part(f"### A {name.removesuffix('s')}" if name.endswith("s") else f"### The table `{name}`", table)
        for name, table in tables(model).items()
    )
    also = f"Such a site has the following keys. It also has the keys of {' and of '.join(map(link, groups))}."
    return "\n".join([title, "", also, "", HEAD, *lines(own), "", *parts])


def tables(model: type[SiteConfig]) -> dict[str, type[TableModel]]:
    """Return the models of nested tables and lists of tables, by key."""
    inner = {name: get_args(field.annotation) for name, field in model.model_fields.items()}
    return {
        name: found[0]
        for name, found in inner.items()
        if found and isinstance(found[0], type) and issubclass(found[0], TableModel)
    }


def part(title: str, model: type[TableModel]) -> str:
    """Return the section about one table."""
    return "\n".join([title, "", HEAD, *lines(rows(model, model.model_fields)), ""])


def default(field: FieldInfo) -> str:
    """Return the default of a key as text."""
    if field.is_required():
        return "required"
    if field.default in (None, "", {}, ()):
        return "none"
    return f"`{list(field.default) if isinstance(field.default, tuple) else field.default}`"


def page() -> str:
    """The whole page as Markdown."""
    models: dict[type[SiteConfig], list[str]] = {}
    for name, site in sorted(site_kinds().items()):
        models.setdefault(site.config_model, []).append(name)
    shared = shared_rows(models)
    groups = ("\n".join([f"## {heading(group)}", "", HEAD, *lines(found), ""]) for group, found in shared.items())
    kinds = (kind(names, model, shared) for model, names in models.items())
    sections = (section(name, option) for name, option in options().items())
    return linked(
        "\n".join([INTRODUCTION, *sections, SITES, bindings(), rule_tables(), shares(), budgets(), *groups, *kinds])
    )


def linked(text: str) -> str:
    """Make links relative to the folder of this page: descriptions name only the file of a page, not its folder."""
    folders = {page.name: page.parent for page in PAGE.parents[1].glob("*/*.md")}
    return re.sub(r"(?<=\]\()([a-z0-9_]+\.md)", lambda m: relpath(folders[m[1]] / m[1], PAGE.parent), text)


def rule_tables() -> str:
    said = (
        "A rule says what a task gives up if no location has room for its full request. See "
        "[rules](placement.md#rules)."
    )
    return part("## [[rules]]", RuleTable).replace("\n\n", f"\n\n{said}\n\n", 1)


def bindings() -> str:
    said = (
        "A binding says where tasks go, without a change to their Dags. See [where a job goes](placement.md#bindings)."
    )
    return part("## [[bindings]]", BindingTable).replace("\n\n", f"\n\n{said}\n\n", 1)


def shares() -> str:
    said = "A share says how much of the machines a team or a group of Dags gets. See [shares](shares.md)."
    kept = part("### A site of a share", KeptTable)
    return "\n".join([part("## [[shares]]", ShareTable).replace("\n\n", f"\n\n{said}\n\n", 1), kept])


def budgets() -> str:
    said = "A budget limits what jobs can cost in each period. See [budgets](shares.md#budgets)."
    return part("## [[budgets]]", BudgetTable).replace("\n\n", f"\n\n{said}\n\n", 1)


def section(name: str, option: dict[str, str | None]) -> str:
    """Return the section about one option."""
    value = option["default"]
    facts = [
        (option["type"] or "").capitalize(),
        "no default" if value is None else f"default `{value}`",
        f"example `{option['example']}`",
        *([] if option["version_added"] == FIRST_VERSION else [f"since {option['version_added']}"]),
    ]
    return "\n".join(
        [f"## {name}", "", re.sub("``", "`", option["description"] or ""), "", f"*{', '.join(facts)}.*", ""]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
