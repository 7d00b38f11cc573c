"""Writes docs/reference/configuration.md from the options of the provider info and the models of the kinds of sites.

Run it after a change to them: python docs/generate_configuration.py
"""

from __future__ import annotations

import re
from os.path import relpath
from pathlib import Path
from typing import get_args

from pydantic.fields import FieldInfo

from lading.executors.settings import SECTION
from lading.hooks.files.table_model import TableModel
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

Everything else has a default. The options below stand in the section `[{SECTION}]` of `airflow.cfg`, or in environment
variables such as `AIRFLOW__{SECTION.upper()}__DEFAULT_MEMORY`. The units are those of the [hints](hints.md#units).
`airflow config list --section {SECTION} --show-values` shows what is set, and a value that is not valid stops the
scheduler with a message that says what is.
"""


SITES = """\
# The sites file

`sites_file` names a TOML file with one table per site, `[sites.NAME]`. `airflow lading check` validates it and
tries a job on every site. With an invalid file no controller starts: tasks wait, and the scheduler's log, the
tasks' event logs and `airflow lading jobs` say what is wrong.

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

`local`, the machine of the controller, is a site with and without a file. If no table is of `kind = "local"`, or
named so, it is there as if `[sites.local]` were the first table, with all defaults. To run nothing on this machine:

```toml
[sites.local]
enabled = false
```

All tasks then run at the other sites, whose machines need Airflow and the Dags. A task that itself reads the sites
file, such as a [`JobScriptOperator`](script_operator.md), runs at `local`. Without one it is an import error,
unless its own `executor_config` names a site whose machines have the file.

## Tasks that name no site

A task without the hint `site` goes to a site that takes such tasks:

* **Which**: the first site of the file, unless it has `accept_untargeted = false`, and those with
  `accept_untargeted = true`. `local` without a table is the first, until a site of the file says `accept_untargeted
  = true`.
* **Of several** the first that can ever run the task. A task that fits none of them is an import error, even if
  another site could run it. Machines that could be launched count.
* **Without room** there, or if the site is in trouble, the task goes to the next one that takes it. `burst_after =
  "10 min"` of a table keeps it there for ten minutes first; a restart of the controller begins anew. Its reason in
  `airflow lading jobs` says why it waits, or which site it has passed by.

A task with the hint `site` runs there or nowhere, one with [targets](placement.md#targets) at one of these.

## When the file changes

A controller goes by the file as it was at its start. When the file has changed, the controller's log, `airflow
lading sites` and `airflow lading check` say so. Restart the controller, nothing else:

1. `airflow lading check` validates the new file.
2. `kill PID` with the pid that the check names: the scheduler starts another one within seconds. If the controller
   is a service, restart that. Tasks run on meanwhile.
3. With several machines, copy the file to all of them first, restart the controllers that stand by, then the one
   that acts.

What happens to jobs:

* **A new site** takes jobs at once.
* **A changed table** applies to what is submitted from then on. But `kind`, `mode`, `work_dir` and the connection
  say where a site finds its jobs: let these end first, or give the new place a new name and keep the old table
  until then.
* **A removed site**: jobs that name it fail, and those that it had and that have not begun are `lost` after a
  minute. Running ones report to Airflow themselves, but their logs are not fetched, and marking them does not end
  them. Let them end first.
"""


HEAD = "| key | default | meaning |\n|---|---|---|"
UNITS = 'A number without a unit is MiB of memory or disk, or seconds of time; `"4 GiB"` and `"2h"` are understood.'


def kind(names: list[str], model: type[SiteConfig]) -> str:
    """The part of the page that describes the kinds of sites that share a table."""
    rows = [
        f"| `{key}` | {default(field)} | {field.description} |"
        for key in keys(model)
        if key != "kind" and (field := model.model_fields[key])
    ]
    title = f"## kind = {', '.join(map(repr, names))}"
    parts = (part(f"### A {name.removesuffix('s')}", table) for name, table in tables(model).items())
    return "\n".join([title, "", UNITS, "", HEAD, *rows, "", *parts])


def tables(model: type[SiteConfig]) -> dict[str, type[TableModel]]:
    """The models of the tables of which there is a list in a table, by its key."""
    inner = {name: get_args(field.annotation) for name, field in model.model_fields.items()}
    return {
        name: found[0]
        for name, found in inner.items()
        if found and isinstance(found[0], type) and issubclass(found[0], TableModel)
    }


def part(title: str, model: type[TableModel]) -> str:
    """The part of the page that describes one table of such a list."""
    rows = [f"| `{key}` | {default(field)} | {field.description} |" for key, field in model.model_fields.items()]
    return "\n".join([title, "", HEAD, *rows, ""])


def default(field: FieldInfo) -> str:
    """What holds when a key is left out."""
    if field.is_required():
        return "must be given"
    return "none" if field.default in (None, "", {}, ()) else f"`{field.default}`"


def page() -> str:
    """The whole page as Markdown."""
    models: dict[type[SiteConfig], list[str]] = {}
    for name, site in sorted(site_kinds().items()):
        models.setdefault(site.config_model, []).append(name)
    kinds = (kind(names, model) for model, names in models.items())
    sections = (section(name, option) for name, option in options().items())
    return linked("\n".join([INTRODUCTION, *sections, SITES, bindings(), rules(), shares(), budgets(), *kinds]))


def linked(text: str) -> str:
    """The text with links that go from this page's folder: descriptions name a page alone, wherever it stands."""
    folders = {page.name: page.parent for page in PAGE.parents[1].glob("*/*.md")}
    return re.sub(r"(?<=\]\()([a-z0-9_]+\.md)", lambda m: relpath(folders[m[1]] / m[1], PAGE.parent), text)


def rules() -> str:
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
    return "\n".join(
        [
            f"## {name}",
            "",
            re.sub("``", "`", option["description"] or ""),
            "",
            f"* Type: {option['type']}",
            f"* Default: {'none' if value is None else f'`{value}`'}",
            f"* Example: `{option['example']}`",
            f"* Environment variable: `AIRFLOW__{SECTION.upper()}__{name.upper()}`",
            f"* Since: {option['version_added']}",
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
