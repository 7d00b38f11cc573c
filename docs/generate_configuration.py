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

`sites_file` names a TOML file with one table per site, `[sites.NAME]`. `airflow lading check` validates the file and
tries a job on every site; where that gets no answer of the API server the check says whether it is not there, is there
and slow, or is something else. With a file that is not valid no controller starts: tasks wait, and the scheduler's log,
the tasks' event logs and `airflow lading jobs` say what is wrong.

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

[Batch clusters](clusters.md) says how a cluster becomes a site, [machines](machines.md) how machines behind SSH do.

## This machine

`local`, the machine that the controller runs on, is a site with and without a file. Where no table is of `kind =
"local"`, or called so, it is there as if `[sites.local]` were the first table, with all defaults. To run nothing on
this machine turn it off:

```toml
[sites.local]
enabled = false
```

All tasks then run at the other sites, whose machines need Airflow and the Dags. A task that itself reads the sites
file, as that of a [`JobScriptOperator`](job_scripts.md) does, runs at `local` (the first site of its kind) whatever
its Dag says of the others. Where there is none it is an import error, unless its own `executor_config` names a site
whose machines have the file too.

## Tasks that name no site

A task without the hint `site` goes to a site that takes such tasks:

* **Which ones**: the first site of the file, and those with `accept_untargeted = true`. With
  `accept_untargeted = false` the first one takes none either. `local` without a table is the first, so a cluster that
  is added to the file gets only those tasks that name it; when a site of the file says `accept_untargeted = true`,
  `local` without a table takes none.
* **Of several** the first in the file that can ever run the task. A task that fits none of them is an import error of
  its Dag, also when another site could run it. What could be there counts, not only what is: a task larger than the
  machines that are up waits where its site could have a larger one.
* **When that one has no room** for the task, or is in trouble (it could not be asked, or takes no jobs now), the task
  goes to the next one that takes it. With `burst_after`, a time that a table may have, it waits there for so long
  first, or until the site has been in trouble for so long; a restart of the controller begins anew. So
  `burst_after = "10 min"` at a cluster keeps a task off the machines that come behind it until the cluster has had no
  room for it for ten minutes. Why it waits, or which site it has passed by until it starts, is its reason in
  `airflow lading jobs`.

A task with the hint `site` runs there or nowhere, and one with [targets](placement.md#targets) at one of these.
`airflow lading sites --output json` shows both options.

## When the file changes

A controller goes by what the file said when the controller started. When the file says something else by now, its log
says so, and so do `airflow lading sites` and `airflow lading check`, which then fails. Restart the controller, and
nothing else:

1. `airflow lading check` says whether the new file is valid. With one that is not no controller starts.
2. `kill PID`, with the pid that the check names: the scheduler starts another controller within seconds. Where the
   controller is a service, restart that. As long as a scheduler lives, tasks run on and wait meanwhile.
3. With schedulers or controllers on several machines copy the file to all of them first, restart the controllers that
   stand by, and then the one that acts. Schedulers, API servers and Dag processors need no restart.

What happens to jobs:

* **A site is added**: it takes jobs as soon as the new controller acts.
* **Its table has changed**: what is submitted from then on goes by the new one, and jobs already there continue. But
  `kind`, `mode`, `work_dir` and the connection say where the site finds its jobs: let these end before such a change
  (`airflow lading jobs --state running`), or give the new place a new name and leave the old table as it is until they
  have ended.
* **It is taken out**: jobs that name it fail with these words, and those that it was given and that have not begun are
  `lost` after a minute. What runs there runs on and reports to Airflow itself how it ended, but Lading does not follow
  it any more: its logs are not fetched, and marking its task does not end it. Let its jobs end first.
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
    said = "What tasks do without where nothing has room for all that they wish; see [rules](placement.md#rules)."
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
