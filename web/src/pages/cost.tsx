// The bill by day, week or month and by Dag, task, run, site or team, split into used, unused, idle and booting.
import * as React from "react";
import {useEffect, useRef, useState} from "react";
import type {BillPage as Bill, BillAmounts, BillRow, ExpectedBill, IdleSite, Saving, Savings, Summary} from "../api_types";
import {SLANTS, hatched} from "../chart/colors";
import {about, cost, count, cpuHours, cpusText, date, duration, exact, fraction, iso, jobsText, memory, minute, percent, usd, utcDay} from "../format";
import {dagPath, pagePath, runPath} from "../paths";
import {useAnswer, useLast} from "../polling";
import type {Chosen} from "../ui/choices";
import {AnswerSection, Bar, Legend, Line, Link, Muted, Name, Row, Section, Select, TaskName, Tile, Tiles, type Part} from "../ui/parts";
import {Table, type Column} from "../ui/table";
import {billSpan, type BillRange} from "./bill_span";
import {actions, type Action} from "./now";
import type {PageProps} from "./page";

const PERIODS = [["day", "by day"], ["week", "by week"], ["month", "by month"]] as const;
const SPLITS = [["dag", "by Dag"], ["task", "by task"], ["run", "by run"], ["site", "by site"], ["team", "by team"]] as const;
const SPANS = [["0", "today"], ["6", "7 days"], ["week", "this week"], ["lastweek", "last week"], ["weeks", "last 2 weeks, compared"], ["month", "this month"], ["29", "30 days"], ["89", "90 days"], ["364", "a year"]] as const;
const HEADINGS: Record<string, string> = {dag: "Dag", task: "Task", run: "Run", site: "Site", team: "Team"};
const TITLES: Record<string, string> = {dag: "Costs by Dag", task: "Costs by task", run: "Costs by run", site: "Costs by site", team: "Costs by team"};

const SHARES = [
  {key: "used", title: "Used", slant: SLANTS.running},
  {key: "unused", title: "Requested, not used", slant: 45},
  {key: "idle", title: "Idle machines", slant: 135},
  {key: "boot", title: "Booting machines", slant: 0},
] as const;
type Share = (typeof SHARES)[number]["key"];
const colorOf = (key: Share, slant: number | null) => hatched(`var(--l-${key})`, slant);

/** The amount of a part of the bill in USD or cpu-hours. */
export function amount(amounts: BillAmounts, key: Share, inUsd: boolean): number {
  return (inUsd ? amounts[`usd_${key}`] : amounts[`cpu_hours_${key}`]) ?? 0;
}
export function parts(amounts: BillAmounts, inUsd: boolean): Part[] {
  return SHARES.map(({key, title, slant}) => {
    const value = amount(amounts, key, inUsd);
    return {key, title, value, text: inUsd ? usd(value) : cpuHours(value), color: colorOf(key, slant)};
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
  if (row.kind === "machines") return "idle and boot time charged to no job";
  if (split === "run") return [row.dag_id, row.run_id ?? "earlier runs"].filter(Boolean).join(", ");
  return [row.dag_id, row.task_id].filter(Boolean).join(".") || row.site || row.team || (split === "team" ? "no team" : split === "site" ? "no site" : "no Dag");
}
function rowName(row: BillRow, split: string) {
  const text = row.dag_id && row.task_id ? <TaskName job={row} /> : <Name>{nameOf(row, split)}</Name>;
  if (row.kind !== "named") return text;
  if (row.dag_id && row.run_id) return <div><Link to={runPath(row.dag_id, row.run_id)} label={nameOf(row, split)}><Name>{row.run_id}</Name></Link><div><Muted><Link to={dagPath(row.dag_id)}><Name>{row.dag_id}</Name></Link></Muted></div></div>;
  if (row.dag_id) return <Link to={dagPath(row.dag_id)} label={row.task_id ? nameOf(row, split) : undefined}>{text}</Link>;
  return row.site || row.team ? <Link to={pagePath({view: "jobs", site: row.site, team: row.team})}>{text}</Link> : text;
}

/** A column that shows how an amount is divided into its parts, as a bar.
 *
 * @param none: why a row has no amounts in USD
 */
export function spentColumn<Row>(of: (row: Row) => BillAmounts, inUsd: boolean, most: number, more: (row: Row) => Part[] = () => [], none: (row: Row) => string = () => "has no price"): Column<Row> {
  const cell = (row: Row) => {
    const its = [...parts(of(row), inUsd), ...more(row)];
    return inUsd && of(row).usd === null && its.every(({value}) => !value) ? <Muted>{none(row)}</Muted> : <Bar name={inUsd ? "USD" : "cpu-hours"} parts={its} whole={most} />;
  };
  return {title: "How it was spent", cell, text: false};
}
export const shareColumns = <Row,>(of: (row: Row) => BillAmounts) =>
  SHARES.map(({key, title}): Column<Row> => ({title: `USD ${title}`, hidden: true, text: (row) => of(row)[`usd_${key}`]}));
export const ShareLegend = () => <Legend parts={SHARES.map(({key, title, slant}) => ({key, title, color: colorOf(key, slant)}))} />;

/** The used and unused part, which is what budgets count; null: it has no price. */
export const ofJobs = (amounts: BillAmounts, inUsd: boolean): number | null =>
  inUsd && amounts.usd === null ? null : amount(amounts, "used", inUsd) + amount(amounts, "unused", inUsd);
const OfJobs = ({whole: sum, jobs, text}: {whole: number | null; jobs: number | null; text: (value: number | null) => string}) => (
  <div>{text(sum)}{jobs === null || text(jobs) === text(sum) ? null : <div><Muted>jobs {text(jobs)}</Muted></div>}</div>
);

function Rows({bill, split, inUsd, name = TITLES[split], few}: {bill: Bill; split: string; inUsd: boolean; name?: string; few?: number}) {
  const most = Math.max(...bill.rows.map(({total}) => whole(total, inUsd)), 1e-9), areCompared = bill.periods.length === 2;
  const choices = (row: BillRow) => ({view: "jobs", dag: row.dag_id, task: row.task_id, run: row.run_id, site: row.site, team: row.team});
  const columns: Column<BillRow>[] = [
    {title: HEADINGS[split], cell: (row) => rowName(row, split), text: (row) => nameOf(row, split)},
    {title: "Jobs", cell: (row) => (row.kind === "named" && (row.dag_id || row.site || row.team) ? <Link to={pagePath(choices(row))} label={`${count(row.total.jobs)} jobs of ${nameOf(row, split)}`}>{count(row.total.jobs)}</Link> : count(row.total.jobs)), text: ({total}) => total.jobs, number: true},
    {title: "Failed", cell: ({total}) => count(total.failed), text: ({total}) => total.failed, number: true},
    {title: "USD", help: "With the part of jobs, used and unused, which is what budgets count", cell: ({total}) => <OfJobs whole={total.usd} jobs={ofJobs(total, true)} text={usd} />, text: ({total}) => total.usd, has: ({total}) => total.usd !== null, number: true},
    {title: "USD of jobs", hidden: true, text: ({total}) => ofJobs(total, true)},
    spentColumn(({total}) => total, inUsd, most),
    ...shareColumns<BillRow>(({total}) => total),
    {title: "cpu-hours paid", help: "Requested by jobs, and the idle and boot time of machines", cell: ({total}) => <OfJobs whole={total.cpu_hours} jobs={ofJobs(total, false)} text={count} />, text: ({total}) => total.cpu_hours, number: true},
    {title: "cpu-hours of jobs", hidden: true, text: ({total}) => ofJobs(total, false)},
    {title: "Used, of paid", csvTitle: "cpu-hours used", help: "Percentage of the cpu-hours paid that jobs used", cell: ({total}) => percent(total.cpu_hours_used, total.cpu_hours), text: ({total}) => total.cpu_hours_used, number: true},
    ...bill.periods.map((period, index): Column<BillRow> => ({title: areCompared ? `${utcDay(period.since)} to ${utcDay(period.until - 1)}` : `USD ${iso(period.since).slice(0, 10)}`, csvTitle: `USD ${iso(period.since).slice(0, 10)}`, hidden: !areCompared, cell: ({usd: spent, cpu_hours: hours}) => (inUsd ? usd(spent[index]) : cpuHours(hours[index])), text: ({usd: spent}) => spent[index], number: true})),
  ];
  return <Table name={name} rows={bill.rows} columns={columns} few={few} empty="No job ran in this time." keyOf={(row) => `${row.kind} ${nameOf(row, split)}`} />;
}

const saved = (each: Savings | Saving) => (each.usd === null ? `${count(each.cpu_hours)} cpu-hours and ${count(each.gib_hours)} GiB-hours` : usd(each.usd));
const SavedInAll = ({found}: {found: Savings}) => (
  <span data-testid="savings"><b>{saved(found)} a month in total</b> <Muted>for {count(found.tasks.length)} {found.tasks.length === 1 ? "task" : "tasks"}{found.tasks_left_out ? `; ${count(found.tasks_left_out)} less expensive tasks are not included` : ""}</Muted></span>
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
type SavingsAnswer = readonly [Savings | null, string | null, number];
function Saved({asked, chosen}: {asked: SavingsAnswer; chosen: Chosen}) {
  if (!asked[0]?.tasks.length && !asked[1]) return null;
  const by = (Object.keys(SAVED) as SavedBy[]).find((key) => key === chosen.get("saved")) ?? (asked[0]?.usd == null ? "cpus" : "usd");
  const nameOfTask = (task: Saving) => `${task.dag_id}.${task.task_id}`;
  /** What is requested and what the line requests, and below it what the line saves; the CSV has a column for each. */
  const resource = (title: string, unit: string, sort: SavedBy, text: (value: number | null) => string, requested: (task: Saving) => number | null, size: (task: Saving) => Saving["cpus"], hours: string): Column<Saving>[] => [
    {title: `${title}, requested → in the line`, help: `What its jobs request, what the line requests instead, and the ${hours} that this saves in a month; sorts by these`, sort, cell: (task) => <div><div className="line">{text(requested(task))} → {text(size(task).nearly_all)}</div><Muted>saves {count(SAVED[sort](task))} {hours}</Muted></div>, text: false, number: true},
    {title: `${title} requested${unit}`, hidden: true, text: requested},
    {title: `${title} of 95 % of tries${unit}`, hidden: true, text: (task) => size(task).most},
    {title: `${title} in the line${unit}`, hidden: true, text: (task) => size(task).nearly_all},
    {title: `${hours} a month`, hidden: true, text: SAVED[sort]},
  ];
  const columns: Column<Saving>[] = [
    {title: "Task, and the line to paste", cell: (task) => <div><Link to={dagPath(task.dag_id)} label={nameOfTask(task)}><TaskName job={task} /></Link><Line text={task.line} name={nameOfTask(task)} /></div>, text: nameOfTask},
    ...resource("Memory", ", MiB", "memory", memory, (task) => task.memory_asked, (task) => task.memory, "GiB-hours"),
    ...resource("cpus", "", "cpus", count, (task) => task.cpus_asked, (task) => task.cpus, "cpu-hours"),
    {title: "USD a month", sort: "usd", cell: (task) => usd(task.usd), text: (task) => task.usd, has: (task) => task.usd !== null, number: true},
    {title: "To paste", hidden: true, text: (task) => task.line},
  ];
  return (
    <AnswerSection title={SAVINGS} asked={asked} more={asked[0] ? <SavedInAll found={asked[0]} /> : null}>{(found) => <Table name="Savings" rows={savedBy(found.tasks, by)} columns={columns} sorting={{by, descending: true, onSort: (sort) => chosen.set({saved: sort})}} empty="" keyOf={nameOfTask} />}</AnswerSection>
  );
}

/** Which settings would halve the cost of all idle machines, in one line. */
const IdleAdvice = ({bill, isLong}: {bill: Bill; isLong: boolean}) =>
  bill.idle_remedy ? <p style={{marginTop: 10}} data-testid="idle-advice"><b>To halve idle cost{isLong ? " of the last 30 days" : ""}:</b> {bill.idle_remedy}</p> : null;

const IDLE = "Idle machines";
/** The sites with idle machines, what that cost, and which setting would halve it. */
function Idle({asked, isLong}: {asked: readonly [Bill | null, string | null]; isLong: boolean}) {
  const [bill, trouble] = asked, inUsd = bill !== null && bill.total.usd !== null;
  if (!bill?.idle_sites.length && !trouble) return null;
  const idle = (site: IdleSite) => (inUsd ? site.usd : site.cpu_hours) ?? 0, spent = ({site: name}: IdleSite) => { const row = bill?.rows.find(({site}) => site === name); return row ? whole(row.total, inUsd) : null; };
  const saves = ({idle_seconds: now, proposed_seconds: proposed, usd_saved: money, cpu_hours_saved: hours, machines}: IdleSite) =>
    now === null ? "–" : proposed === null ? <Muted>unknown</Muted> : <div>{cost(money, hours ?? 0)}<div><Muted>{count(machines)} {machines === 1 ? "machine" : "machines"}</Muted></div></div>;
  const columns: Column<IdleSite>[] = [
    {title: "Site", cell: ({site}) => <Link to={pagePath({view: "machines", site})} label={`Machines of ${site}`}><Name>{site}</Name></Link>, text: ({site}) => site},
    {title: "USD idle", cell: (site) => usd(site.usd), text: (site) => site.usd, has: (site) => site.usd !== null, number: true},
    {title: "% of cost", csvTitle: "Fraction of cost", help: "The cost of idle machines, as a percentage of the cost of the site in this time range", cell: (site) => percent(idle(site), spent(site)), text: (site) => fraction(idle(site), spent(site)), number: true},
    {title: "cpu-hours idle", cell: (site) => count(site.cpu_hours), text: (site) => site.cpu_hours, number: true},
    {title: "idle_seconds, now → proposed", help: "How long the site keeps idle machines now, and the longest of several shorter values that halves its idle cost", cell: ({idle_seconds: now, proposed_seconds: proposed}) => (now === null ? "–" : proposed === null ? count(now) : `${count(now)} → ${count(proposed)}`), text: false, has: (site) => site.idle_seconds !== null, number: true},
    {title: "idle_seconds", hidden: true, text: (site) => site.idle_seconds},
    {title: "Proposed idle_seconds", hidden: true, text: (site) => site.proposed_seconds},
    {title: "Would have saved", help: "By releasing earlier the machines that were released after being idle in this time range. Idle time between jobs is not included", cell: saves, text: false, has: (site) => site.idle_seconds !== null, number: true},
    {title: "USD saved by the proposed idle_seconds", hidden: true, text: (site) => site.usd_saved},
    {title: "cpu-hours saved by the proposed idle_seconds", hidden: true, text: (site) => site.cpu_hours_saved},
    {title: "How to halve it", cell: (site) => <div className="text long">{site.remedy}</div>, text: (site) => site.remedy},
  ];
  return <AnswerSection title={IDLE} more={isLong ? <Muted>last 30 days</Muted> : null} asked={asked}>{({idle_sites: sites}) => <Table name={IDLE} rows={sites} columns={columns} empty="No machine idled." keyOf={({site}) => site} />}</AnswerSection>;
}

type Budget = NonNullable<Summary["budgets"]>[number];
const ofBudget = ({name, lifted_by: lifted}: Budget): Action[] =>
  lifted === null ? [["lift", "Lift", name, `Lift ${name} until its period ends?`]] : [["restore", "Restore", name, `Restore ${name}?`]];

/** The budgets that are spent to the largest part come first. */
export const rankedBudgets = (budgets: readonly Budget[]): Budget[] => [...budgets].sort((one, other) => other.spent / other.most - one.spent / one.most);

const BUDGETS = "Budgets";
const isSpent = ({spent, most}: Budget) => spent >= most;

const NAMED_BUDGETS = 3;
/** How many budgets are spent or nearly so, those of which most is spent, and a link to all. */
function BudgetsTile({budgets}: {budgets: readonly Budget[]}) {
  const spent = budgets.filter(isSpent).length, near = budgets.filter((budget) => budget.is_near && !isSpent(budget)).length;
  return <Tile label={BUDGETS} section={BUDGETS} isBad={spent > 0} value={spent ? `${count(spent)} spent` : "not spent"} help={<>{rankedBudgets(budgets).slice(0, NAMED_BUDGETS).map((budget) => <div key={budget.name} className="line"><Name>{budget.name}</Name> {percent(budget.spent, budget.most)}</div>)}{near ? `${count(near)} nearly spent; ` : ""}see all {count(budgets.length)}</>} />;
}

const isUsd = (unit: string) => unit.toUpperCase() === "USD";
/** The bill that has the sum of a budget: of the same period, split by what the budget is of. */
export const breakdownPath = ({who, per}: Pick<Budget, "who" | "per">): string =>
  pagePath({view: "cost", days: {day: "0", week: "week", month: "month"}[per], split: who.startsWith("team ") ? "team" : "dag"});

/** How much of each budget is spent. */
function Budgets({asked}: {asked: readonly [Summary | null, string | null]}) {
  if (!asked[0]?.budgets?.length && !asked[1]) return null;
  const spent = ({spent: value, most, unit}: Budget) => (isUsd(unit) ? `${usd(value)} of ${usd(most)}` : `${exact(value)} of ${exact(most)} ${unit}`);
  const rate = ({per_hour: value, unit}: Budget) => (isUsd(unit) ? usd(value) : `${exact(value)} ${unit}`);
  const state = (budget: Budget) => (budget.lifted_by !== null ? `lifted by ${budget.lifted_by}` : isSpent(budget) ? "exhausted" : budget.is_near ? "nearly spent" : "");
  const columns: Column<Budget>[] = [
    {title: "Budget", cell: (budget) => <Name>{budget.name}</Name>, text: (budget) => budget.name},
    {title: "Dags or team", cell: (budget) => <Name>{budget.who}</Name>, text: (budget) => budget.who},
    {title: "Spent", cell: (budget) => <div><Link to={breakdownPath(budget)} label={`${spent(budget)} a ${budget.per}: the bill of ${budget.who}`}>{spent(budget)} a {budget.per}</Link><div className="line"><Muted>since {date(budget.since)}</Muted></div></div>, text: (budget) => budget.spent, number: true},
    {title: "Since", hidden: true, text: (budget) => iso(budget.since)},
    {title: "% spent", csvTitle: "Fraction spent", cell: (budget) => <div className="row nowrap"><Bar whole={Math.max(budget.most, budget.spent)} parts={[{key: "spent", title: "spent", value: budget.spent, text: percent(budget.spent, budget.most), color: budget.spent >= budget.most ? "var(--l-failed)" : budget.is_near ? "var(--l-queue)" : "var(--l-used)"}]} /><span>{percent(budget.spent, budget.most)}</span></div>, text: (budget) => fraction(budget.spent, budget.most)},
    {title: "Limit", hidden: true, text: (budget) => budget.most},
    {title: "Unit", hidden: true, text: (budget) => budget.unit},
    {title: "State", cell: (budget) => state(budget), has: state},
    {title: "Runs out", help: "When the budget will be spent, and how much of it by the end of the period", cell: (budget) => <div>{isSpent(budget) ? "has run out" : budget.spent_at === null ? <Muted>not this {budget.per}</Muted> : date(budget.spent_at)}{isSpent(budget) ? null : <div><Muted>{percent(budget.expected, budget.most)} by {date(budget.until)}</Muted></div>}{budget.hours > 0 ? <div><Muted>now {rate(budget)} per hour for {lasting(budget.hours)}</Muted></div> : null}</div>, text: (budget) => (isSpent(budget) ? "" : iso(budget.spent_at)), number: true},
    {title: "Now, per hour", hidden: true, text: (budget) => budget.per_hour},
    {title: "Expected by its reset", hidden: true, text: (budget) => budget.expected},
    {title: "Resets", cell: (budget) => date(budget.until), text: (budget) => iso(budget.until), number: true},
    ...actions(asked[0]?.may_act ?? false, ofBudget),
  ];
  const at = Math.max(...(asked[0]?.budgets ?? []).map((budget) => budget.at));
  const what = asked[0]?.budgets?.length ? <Muted>Used and unused cost of their jobs, without idle and booting machines, as of {minute(at)}</Muted> : null;
  return <AnswerSection title={BUDGETS} more={what} asked={asked}>{({budgets}) => <><Table name="Budgets" rows={rankedBudgets(budgets ?? [])} columns={columns} empty="There are no budgets." keyOf={({name}) => name} /><Muted>What will be spent is expected at the present rate of its jobs while those that run or wait last, then at the mean rate of the period.</Muted></>}</AnswerSection>;
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
  const days = oneOf(chosen, "days", SPANS, "29"), span = rangeOf(days), by = oneOf(chosen, "by", PERIODS, periodOf(days)), split = oneOf(chosen, "split", SPLITS, "dag");
  const live = () => billSpan(span, Date.now() / 1000);
  const asked = useAnswer<Bill>("bill", {by, split}, 60, live, days), runs = useAnswer<Bill>("bill", {by, split: "run"}, 60, live, days);
  // Longer ago, the machines have been deleted from which savings are estimated (job_retention_days).
  const isLong = Number(days) > 29, idleSpan = () => billSpan(isLong ? 29 : span, Date.now() / 1000);
  const sites = useAnswer<Bill>("bill", {by: isLong ? "day" : by, split: "site"}, 60, idleSpan, isLong ? "29" : days);
  const shown = useLast(asked[0]), isOld = asked[0] === null, shownRuns = useLast(runs[0]), shownSites = useLast(sites[0]);
  const savings = useAnswer<Savings>("savings", {}, 300);
  const answers = [[summary, summaryTrouble], asked, runs, sites, savings] as const;
  const isShown = useTogether(answers.every(([answer, trouble]) => answer !== null || trouble !== null));
  const its = spanText(live());
  const more = (
    <Row>
      <Muted>{its}, UTC</Muted>
      <Select label="Time range" value={days} options={SPANS} onChange={(value) => chosen.set({days: value, by: null})} />
      <Select label="Period" value={by} options={PERIODS} onChange={(value) => chosen.set({by: value})} />
    </Row>
  );
  if (!isShown) return <AnswerSection title="Cost" more={more} asked={[null, null]}>{() => null}</AnswerSection>;
  const splitBy = <Select label="Split by" value={split} options={SPLITS} onChange={(value) => chosen.set({split: value})} />;
  return (
    <>
      <AnswerSection title="Cost" more={more} asked={[shown, asked[1]]}>{(bill) => <Loading isOld={isOld}><BillSummary bill={bill} savings={savings[0]} budgets={summary?.budgets ?? []} days={days} span={billSpan(span, bill.now)} sites={shownSites} runs={split === "run" ? null : shownRuns} isLong={isLong} /></Loading>}</AnswerSection>
      <Loading isOld={sites[0] === null}><Idle asked={[shownSites, sites[1]]} isLong={isLong} /></Loading>
      <Budgets asked={[summary, summaryTrouble]} />
      {shown ? <Section title="Breakdown" more={splitBy}><Loading isOld={isOld}><Rows bill={shown} split={shown.split} inUsd={shown.total.usd !== null} /></Loading></Section> : null}
      {split === "run" ? null : <Loading isOld={runs[0] === null}><DearestRuns asked={[shownRuns, runs[1]]} when={its} allPath={chosen.href({split: "run"})} /></Loading>}
      <Saved asked={savings} chosen={chosen} />
    </>
  );
}

/** What the expected cost of the month assumes. */
export function expectedText({until, hours, usd_per_hour: present, cpus, usd_per_day: mean, cpu_hours_per_day: meanHours, since}: ExpectedBill, now: number): string {
  const rate = `${cost(present, cpus)} per hour`, later = `${cost(mean, meanHours)} a day, the mean since ${utcDay(since)}`;
  if (hours <= 0) return `with ${later}, from now on`;
  return now + hours * 3600 >= until ? `with ${rate}, as now: running and waiting jobs last ${lasting(hours)}` : `with ${rate} for the ${lasting(hours)} that running and waiting jobs last, then ${later}`;
}
const lasting = (hours: number) => duration(hours * 3600);

/** Shows old content pale until the content for the new choice is loaded. */
const Loading = ({isOld, children}: {isOld: boolean; children: React.ReactNode}) => <div style={{opacity: isOld ? 0.55 : 1}} aria-busy={isOld}>{children}</div>;

/**
 * @param sites: the bill by site
 * @param runs: the bill by run; null: not known, or the breakdown has it
 * @param isLong: whether that covers only the last 30 days
 */
function BillSummary({bill, savings, budgets, days, span: {since, until}, sites, runs, isLong}: {bill: Bill; savings: Savings | null; budgets: readonly Budget[]; days: string; span: {since: number; until: number}; sites: Bill | null; runs: Bill | null; isLong: boolean}) {
  const {total, running, expected} = bill, inUsd = total.usd !== null, began = bill.periods[0].since;
  // Of a bill by week or month, the first one can begin before the time range.
  const range = began === since ? {0: "Today", week: "This week", month: "This month"}[days] : undefined, last = bill.periods[bill.periods.length - 1].until, isPast = until < bill.now;
  const [dearest] = runsOf(runs);
  return (
    <>
      <Tiles>
        <Tile label={range ?? (isPast ? spanText({since: began, until: last}) : `${utcDay(began)} until now`)} value={cost(total.usd, total.cpu_hours)} help={inUsd ? cpuHours(total.cpu_hours) : null} />
        {expected ? <Tile label={`Expected by the end of ${utcDay(expected.until - 1)}`} value={about(expected.usd, expected.cpu_hours)} help={expectedText(expected, bill.now)} /> : null}
        {SHARES.map(({key, title}) => <Tile key={key} label={title} section={key === "idle" && sites?.idle_sites.length ? IDLE : undefined} value={inUsd ? usd(amount(total, key, true)) : cpuHours(amount(total, key, false))} help={`${percent(amount(total, key, inUsd), whole(total, inUsd))}${key === "idle" && sites?.idle_sites.length ? ", see how to halve it" : ""}`} />)}
        {budgets.length ? <BudgetsTile budgets={budgets} /> : null}
        {dearest ? <Tile label="Most expensive run" section={DEAREST} value={cost(dearest.total.usd, dearest.total.cpu_hours)} help={<><Name>{nameOf(dearest, "run")}</Name>: see the {DEAREST.toLowerCase()}</>} /> : null}
        {savings?.tasks.length ? <Tile label={SAVINGS} section={SAVINGS} value={cost(savings.usd, savings.cpu_hours)} help={`a month, by the right sizes of ${count(savings.tasks.length)} ${savings.tasks.length === 1 ? "task" : "tasks"}`} /> : null}
        {isPast ? null : <Tile label="Running, included" value={cost(running.usd, running.cpu_hours)} help={`${jobsText(running.jobs)} and the machines that are up`} />}
        {savings && Object.values(savings.freed).some((freed) => freed !== 0) ? <Tile label="Automatic sizing frees" value={`${cpusText(savings.freed.cpus)}, ${count(savings.freed.gib)} GiB`} help={`${cpuHours(savings.freed.cpu_hours)} and ${count(savings.freed.gib_hours)} GiB-hours within a day`} /> : null}
      </Tiles>
      {sites ? <IdleAdvice bill={sites} isLong={isLong} /> : null}
      <div style={{margin: "10px 0 4px"}}><ShareLegend /></div>
      <Trend bill={bill} inUsd={inUsd} />
      <Muted>{began < since ? `Each ${bill.by} is shown in full, including the part before ${utcDay(since)}. ` : ""}Days, weeks and months are in UTC{isPast ? ". " : "; the pale one is still in progress. The last bar includes what runs now. A running job counts as using all that it requested. "}Jobs without a price are shown in cpu-hours only.{bill.is_partial ? " The totals include Dags you cannot read only for past days on which at least two of them had jobs." : ""}</Muted>
    </>
  );
}
