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

Lading needs one option, Airflow's own:

```ini
[core]
executor = lading.executors.LadingExecutor
```

Next to another executor, give it an alias, which tasks then name, for example `@task(executor="lading")`:

```ini
[core]
executor = LocalExecutor,lading:lading.executors.LadingExecutor
```

Everything else has a default. Set options in the section `[{SECTION}]` of `airflow.cfg`, or in environment variables
such as `AIRFLOW__{SECTION.upper()}__DEFAULT_MEMORY`; units are those of the [hints](hints.md#units). If a value is not
valid, the scheduler stops with a message that lists the valid values.
"""


SITES = """\
# The sites file

`sites_file` names a TOML file with one table per site, `[sites.NAME]`. `airflow lading check` validates it and
runs a trial job at every site. If the file is not valid, no controller starts: tasks wait, and the scheduler's log, the
tasks' event logs and `airflow lading jobs` say why. A number without a unit is MiB of memory or disk, or seconds of
time; values such as `"4 GiB"` and `"2h"` are accepted.

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

See how to connect [a batch cluster](clusters.md), [machines behind SSH](machines.md) and [an AWS account](ec2.md).

## This machine

Unless a table has `kind = "local"` or is named `local`, the machine of the controller is a site, too: it is named
`local`, has all defaults and comes before the sites of the file. To run nothing on this machine:

```toml
[sites.local]
enabled = false
```

All tasks then run at the other sites. A task that itself reads the sites file, such as a
[`JobScriptOperator`](script_operator.md), runs at `local`; without `local` it is an import error, unless its own
`executor_config` names a site whose machines have the file.

## Tasks that name no site

* **Which site**: the first of the file, unless it has `accept_untargeted = false`, and those with
  `accept_untargeted = true`. `local` without a table counts as the first, unless a site of the file has
  `accept_untargeted = true`.
* **If there are several**: the first one that can ever run the task, also on machines that could be launched. If
  none of these sites can run the task, the Dag has an import error, even if a site outside this list could.
* **If it has no room**, or the site is in trouble, the task goes to the next one. With `burst_after = "10 min"`, the
  task first waits there for ten minutes.

## When the file changes

A controller uses the file as it was when it started; its log, `airflow lading sites` and `airflow lading check` report
if it has changed since. Restart the controller only:

1. `airflow lading check` validates the new file.
2. Run `kill PID` with the pid that the check shows: the scheduler starts another controller within seconds. If the
   controller is a service, restart that. Running tasks continue.
3. If there are several machines, copy the file to all of them first, restart the controllers on standby, then the
   active one.

What happens to jobs:

* **A new site** takes jobs at once.
* **A changed table** applies to what is submitted from then on. `kind`, `mode`, `work_dir` and the connection say
  where a site finds its jobs: let its jobs finish first, or give the new place a new name and keep the old table until
  they have.
* **A removed site**: jobs that name it fail, and those that had not started are `lost` after a minute. Let running jobs
  finish first: their logs are no longer fetched, and marking them does not stop them.
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
    also = f"Also the keys of {'; '.join(map(link, groups))}."
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
    said = "What tasks give up if no location has room for their full request; see [rules](placement.md#rules)."
    return part("## [[rules]]", RuleTable).replace("\n\n", f"\n\n{said}\n\n", 1)


def bindings() -> str:
    said = "Which tasks go where, without changing their Dags; see [where a job goes](placement.md#bindings)."
    return part("## [[bindings]]", BindingTable).replace("\n\n", f"\n\n{said}\n\n", 1)


def shares() -> str:
    said = "How much of the machines each team or group of Dags gets; see [shares](shares.md)."
    kept = part("### A site of a share", KeptTable)
    return "\n".join([part("## [[shares]]", ShareTable).replace("\n\n", f"\n\n{said}\n\n", 1), kept])


def budgets() -> str:
    said = "How much jobs can cost in each period; see [budgets](shares.md#budgets)."
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
