// The bill by day, week or month and by Dag, task, run, site or team, split into used, unused, idle and booting.
import * as React from "react";
import {useEffect, useRef, useState} from "react";
import type {BillPage as Bill, BillAmounts, BillRow, ExpectedBill, IdleAdvice as Advice, IdleRest, IdleSite, Saving, Savings, Summary} from "../api_types";
import {SLANTS, hatched} from "../chart/colors";
import {about, amountOf, cost, count, cpuHours, cpusText, date, difference, exact, fraction, iso, jobsText, machinesText, memory, percent, tasksText, usd, utcDay, utcMonth} from "../format";
import {dagPath, pagePath, runPath, sizePath} from "../paths";
import {useAnswer, useLast} from "../polling";
import type {Chosen} from "../ui/choices";
import {AnswerSection, Bar, Legend, Line, Link, Muted, Name, PartAmounts, Row, Section, Select, TaskName, Tile, Tiles, type Part} from "../ui/parts";
import {Table, type Column} from "../ui/table";
import {billSpan, pastMonths, type BillRange} from "./bill_span";
import {actions, type Action} from "./now";
import type {PageProps} from "./page";

const PERIODS = [["day", "by day"], ["week", "by week"], ["month", "by month"]] as const;
const SPLITS = [["dag", "by Dag"], ["task", "by task"], ["run", "by run"], ["site", "by site"], ["team", "by team"]] as const;
/** How many months that are over can be chosen as the time range. */
const MONTHS = 12;
/** The time ranges that can be chosen. A month that is over has its own name in the URL, so that a link keeps its meaning. */
export function spans(now: number): [string, string][] {
  const months = pastMonths(now, MONTHS).map(([range, begin], index): [string, string] => [String(range), index ? utcMonth(begin) : `last month, ${utcMonth(begin)}`]);
  return [["0", "today"], ["6", "7 days"], ["week", "this week"], ["lastweek", "last week"], ["weeks", "last 2 weeks, compared"], ["month", "this month"], months[0], ["29", "30 days"], ["89", "90 days"], ["364", "a year"], ...months.slice(1)];
}
const HEADINGS: Record<string, string> = {dag: "Dag", task: "Task", run: "Run", site: "Site", team: "Team"};
const TITLES: Record<string, string> = {dag: "Costs by Dag", task: "Costs by task", run: "Costs by run", site: "Costs by site", team: "Costs by team"};

const SHARES = [
  {key: "used", title: "Used", short: "used", slant: SLANTS.running},
  {key: "unused", title: "Requested but unused", short: "unused", slant: 45},
  {key: "idle", title: "Idle cpus", short: "idle", slant: 135},
  {key: "boot", title: "Booting machines", short: "booting", slant: 0},
] as const;
type Share = (typeof SHARES)[number]["key"];
const colorOf = (key: Share, slant: number | null) => hatched(`var(--l-${key})`, slant);

/** The amount of a part of the bill in USD or cpu-hours. */
export function amount(amounts: BillAmounts, key: Share, inUsd: boolean): number {
  return (inUsd ? amounts[`usd_${key}`] : amounts[`cpu_hours_${key}`]) ?? 0;
}
export function parts(amounts: BillAmounts, inUsd: boolean): Part[] {
  return SHARES.map(({key, title, short, slant}) => {
    const value = amount(amounts, key, inUsd);
    return {key, title, short, value, text: inUsd ? usd(value) : cpuHours(value), color: colorOf(key, slant)};
  });
}
export const whole = (amounts: BillAmounts, inUsd: boolean) => SHARES.reduce((sum, {key}) => sum + amount(amounts, key, inUsd), 0);

/** A stacked column per period, with its amounts as accessible name. */
function Trend({bill, inUsd}: {bill: Bill; inUsd: boolean}) {
  const most = Math.max(...bill.totals.map((each) => whole(each, inUsd)), 1e-9);
  const every = Math.ceil(bill.periods.length / 12), box = useRef<HTMLDivElement>(null);
  // On a phone, which does not show all of it, the present comes first.
  useEffect(() => { if (box.current) box.current.scrollLeft = box.current.scrollWidth; }, [bill.by, bill.periods.length]);
  return (
    <div ref={box} className="scroll" style={{maxHeight: "none", padding: "6px 8px 8px"}} role="group" aria-label="Costs over time">
      <div className="scale" style={{position: "sticky", left: 0}} aria-hidden>{inUsd ? usd(most) : cpuHours(most)}</div>
      <div style={{display: "flex", alignItems: "end", gap: bill.periods.length > 60 ? 1 : 4, height: 130, minWidth: bill.periods.length * 4}}>
        {bill.periods.map((period, index) => {
          const shares = parts(bill.totals[index], inUsd), sum = whole(bill.totals[index], inUsd);
          // If nothing had a price, cpu-hours are shown rather than 0 USD.
          const said = inUsd ? cost(bill.totals[index].usd, bill.totals[index].cpu_hours) : cpuHours(sum);
          const text = `${utcDay(period.since)}${period.is_whole ? "" : ", until now"}: ${said} (${shares.filter(({value}) => value > 0).map(({title, text: each}) => `${title.toLowerCase()} ${each}`).join(", ") || "nothing"})`;
          return (
            <div key={period.since} role="img" aria-label={text} title={text} style={{flex: "1 1 0", maxWidth: 60, display: "flex", flexDirection: "column-reverse", height: "100%", opacity: period.is_whole ? 1 : 0.75}}>
              <div style={{height: 18, fontSize: 10, whiteSpace: "nowrap", overflow: "visible"}} aria-hidden>{index % every === 0 ? utcDay(period.since) : ""}</div>
              {shares.map(({key, value, color}) => <div key={key} style={{height: `${(value / most) * 84}%`, background: color, marginTop: value > 0 ? 1 : 0}} />)}
            </div>
          );
        })}
      </div>
    </div>
  );
}

function nameOf(row: BillRow, split: string): string {
  if (row.kind === "hidden") return "Dags you cannot read";
  if (row.kind === "others") return "all others";
  if (row.kind === "machines") return "idle and boot time, not charged to any job";
  if (split === "run") return [row.dag_id, row.run_id ?? "earlier runs"].filter(Boolean).join(", ");
  return [row.dag_id, row.task_id].filter(Boolean).join(".") || row.site || row.team || (split === "team" ? "no team" : split === "site" ? "no site" : "no Dag");
}
function rowName(row: BillRow, split: string) {
  const text = row.dag_id && row.task_id ? <TaskName job={row} /> : <Name>{nameOf(row, split)}</Name>;
  if (row.kind !== "named") return text;
  if (row.dag_id && row.run_id) return <div><Link to={runPath(row.dag_id, row.run_id)} label={nameOf(row, split)}><Name>{row.run_id}</Name></Link><div><Muted><Link to={dagPath(row.dag_id)}><Name>{row.dag_id}</Name></Link></Muted></div></div>;
  if (row.dag_id) return <Link to={row.task_id ? sizePath(row.dag_id, row.task_id) : dagPath(row.dag_id)} label={row.task_id ? nameOf(row, split) : undefined}>{text}</Link>;
  return row.site || row.team ? <Link to={pagePath({view: "jobs", site: row.site, team: row.team})}>{text}</Link> : text;
}

/** A column that shows how an amount is divided into its parts, as a bar and as numbers.
 *
 * @param none: why a row has no amounts in USD
 */
export function spentColumn<Row>(of: (row: Row) => BillAmounts, inUsd: boolean, most: number, more: (row: Row) => Part[] = () => [], none: (row: Row) => string = () => "has no price"): Column<Row> {
  const cell = (row: Row) => {
    const its = [...parts(of(row), inUsd), ...more(row)];
    return inUsd && of(row).usd === null && its.every(({value}) => !value) ? <Muted>{none(row)}</Muted> : <div><Bar name={inUsd ? "USD" : "cpu-hours"} parts={its} whole={most} /><PartAmounts parts={its} /></div>;
  };
  return {title: "How it was spent", cell, text: false};
}
export const shareColumns = <Row,>(of: (row: Row) => BillAmounts) =>
  SHARES.map(({key, title}): Column<Row> => ({title: `USD ${title}`, hidden: true, text: (row) => of(row)[`usd_${key}`]}));
/** @param more: parts that a bar has in addition */
export const ShareLegend = ({more = []}: {more?: readonly Part[]}) => <Legend parts={[...SHARES.map(({key, title, slant}) => ({key, title, color: colorOf(key, slant)})), ...more.map(({key, title, color}) => ({key, title, color}))]} />;

/** The used and unused part, which is what budgets count; null: it has no price. */
export const ofJobs = (amounts: BillAmounts, inUsd: boolean): number | null =>
  inUsd && amounts.usd === null ? null : amount(amounts, "used", inUsd) + amount(amounts, "unused", inUsd);
const OfJobs = ({whole: sum, jobs, text}: {whole: number | null; jobs: number | null; text: (value: number | null) => string}) => (
  <div>{text(sum)}{jobs === null || text(jobs) === text(sum) ? null : <div><Muted>jobs {text(jobs)}</Muted></div>}</div>
);

const taskKey = ({dag_id: dag, task_id: task}: Pick<BillRow, "dag_id" | "task_id">) => `${dag}.${task}`;
/** Whether a bill compares two periods that are over. */
const areCompared = ({periods}: Pick<Bill, "periods">): boolean => periods.length === 2 && periods.every(({is_whole: isWhole}) => isWhole);
const amountText = (inUsd: boolean) => (inUsd ? (value: number) => usd(value) : cpuHours);
/** What the second of two periods cost more than the first. */
function differenceOf({usd: money, cpu_hours: hours}: {usd: readonly (number | null)[]; cpu_hours: readonly number[]}, inUsd: boolean): string {
  const [before, after] = inUsd ? money.map((each) => each ?? 0) : hours;
  return difference(before, after, amountText(inUsd));
}

/** The rows whose second period exceeds the first by most come first; sums of others stay last. */
export function byRise(rows: readonly BillRow[], inUsd: boolean): BillRow[] {
  const rise = ({usd: [before, after], cpu_hours: [earlier, later]}: BillRow) => (inUsd ? (after ?? 0) - (before ?? 0) : later - earlier);
  return [...rows].sort((one, other) => Number(other.kind === "named") - Number(one.kind === "named") || rise(other) - rise(one));
}
/**
 * @param savings: whose lines to paste are shown with their tasks
 */
function Rows({bill, split, inUsd, savings, name = TITLES[split], few}: {bill: Bill; split: string; inUsd: boolean; savings?: Savings | null; name?: string; few?: number}) {
  const most = Math.max(...bill.rows.map(({total}) => whole(total, inUsd)), 1e-9);
  // A run is of one period.
  const isCompared = areCompared(bill) && split !== "run";
  const lines = new Map(split === "task" ? (savings?.tasks ?? []).map((task) => [taskKey(task), task.line]) : []);
  const nameCell = (row: BillRow) => { const line = row.kind === "named" ? lines.get(taskKey(row)) : undefined; return line === undefined ? rowName(row, split) : <div>{rowName(row, split)}<Line text={line} name={nameOf(row, split)} /></div>; };
  const ofPeriods = bill.periods.map((period, index): Column<BillRow> => ({title: isCompared ? spanText(period) : `USD ${iso(period.since).slice(0, 10)}`, csvTitle: `USD ${iso(period.since).slice(0, 10)}`, hidden: !isCompared, cell: ({usd: spent, cpu_hours: hours}) => (inUsd ? usd(spent[index]) : cpuHours(hours[index])), text: ({usd: spent}) => spent[index], number: true}));
  const compared: Column<BillRow>[] = isCompared ? [...ofPeriods, {title: "Difference", csvTitle: "USD difference", help: "The rows that rose most come first", cell: (row) => differenceOf(row, inUsd && row.total.usd !== null), text: ({usd: [before, after]}) => (before === null && after === null ? null : (after ?? 0) - (before ?? 0)), number: true}] : [];
  const choices = (row: BillRow) => ({view: "jobs", dag: row.dag_id, task: row.task_id, run: row.run_id, site: row.site, team: row.team});
  const columns: Column<BillRow>[] = [
    {title: HEADINGS[split], cell: nameCell, text: (row) => nameOf(row, split)},
    ...compared,
    {title: "Jobs", cell: (row) => (row.kind === "named" && (row.dag_id || row.site || row.team) ? <Link to={pagePath(choices(row))} label={`${count(row.total.jobs)} jobs of ${nameOf(row, split)}`}>{count(row.total.jobs)}</Link> : count(row.total.jobs)), text: ({total}) => total.jobs, number: true},
    {title: "Failed", cell: ({total}) => count(total.failed), text: ({total}) => total.failed, number: true},
    {title: "USD", help: "With the part of jobs, used and unused, which is what budgets count", cell: ({total}) => <OfJobs whole={total.usd} jobs={ofJobs(total, true)} text={usd} />, text: ({total}) => total.usd, has: ({total}) => total.usd !== null, number: true},
    {title: "USD of jobs", hidden: true, text: ({total}) => ofJobs(total, true)},
    spentColumn(({total}) => total, inUsd, most),
    ...shareColumns<BillRow>(({total}) => total),
    {title: "cpu-hours paid", help: "Requested by jobs, and the idle and boot time of machines", cell: ({total}) => <OfJobs whole={total.cpu_hours} jobs={ofJobs(total, false)} text={count} />, text: ({total}) => total.cpu_hours, number: true},
    {title: "cpu-hours of jobs", hidden: true, text: ({total}) => ofJobs(total, false)},
    {title: "Used share of paid", csvTitle: "cpu-hours used", help: "Percentage of the cpu-hours paid that jobs used", cell: ({total}) => percent(total.cpu_hours_used, total.cpu_hours), text: ({total}) => total.cpu_hours_used, number: true},
    ...(isCompared ? [] : ofPeriods),
  ];
  const rows = isCompared ? byRise(bill.rows, inUsd) : bill.rows;
  return <Table name={name} rows={rows} columns={columns} few={few} empty="No job ran in this time." keyOf={(row) => `${row.kind} ${nameOf(row, split)}`} />;
}

const saved = (each: Savings | Saving) => (each.usd === null ? `${count(each.cpu_hours)} cpu-hours and ${count(each.gib_hours)} GiB-hours` : usd(each.usd));
const SavedInAll = ({found}: {found: Savings}) => (
  <span data-testid="savings"><b>{saved(found)} a month in total</b> <Muted>for {tasksText(found.tasks.length)}{found.tasks_left_out ? `; ${count(found.tasks_left_out)} less expensive tasks are not included` : ""}</Muted></span>
);

const DEAREST = "Most expensive runs";
const runsOf = (bill: Bill | null) => (bill?.rows ?? []).filter(({kind, run_id: run}) => kind === "named" && run !== null);
/** The runs that cost most, without what belongs to no run or only to several.
 *
 * @param when: the time range
 * @param allPath: the page that lists all runs
 */
function DearestRuns({asked, when, allPath}: {asked: readonly [Bill | null, string | null]; when: string; allPath: string}) {
  return <AnswerSection title={DEAREST} more={<><Muted>{when}</Muted><Link to={allPath}>More runs</Link></>} asked={asked}>{(bill) => <Rows bill={{...bill, rows: runsOf(bill)}} split="run" inUsd={bill.total.usd !== null} name={DEAREST} few={5} />}</AnswerSection>;
}

const SAVED = {usd: ({usd: money}: Saving) => money ?? 0, cpus: ({cpu_hours: hours}: Saving) => hours, memory: ({gib_hours: hours}: Saving) => hours};
type SavedBy = keyof typeof SAVED;
/** Savings with the largest of one kind first. */
export const savedBy = (tasks: readonly Saving[], by: SavedBy): Saving[] => [...tasks].sort((one, other) => SAVED[by](other) - SAVED[by](one));

const SAVINGS = "Savings from right sizes";
/** How many tasks the tile names. */
const NAMED_SAVINGS = 3;
type SavingsAnswer = readonly [Savings | null, string | null, number];
function Saved({asked, chosen}: {asked: SavingsAnswer; chosen: Chosen}) {
  if (!asked[0]?.tasks.length && !asked[1]) return null;
  const by = (Object.keys(SAVED) as SavedBy[]).find((key) => key === chosen.get("saved")) ?? (asked[0]?.usd == null ? "cpus" : "usd");
  const nameOfTask = taskKey;
  /** What is requested and what the line requests, and below it what the line saves; the CSV has a column for each. */
  const resource = (title: string, unit: string, sort: SavedBy, text: (value: number | null) => string, requested: (task: Saving) => number | null, size: (task: Saving) => Saving["cpus"], hours: string): Column<Saving>[] => [
    {title: `${title}, requested → in the line`, help: `What its jobs request, what the line requests instead, and the ${hours} that this saves in a month; sorts by these`, sort, cell: (task) => <div><div className="line">{text(requested(task))} → {text(size(task).nearly_all)}</div><Muted>saves {count(SAVED[sort](task))} {hours}</Muted></div>, text: false, number: true},
    {title: `${title} requested${unit}`, hidden: true, text: requested},
    {title: `${title} of 95 % of tries with enough${unit}`, hidden: true, text: (task) => size(task).most},
    {title: `${title} in the line${unit}`, hidden: true, text: (task) => size(task).nearly_all},
    {title: `${hours} a month`, hidden: true, text: SAVED[sort]},
  ];
  const columns: Column<Saving>[] = [
    {title: "Task, and the line to paste", cell: (task) => <div><Link to={sizePath(task.dag_id, task.task_id)} label={nameOfTask(task)}><TaskName job={task} /></Link><Line text={task.line} name={nameOfTask(task)} /></div>, text: nameOfTask},
    ...resource("Memory", ", MiB", "memory", memory, (task) => task.memory_asked, (task) => task.memory, "GiB-hours"),
    ...resource("cpus", "", "cpus", count, (task) => task.cpus_asked, (task) => task.cpus, "cpu-hours"),
    {title: "USD a month", sort: "usd", cell: (task) => usd(task.usd), text: (task) => task.usd, has: (task) => task.usd !== null, number: true},
    {title: "To paste", hidden: true, text: (task) => task.line},
  ];
  return (
    <AnswerSection title={SAVINGS} asked={asked} more={asked[0] ? <SavedInAll found={asked[0]} /> : null}>{(found) => <Table name="Savings" rows={savedBy(found.tasks, by)} columns={columns} sorting={{by, descending: true, onSort: (sort) => chosen.set({saved: sort})}} empty="" keyOf={nameOfTask} />}</AnswerSection>
  );
}

const DAY = 86_400;
/** An amount of the time range of idle cpus, a day if the range has several. */
function perDay({periods, now, total, idle_since: since}: Pick<Bill, "periods" | "now" | "total" | "idle_since">): (value: number) => string {
  const days = (Math.min(periods[periods.length - 1].until, now) - since) / DAY, text = amountText(total.usd !== null);
  return (value) => (days > 1 ? `${text(value / days)} a day` : text(value));
}
/** From when on idle cpus are shown, if records of earlier ones have been deleted; null: they have not. */
const sinceText = ({idle_since: since, periods}: Pick<Bill, "idle_since" | "periods">): string | null =>
  since > periods[0].since ? `since ${utcDay(since)}; earlier records of machines have been deleted (job_retention_days)` : null;
const listed = (names: readonly string[]) => [names.slice(0, -1).join(", "), names[names.length - 1]].filter(Boolean).join(" and ");

/** What the idle cpus are that no setting is known to save, and what else to do, by kind. */
const RESTS: Record<IdleRest["kind"], {what: string; todo: string}> = {
  busy: {what: "idle cpus of busy machines", todo: 'hurry = "cheap" uses fewer machines for longer; what that saves is unknown in advance'},
  fixed: {what: "machines that Lading does not release", todo: "they cost the same without jobs, so send more jobs there"},
  unknown: {what: "idle cpus", todo: "what a shorter idle_seconds saves is unknown, because no idle machine released in this time is on record"},
  other: {what: "idle cpus of sites that are no longer recorded", todo: "nothing to do"},
};
const restText = ({kind, sites}: IdleRest) => `${RESTS[kind].what}${sites.length ? ` at ${listed(sites)}` : ""}: ${RESTS[kind].todo}`;
/** What to change at a site: its part of the advice for all sites. */
export function adviceAt({changes, rest, is_halved: isHalved}: Advice, site: string, amount: (value: number) => string): string {
  const change = changes.find((each) => each.site === site), left = rest.find(({sites}) => sites.includes(site));
  const said = [
    change ? `Lower idle_seconds from ${count(change.now)} to ${count(change.then)}: saves ${amount(change.saved)}` : null,
    left ? `${change ? "The rest is for " : "These are "}${restText({...left, sites: []})}` : null,
  ].filter(Boolean);
  return said.length ? `${said.join(". ")}.` : isHalved ? "Not needed to halve the cost of all sites." : "Too little to matter.";
}

const HALVED = "To halve the cost of idle cpus";
/** The settings that halve the cost of all idle cpus, largest saving first; if none do, what they save and what the rest is. */
function IdleAdvice({bill, isLong}: {bill: Bill; isLong: boolean}) {
  const {idle_advice: advice} = bill, amount = perDay(bill);
  if (!advice) return null;
  const {cost: all, changes, saved: sum, is_halved: isHalved, rest} = advice, left = all - sum;
  return (
    <div role="region" aria-label={HALVED} className="advice" data-testid="idle-advice">
      <div><b>{HALVED}</b>, {amount(all)}{sinceText(bill) ? ` ${sinceText(bill)}` : isLong ? " in the last 30 days" : ""}: <b>{changes.length ? `${isHalved ? "these settings save" : "settings save only"} ${amount(sum)}, ${percent(sum, all)}` : "no setting is known to save any of it"}</b></div>
      {changes.length ? <ol>{changes.map(({site, now, then, saved: its}) => <li key={site}><Name>{site}</Name>: lower idle_seconds from {count(now)} to {count(then)}, saves {amount(its)}</li>)}</ol> : null}
      {rest.length ? <><div>The other {amount(left)}:</div><ul>{rest.map((part) => <li key={part.kind}>{amount(part.cost)} for {restText(part)}</li>)}</ul></> : null}
    </div>
  );
}

const IDLE = "Idle cpus";
/** The sites with idle cpus, what those of idle and of busy machines cost, and what to change. */
function Idle({asked, isLong}: {asked: readonly [Bill | null, string | null]; isLong: boolean}) {
  const [bill, trouble] = asked, inUsd = bill !== null && bill.total.usd !== null;
  if (!bill?.idle_sites.length && !trouble) return null;
  const idle = (site: IdleSite) => (inUsd ? site.usd : site.cpu_hours) ?? 0, spent = (site: IdleSite) => (inUsd ? site.usd_site : site.cpu_hours_site);
  const ofMachines = (site: IdleSite) => (inUsd ? site.usd_machines : site.cpu_hours_machines), ofBusy = (site: IdleSite) => { const part = ofMachines(site); return part === null ? null : idle(site) - part; };
  const text = amountText(inUsd), unit = inUsd ? "USD" : "cpu-hours", part = (value: number | null) => (value === null ? <Muted>unknown</Muted> : text(value));
  const changeAt = ({site: name}: IdleSite) => bill?.idle_advice?.changes.find(({site}) => site === name);
  const remedy = (site: IdleSite) => (inUsd && site.usd === null ? "Its machines have no price." : bill?.idle_advice ? adviceAt(bill.idle_advice, site.site, perDay(bill)) : "");
  const columns: Column<IdleSite>[] = [
    {title: "Site", cell: ({site}) => <Link to={pagePath({view: "machines", site})} label={`Machines of ${site}`}><Name>{site}</Name></Link>, text: ({site}) => site},
    {title: "USD idle", cell: (site) => usd(site.usd), text: (site) => site.usd, has: (site) => site.usd !== null, number: true},
    {title: "Idle machines", csvTitle: `${unit} of idle machines`, help: "The part of machines without a job, until they were released", cell: (site) => <div>{part(ofMachines(site))}{site.machines ? <div><Muted>{machinesText(site.machines)}</Muted></div> : null}</div>, text: ofMachines, has: (site) => ofMachines(site) !== null, number: true},
    {title: "Busy machines", csvTitle: `${unit} of idle cpus of busy machines`, help: "The part of cpus that no job requested on machines that also ran jobs, including the time between two jobs", cell: (site) => part(ofBusy(site)), text: ofBusy, has: (site) => ofBusy(site) !== null, number: true},
    {title: "% of cost", csvTitle: "Fraction of cost", help: "The cost of idle cpus, as a percentage of the cost of the site in this time range", cell: (site) => percent(idle(site), spent(site)), text: (site) => fraction(idle(site), spent(site)), number: true},
    {title: "cpu-hours idle", cell: (site) => count(site.cpu_hours), text: (site) => site.cpu_hours, number: true},
    {title: "idle_seconds", hidden: true, text: (site) => site.idle_seconds},
    {title: "Proposed idle_seconds", hidden: true, text: (site) => changeAt(site)?.then},
    {title: `${unit} saved by it`, hidden: true, text: (site) => changeAt(site)?.saved},
    {title: "What to change", help: "The part of the site in the advice above for all sites. Savings are those of releasing earlier the machines that were released in this time range", cell: (site) => <div className="text long">{remedy(site)}</div>, text: remedy},
  ];
  return <AnswerSection title={IDLE} more={bill && sinceText(bill) ? <Muted>{sinceText(bill)}</Muted> : isLong ? <Muted>last 30 days</Muted> : null} asked={asked}>{({idle_sites: sites}) => <Table name={IDLE} rows={sites} columns={columns} empty="No cpu was idle." keyOf={({site}) => site} />}</AnswerSection>;
}

type Budget = NonNullable<Summary["budgets"]>[number];
const ofBudget = ({name, lifted_by: lifted}: Budget): Action[] =>
  lifted === null ? [["lift", "Lift", name, `Lift ${name} until its period ends?`]] : [["restore", "Restore", name, `Restore ${name}?`]];

/** The budgets that are used up come first, then those that will be used up soonest, then those of which the largest part is used. */
export const rankedBudgets = (budgets: readonly Budget[]): Budget[] => {
  const end = (budget: Budget) => (isSpent(budget) ? 0 : budget.spent_at ?? Infinity);
  return [...budgets].sort((one, other) => (end(one) === end(other) ? other.spent / other.most - one.spent / one.most : end(one) - end(other)));
};

const BUDGETS = "Budgets";
const isSpent = ({spent, most}: Budget) => spent >= most;

const isUsd = (unit: string) => unit.toUpperCase() === "USD";
/** An amount of a budget; in cpu-hours, a rate per hour is a number of cpus. */
const budgetText = (value: number, unit: string) => (isUsd(unit) ? usd(value) : amountOf(value, "cpu-hour", "cpu-hours", exact));
const rateText = (value: number, unit: string) => (isUsd(unit) ? `${usd(value)} per hour` : cpusText(value));
const leftText = ({spent, most, unit}: Budget) => budgetText(Math.max(0, most - spent), unit);

const NAMED_BUDGETS = 8;
/** How many budgets are used up or soon will be, and what is left of each, as a link to its row. */
function BudgetsTile({budgets}: {budgets: readonly Budget[]}) {
  const spent = budgets.filter(isSpent).length, near = budgets.filter((budget) => (budget.is_near || budget.spent_at !== null) && !isSpent(budget)).length;
  const rows = rankedBudgets(budgets).slice(0, NAMED_BUDGETS).map((budget) => ({key: budget.name, text: <><Name breaks>{budget.name}</Name> {leftText(budget)}</>}));
  const help = [near ? `${count(near)} soon used up` : null, budgets.length > NAMED_BUDGETS ? `see all ${count(budgets.length)}` : null, "left:"].filter(Boolean).join("; ");
  return <Tile label={BUDGETS} section={BUDGETS} isBad={spent > 0} value={spent ? `${count(spent)} used up` : "none used up"} help={help} rows={rows} />;
}

/** The bill that has the sum of a budget: of the same period, split by what the budget is of. */
export const breakdownPath = ({who, per}: Pick<Budget, "who" | "per">): string =>
  pagePath({view: "cost", days: {day: "0", week: "week", month: "month"}[per], split: who.startsWith("team ") ? "team" : "dag"});

/** How much of each budget is spent. */
function Budgets({asked}: {asked: readonly [Summary | null, string | null]}) {
  if (!asked[0]?.budgets?.length && !asked[1]) return null;
  const spent = ({spent: value, most, unit}: Budget) => `${isUsd(unit) ? usd(value) : exact(value)} of ${budgetText(most, unit)}`;
  const state = (budget: Budget) => (budget.lifted_by !== null ? `lifted by ${budget.lifted_by}` : isSpent(budget) ? "used up" : budget.spent_at !== null ? `used up before its ${budget.per} ends` : budget.is_near ? "nearly used up" : "");
  const columns: Column<Budget>[] = [
    {title: "Budget", cell: (budget) => <Name>{budget.name}</Name>, text: (budget) => budget.name},
    {title: "Dags or team", cell: (budget) => <Name>{budget.who}</Name>, text: (budget) => budget.who},
    {title: "Spent", cell: (budget) => <div><Link to={breakdownPath(budget)} label={`${spent(budget)} a ${budget.per}: the bill of ${budget.who}`}>{spent(budget)} a {budget.per}</Link><div className="line"><Muted>since {date(budget.since)}</Muted></div></div>, text: (budget) => budget.spent, number: true},
    {title: "Left", cell: leftText, text: ({spent: value, most}) => Math.max(0, most - value), number: true},
    {title: "Since", hidden: true, text: (budget) => iso(budget.since)},
    {title: "% spent", csvTitle: "Fraction spent", cell: (budget) => <div className="row nowrap"><Bar whole={Math.max(budget.most, budget.spent)} parts={[{key: "spent", title: "spent", value: budget.spent, text: percent(budget.spent, budget.most), color: budget.spent >= budget.most ? "var(--l-failed)" : budget.is_near || budget.spent_at !== null ? "var(--l-queue)" : "var(--l-used)"}]} /><span>{percent(budget.spent, budget.most)}</span></div>, text: (budget) => fraction(budget.spent, budget.most)},
    {title: "Limit", hidden: true, text: (budget) => budget.most},
    {title: "Unit", hidden: true, text: (budget) => budget.unit},
    {title: "State", cell: (budget) => state(budget), has: state},
    {title: "Runs out", help: "When the budget will be spent, and how much of it by the end of the period", cell: (budget) => <div>{isSpent(budget) ? "used up" : budget.spent_at === null ? <Muted>not this {budget.per}</Muted> : date(budget.spent_at)}{isSpent(budget) ? null : <div><Muted>{percent(budget.expected, budget.most)} by {date(budget.until)}</Muted></div>}{budget.hours > 0 ? <div><Muted>now {rateText(budget.per_hour, budget.unit)}</Muted></div> : null}</div>, text: (budget) => (isSpent(budget) ? "" : iso(budget.spent_at)), number: true},
    {title: "Now, per hour", hidden: true, text: (budget) => budget.per_hour},
    {title: "Expected by its reset", hidden: true, text: (budget) => budget.expected},
    {title: "Resets", cell: (budget) => date(budget.until), text: (budget) => iso(budget.until), number: true},
    ...actions(asked[0]?.may_act ?? false, ofBudget),
  ];
  const at = Math.max(...(asked[0]?.budgets ?? []).map((budget) => budget.at));
  const what = asked[0]?.budgets?.length ? <Muted>Used and unused cost of their jobs, without idle cpus and booting machines, as of {date(at)}</Muted> : null;
  return <AnswerSection title={BUDGETS} more={what} asked={asked}>{({budgets}) => <><Table name="Budgets" rows={rankedBudgets(budgets ?? [])} columns={columns} empty="There are no budgets." keyOf={({name}) => name} /><Muted>The forecast is the expected cost of the running and waiting jobs of the budget, followed by its mean rate in this period.</Muted></>}</AnswerSection>;
}

const oneOf = (chosen: Chosen, name: string, options: readonly (readonly [string, string])[], usual: string) =>
  options.find(([key]) => key === chosen.get(name))?.[0] ?? usual;

/** The range that a choice stands for, and the periods in which it is shown unless the user chooses others. */
const rangeOf = (days: string): BillRange => (Number.isNaN(Number(days)) ? days as BillRange : Number(days));
const periodOf = (days: string) => (days === "weeks" ? "week" : Number(days) > 89 ? "month" : "day");
const spanText = ({since, until}: {since: number; until: number}) => (since + 86_400 >= until ? utcDay(since) : `${utcDay(since)} to ${utcDay(until - 1)}`);

/** Seconds for which the answers of the page are awaited, so that all of it appears at once and nothing moves later. */
const TOGETHER = 3;
function useTogether(isAnswered: boolean): boolean {
  const [isLate, setLate] = useState(false), shown = useRef(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), TOGETHER * 1000);
    return () => clearTimeout(timer);
  }, []);
  shown.current ||= isAnswered || isLate;
  return shown.current;
}

export function CostPage({chosen, summary, trouble: summaryTrouble}: PageProps) {
  const options = spans(Date.now() / 1000), days = oneOf(chosen, "days", options, "29"), span = rangeOf(days), by = oneOf(chosen, "by", PERIODS, periodOf(days)), split = oneOf(chosen, "split", SPLITS, "dag");
  const live = () => billSpan(span, Date.now() / 1000);
  const asked = useAnswer<Bill>("bill", {by, split}, 60, live, days), runs = useAnswer<Bill>("bill", {by, split: "run"}, 60, live, days);
  // Longer ago, the machines have been deleted from which savings are estimated (job_retention_days).
  const isLong = Number(days) > 29, idleSpan = () => billSpan(isLong ? 29 : span, Date.now() / 1000);
  const sites = useAnswer<Bill>("bill", {by: isLong ? "day" : by, split: "site"}, 60, idleSpan, isLong ? "29" : days);
  const shown = useLast(asked[0]), isOld = asked[0] === null, shownRuns = useLast(runs[0]), shownSites = useLast(sites[0]);
  const savings = useAnswer<Savings>("savings", {}, 300);
  const weeks = useAnswer<Bill>("bill", {by: "week", split: "team"}, 300, () => billSpan("weeks", Date.now() / 1000), "weeks");
  const answers = [[summary, summaryTrouble], asked, runs, sites, savings, weeks] as const;
  const isShown = useTogether(answers.every(([answer, trouble]) => answer !== null || trouble !== null));
  const its = spanText(live());
  const more = (
    <Row>
      <Muted>{its}, UTC</Muted>
      <Select label="Time range" value={days} options={options} onChange={(value) => chosen.set({days: value, by: null})} />
      <Select label="Period" value={by} options={PERIODS} onChange={(value) => chosen.set({by: value})} />
    </Row>
  );
  if (!isShown) return <AnswerSection title="Cost" more={more} asked={[null, null]}>{() => null}</AnswerSection>;
  const splitBy = <Select label="Split by" value={split} options={SPLITS} onChange={(value) => chosen.set({split: value})} />;
  const isCompared = shown !== null && areCompared(shown);
  const breakdown = shown ? <Section title="Breakdown" more={splitBy}><Loading isOld={isOld}><Rows bill={shown} split={shown.split} inUsd={shown.total.usd !== null} savings={savings[0]} /></Loading></Section> : null;
  return (
    <>
      <AnswerSection title="Cost" more={more} asked={[shown, asked[1]]}>{(bill) => <Loading isOld={isOld}><BillSummary bill={bill} savings={savings[0]} budgets={summary?.budgets ?? []} days={days} span={billSpan(span, bill.now)} sites={shownSites} runs={split === "run" ? null : shownRuns} weeks={weeks} weeksPath={chosen.href({days: "weeks", by: null})} isLong={isLong} /></Loading>}</AnswerSection>
      {isCompared ? breakdown : null}
      <Budgets asked={[summary, summaryTrouble]} />
      <Loading isOld={sites[0] === null}><Idle asked={[shownSites, sites[1]]} isLong={isLong} /></Loading>
      {isCompared ? null : breakdown}
      {split === "run" ? null : <Loading isOld={runs[0] === null}><DearestRuns asked={[shownRuns, runs[1]]} when={its} allPath={chosen.href({split: "run"})} /></Loading>}
      <Saved asked={savings} chosen={chosen} />
    </>
  );
}

/** The parts of the expected cost of the month: until now, of running and waiting jobs, and of later ones.
 *
 * @param spent: in the month until now
 */
export function expectedText({until, hours, usd_per_hour: present, cpus, usd_per_day: mean, cpu_hours_per_day: meanHours, since}: ExpectedBill, spent: Pick<BillAmounts, "usd" | "cpu_hours">, now: number): string {
  const left = (until - now) / 3600, busy = Math.min(hours, left), later = left - busy, of = (perHour: number, perDay: number) => [perHour * busy, (perDay * later) / 24];
  const [work, rest] = mean === null ? of(cpus, meanHours) : of(present ?? 0, mean), text = amountText(mean !== null);
  return [
    `${cost(spent.usd, spent.cpu_hours)} so far`,
    busy > 0 ? `${text(work)} for running and waiting jobs` : null,
    later > 0 ? `${text(rest)} for later jobs, at ${cost(mean, meanHours)} a day, the mean since ${utcDay(since)}` : null,
  ].filter(Boolean).join("; ");
}

/** Last week's cost, and its difference from the week before. */
function LastWeek({asked: [bill, trouble], to}: {asked: readonly [Bill | null, string | null, ...unknown[]]; to: string}) {
  if (!bill) return trouble ? <Tile label="Last week" value="–" help={trouble} /> : null;
  const [before, last] = bill.totals, inUsd = bill.total.usd !== null;
  if (!areCompared(bill) || !last.cpu_hours) return null;
  return <Tile label={`Last week, ${spanText(bill.periods[1])}`} value={cost(last.usd, last.cpu_hours)} help={`${difference(whole(before, inUsd), whole(last, inUsd), amountText(inUsd))} against the week before; compare`} to={to} />;
}

/** Shows old content pale until the content for the new choice is loaded. */
const Loading = ({isOld, children}: {isOld: boolean; children: React.ReactNode}) => <div style={{opacity: isOld ? 0.55 : 1}} aria-busy={isOld}>{children}</div>;

/**
 * @param sites: the bill by site
 * @param runs: the bill by run; null: not known, or the breakdown has it
 * @param weeks: the bill of the last two weeks
 * @param isLong: whether `sites` only covers the last 30 days
 */
function BillSummary({bill, savings, budgets, days, span: {since, until}, sites, runs, weeks, weeksPath, isLong}: {bill: Bill; savings: Savings | null; budgets: readonly Budget[]; days: string; span: {since: number; until: number}; sites: Bill | null; runs: Bill | null; weeks: readonly [Bill | null, string | null, ...unknown[]]; weeksPath: string; isLong: boolean}) {
  const {total, running, expected, periods} = bill, inUsd = total.usd !== null, began = periods[0].since;
  // Of a bill by week or month, the first one can begin before the time range.
  const range = began === since ? {0: "Today", week: "This week", month: "This month"}[days] : undefined, last = periods[periods.length - 1].until, isPast = until < bill.now;
  const [dearest] = runsOf(runs), isCompared = areCompared(bill), [rose] = isCompared && bill.split !== "run" ? byRise(bill.rows, inUsd) : [], hasIdle = Boolean(sites?.idle_sites.length);
  const share = (key: Share) => { const {title} = SHARES.find((each) => each.key === key)!, part = percent(amount(total, key, inUsd), whole(total, inUsd)), isIdle = key === "idle" && hasIdle; return <Tile label={title} section={isIdle ? HALVED : undefined} value={amountText(inUsd)(amount(total, key, inUsd))} help={isIdle ? `${part}, see how to halve it` : part} />; };
  return (
    <>
      <Tiles>
        <Tile label={range ?? (isPast ? spanText({since: began, until: last}) : `${utcDay(began)} until now`)} value={cost(total.usd, total.cpu_hours)} help={inUsd ? cpuHours(total.cpu_hours) : null} />
        {isCompared ? <>
          {periods.map((period, index) => <Tile key={period.since} label={spanText(period)} value={cost(bill.totals[index].usd, bill.totals[index].cpu_hours)} />)}
          <Tile label="Difference" value={<span style={{whiteSpace: "normal"}}>{difference(whole(bill.totals[0], inUsd), whole(bill.totals[1], inUsd), amountText(inUsd))}</span>} help={`${spanText(periods[1])} against ${spanText(periods[0])}`} />
          {rose?.kind === "named" ? <Tile label="Rose most" section="Breakdown" value={differenceOf(rose, inUsd && rose.total.usd !== null)} help={<Name breaks>{nameOf(rose, bill.split)}</Name>} /> : null}
        </> : null}
        {expected ? <Tile label={`Expected by the end of ${utcDay(expected.until - 1)}`} value={about(expected.usd, expected.cpu_hours)} help={expectedText(expected, total, bill.now)} /> : null}
        {share("used")}
        {share("unused")}
        {share("idle")}
        {share("boot")}
        {budgets.length ? <BudgetsTile budgets={budgets} /> : null}
        {isCompared ? null : <LastWeek asked={weeks} to={weeksPath} />}
        {dearest ? <Tile label="Most expensive run" section={DEAREST} value={cost(dearest.total.usd, dearest.total.cpu_hours)} help={<><Name breaks>{nameOf(dearest, "run")}</Name>: see the {DEAREST.toLowerCase()}</>} /> : null}
        {savings?.tasks.length ? <Tile label={SAVINGS} section={SAVINGS} value={cost(savings.usd, savings.cpu_hours)} help={`a month, by the right sizes of ${tasksText(savings.tasks.length)}`} rows={savings.tasks.slice(0, NAMED_SAVINGS).map((task) => ({key: taskKey(task), text: <Name breaks>{taskKey(task)}</Name>}))} /> : null}
        {isPast ? null : <Tile label="Of this, still running" value={cost(running.usd, running.cpu_hours)} help={`${jobsText(running.jobs)} and the machines that are up`} />}
        {savings && Object.values(savings.freed).some((freed) => freed !== 0) ? <Tile label="Automatic sizing frees" value={`${cpusText(savings.freed.cpus)}, ${count(savings.freed.gib)} GiB`} help={`${cpuHours(savings.freed.cpu_hours)} and ${count(savings.freed.gib_hours)} GiB-hours within a day`} /> : null}
      </Tiles>
      {sites ? <IdleAdvice bill={sites} isLong={isLong} /> : null}
      <div style={{margin: "10px 0 4px"}}><ShareLegend /></div>
      <Trend bill={bill} inUsd={inUsd} />
      <Muted>{began < since ? `Each ${bill.by} is shown in full, including the part before ${utcDay(since)}. ` : ""}Days, weeks and months are in UTC{isPast ? ". " : "; the pale one is still in progress. The last bar includes what is running now. A running job counts as using all that it requested. "}Idle cpus are those of machines that are up which no job requested: all cpus of idle machines, and the unrequested cpus of busy ones. Jobs without a price are shown in cpu-hours only.{bill.is_partial ? " The totals include Dags you cannot read only for past days on which at least two of them had jobs." : ""}</Muted>
    </>
  );
}
