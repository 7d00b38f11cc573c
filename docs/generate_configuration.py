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

Beside another executor it gets an alias, which tasks then name as in `@task(executor="lading")`:

```ini
[core]
executor = LocalExecutor,lading:lading.executors.LadingExecutor
```

Everything else has a default. Options stand in the section `[{SECTION}]` of `airflow.cfg`, or in environment variables
such as `AIRFLOW__{SECTION.upper()}__DEFAULT_MEMORY`; units are those of the [hints](hints.md#units). A wrong value
stops the scheduler with a message that says what is valid.
"""


SITES = """\
# The sites file

`sites_file` names a TOML file with one table per site, `[sites.NAME]`. `airflow lading check` validates it and
tries a job on every site. With an invalid file no controller starts: tasks wait, and the scheduler's log, the
tasks' event logs and `airflow lading jobs` say why. A number without a unit is MiB of memory or disk, or seconds of
time; `"4 GiB"` and `"2h"` are understood.

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

How to connect [a batch cluster](clusters.md), [machines behind SSH](machines.md) and [an AWS account](ec2.md).

## This machine

`local`, the machine of the controller, is a site with all defaults unless a table is of `kind = "local"` or named so;
it then comes before the file's first table. To run nothing on this machine:

```toml
[sites.local]
enabled = false
```

All tasks then run at the other sites. A task that itself reads the sites file, such as a
[`JobScriptOperator`](script_operator.md), runs at `local`; without `local` it is an import error, unless its own
`executor_config` names a site whose machines have the file.

## Tasks that name no site

* **Which site**: the first of the file, unless it has `accept_untargeted = false`, and those with
  `accept_untargeted = true`. `local` without a table is the first, until a site of the file says `accept_untargeted
  = true`.
* **Of several** the first that can ever run the task, also on machines that could be launched. A task that fits none
  of them is an import error, even if another site could run it.
* **Without room** there, or if the site is in trouble, the task goes to the next one. `burst_after = "10 min"` keeps
  it there for ten minutes first.

## When the file changes

A controller goes by the file as it was at its start; its log, `airflow lading sites` and `airflow lading check` say
when it has changed. Restart the controller, nothing else:

1. `airflow lading check` validates the new file.
2. `kill PID` with the pid that the check names: the scheduler starts another one within seconds. If the controller
   is a service, restart that. Tasks run on meanwhile.
3. With several machines, copy the file to all of them first, restart the controllers that stand by, then the one
   that acts.

What happens to jobs:

* **A new site** takes jobs at once.
* **A changed table** applies to what is submitted from then on. `kind`, `mode`, `work_dir` and the connection say
  where a site finds its jobs: let these end first, or give the new place a new name and keep the old table until then.
* **A removed site**: jobs that name it fail, those that had not begun are `lost` after a minute. Let running ones end
  first: their logs are not fetched any more, and marking them does not end them.
"""


HEAD = "| key | default | meaning |\n|---|---|---|"
FIRST_VERSION = "0.1.0"


Row = tuple[str, str, str]
# What several kinds have alike stands once: of which sites, and whether a kind is among them.
GROUPS: Mapping[str, Callable[[type[SiteConfig]], bool]] = {
    "all sites": lambda model: True,
    "all sites but `local`": lambda model: model is not LocalConfig,
    "`ec2` and `ssh`": lambda model: issubclass(model, MachinesConfig),
}


def rows(model: type[TableModel], names: Iterable[str]) -> list[Row]:
    """Key, default and meaning of these keys of a table."""
    fields = model.model_fields
    return [(f"`{key}`", default(fields[key]), fields[key].description or "") for key in names]


def lines(found: Iterable[Row]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in found]


def shared_rows(models: Iterable[type[SiteConfig]]) -> dict[str, list[Row]]:
    """The keys that all kinds of a group have, with one default and meaning, but for those of the groups before."""
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
    """The link to the keys of a group on this page."""
    anchor = re.sub(r"[^\w -]", "", heading(group).lower()).replace(" ", "-")
    return f"[{group}](#{anchor})"


def kind(names: list[str], model: type[SiteConfig], shared: Mapping[str, list[Row]]) -> str:
    """The part of the page that describes the kinds of sites that share a table."""
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
    """The models of the tables in a table, alone or as a list, by their keys."""
    inner = {name: get_args(field.annotation) for name, field in model.model_fields.items()}
    return {
        name: found[0]
        for name, found in inner.items()
        if found and isinstance(found[0], type) and issubclass(found[0], TableModel)
    }


def part(title: str, model: type[TableModel]) -> str:
    """The part of the page that describes one table of such a list."""
    return "\n".join([title, "", HEAD, *lines(rows(model, model.model_fields)), ""])


def default(field: FieldInfo) -> str:
    """What holds when a key is left out."""
    if field.is_required():
        return "must be given"
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
    """The text with links that go from this page's folder: descriptions name a page alone, wherever it stands."""
    folders = {page.name: page.parent for page in PAGE.parents[1].glob("*/*.md")}
    return re.sub(r"(?<=\]\()([a-z0-9_]+\.md)", lambda m: relpath(folders[m[1]] / m[1], PAGE.parent), text)


def rule_tables() -> str:
    """The part of the page that describes the rules."""
    said = "What tasks do without if nothing has room for everything they wish; see [rules](placement.md#rules)."
    return part("## [[rules]]", RuleTable).replace("\n\n", f"\n\n{said}\n\n", 1)


def bindings() -> str:
    """The part of the page that describes the bindings."""
    said = "Which tasks go where, without a word of it in their Dags; see [where a job goes](placement.md#bindings)."
    return part("## [[bindings]]", BindingTable).replace("\n\n", f"\n\n{said}\n\n", 1)


def shares() -> str:
    """The part of the page that describes the shares."""
    said = "How much of what there is belongs to whom; see [shares](shares.md)."
    kept = part("### A site of a share", KeptTable)
    return "\n".join([part("## [[shares]]", ShareTable).replace("\n\n", f"\n\n{said}\n\n", 1), kept])


def budgets() -> str:
    """The part of the page that describes the budgets."""
    said = "What jobs may cost in each period; see [budgets](shares.md#budgets)."
    return part("## [[budgets]]", BudgetTable).replace("\n\n", f"\n\n{said}\n\n", 1)


def section(name: str, option: dict[str, str | None]) -> str:
    """The part of the page that describes one option."""
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
