// What runs where: the packing chart, and the machines with actions such as draining them.
import * as React from "react";
import {memo, useCallback, useDeferredValue, useMemo, useState} from "react";
import {ask} from "../api";
import type {ChartMachine, OperatorRequest} from "../api_types";
import type {Packing as Data} from "../chart/packing";
import {idleShare, sharesOf, siteOf, wasUp, type Measure} from "../chart/rows";
import {amountOf, bought, count, date, fraction, iso, jobsText, machineState, machinesText, percent, usd} from "../format";
import {RANGES, pagePath, rangeOf} from "../paths";
import {useAnswer, usePacking} from "../polling";
import {Packing} from "../ui/chart";
import {Awaited, Badge, Button, Clamp, Confirmed, Link, Muted, Name, Row, Section, Select, MemoryUse, Trouble, UseBar} from "../ui/parts";
import {Table, type Column} from "../ui/table";
import {Asked, actions, type Action} from "./now";
import type {PageProps} from "./page";

const LIVING = ["ordered", "booting", "up"];

/** The open requests to drain or terminate machines, by machine. */
export type Pending = ReadonlyMap<string, Pick<OperatorRequest, "kind" | "by">>;
export const pendingOf = (requests: readonly OperatorRequest[]): Pending =>
  new Map([...requests].reverse().filter(({kind, done_at: at}) => at === null && (kind === "drain" || kind === "terminate")).map(({kind, target, by}) => [target, {kind, by}]));

const canDrain = ({sort, state, key}: ChartMachine, pending: Pending) => sort === "instance" && LIVING.includes(state) && !pending.has(key);
/** Why a machine cannot be drained; null: it can be, or its state says why. */
export const whyNotDrained = ({sort, site}: Pick<ChartMachine, "sort" | "site">): string | null =>
  sort === "instance" ? null : `Cannot be drained: Lading did not launch it. Pause ${site} to give it no more jobs.`;
function ofMachine(machine: ChartMachine, pending: Pending): Action[] {
  const {sort, state, key} = machine;
  if (sort !== "instance" || !(LIVING.includes(state) || state === "draining") || pending.get(key)?.kind === "terminate") return [];
  const drain: Action = ["drain", "Drain", key, `Drain ${key}? It is released once its jobs have finished.`];
  return [...(canDrain(machine, pending) ? [drain] : []), ["terminate", "Terminate", key, `Terminate ${key} and the jobs that run there?`]];
}
/** The machines that are up, can be reached and have no job. */
export function idleMachines({machines, jobs}: Pick<Data, "machines" | "jobs">): ReadonlySet<string> {
  const busy = new Set([...jobs.values()].filter(({end}) => end === null).map(({place}) => place));
  return new Set([...machines.values()].filter((machine) => machineState(machine)[0] === "up" && !busy.has(machine.key)).map(({key}) => key));
}
/** How many machines are up, how many of these are idle, how many are unreachable, and how many are ordered or booting. */
export function upText(packing: Pick<Data, "machines" | "jobs">): string {
  const there = [...packing.machines.values()].filter(({state}) => !["gone", "ended"].includes(state));
  const coming = there.filter((machine) => !wasUp(machine)).length, silent = there.filter((machine) => machineState(machine)[0] === "unreachable").length;
  const rest = [[silent, "unreachable"], [coming, "coming"]].flatMap(([machines, what]) => (machines ? [`${count(Number(machines))} ${what}`] : []));
  return [`${count(there.length - coming - silent)} up`, amountOf(idleMachines(packing).size, "idle machine"), ...rest].join(", ");
}
/** The first names of several machines, and how many more there are. */
const namesText = (keys: readonly string[]): string => (keys.length <= 4 ? keys.join(", ") : `${keys.slice(0, 3).join(", ")} and ${machinesText(keys.length - 3)} more`);
/** @param jobs - how many run there */
export const drainQuestion = (keys: readonly string[], jobs: number): string => `Drain ${namesText(keys)}? ${jobs ? `Each is released once its jobs have finished; ${jobsText(jobs)} ${jobs === 1 ? "runs" : "run"} there now.` : "They have no job and are released."}`;
const drainAll = async (keys: readonly string[]) => { for (const key of keys) await ask("drain", key); };

const spent = ({usd: before, usd_since: since, usd_per_hour: rate}: ChartMachine, now: number) =>
  since === null || since === undefined ? null : before + ((rate ?? 0) * Math.max(0, now - since)) / 3600;

/** The order of states when sorted by state: first what could be released. */
const STATES = ["idle", "up", "booting", "ordered", "draining", "unreachable"];
const SORTS = ["machine", "state", "used", "share", "spent", "since"] as const;
type SortKey = (typeof SORTS)[number];
interface TableProps {packing: Data; pending: Pending; shares: ReturnType<typeof sharesOf>; now: number; may: boolean; by: SortKey; descending: boolean; onSort: (by: string, descending: boolean) => void}
export function Machines({packing, pending, shares, now, may, by, descending, onSort}: TableProps) {
  const [picked, setPicked] = useState<ReadonlySet<string>>(new Set());
  const used = new Map<string, number>(), promised = new Map<string, number>(), peaks = new Map<string, number>();
  for (const job of packing.jobs.values()) if (job.end === null) {
    used.set(job.place, (used.get(job.place) ?? 0) + job.cpus);
    promised.set(job.place, (promised.get(job.place) ?? 0) + job.memory);
    peaks.set(job.place, (peaks.get(job.place) ?? 0) + (job.peak ?? 0));
  }
  // When the last job of each machine ended, within the chart's time range.
  const lastEnd = new Map<string, number>();
  for (const job of packing.jobs.values()) if (job.end !== null) lastEnd.set(job.place, Math.max(lastEnd.get(job.place) ?? 0, job.end));
  const idleSince = ({key, spans}: ChartMachine) => lastEnd.get(key) ?? spans[0][0];
  const idleKeys = idleMachines(packing), isIdle = ({key}: ChartMachine) => idleKeys.has(key);
  const amounts: Record<Exclude<SortKey, "machine">, (machine: ChartMachine) => number> = {
    state: (machine) => STATES.indexOf(isIdle(machine) ? "idle" : machineState(machine)[0]),
    used: (machine) => (isIdle(machine) ? -1 : (used.get(machine.key) ?? 0) / (machine.cpus || 1)),
    share: ({key}) => (shares.get(key)?.used ?? 0) / (shares.get(key)?.up || 1),
    spent: (machine) => spent(machine, now) ?? -1,
    since: ({spans}) => spans[0][0],
  };
  const turn = descending ? -1 : 1;
  const rows = [...packing.machines.values()].filter(({state}) => !["gone", "ended"].includes(state)).sort((one, other) =>
    turn * (by === "machine" ? 0 : amounts[by](one) - amounts[by](other)) || (by === "machine" ? turn : 1) * one.key.localeCompare(other.key));
  const pick = (key: string) => setPicked((before) => new Set(before.has(key) ? [...before].filter((each) => each !== key) : [...before, key]));
  const request = ({key}: ChartMachine) => { const found = pending.get(key); return found ? `${found.kind} requested by ${found.by}` : null; };
  const load = (machine: ChartMachine) => `${count(used.get(machine.key) ?? 0)} / ${wasUp(machine) ? count(machine.cpus) : "–"}`;
  const share = ({key}: ChartMachine) => percent(shares.get(key)?.used ?? 0, shares.get(key)?.up);
  const columns: Column<ChartMachine>[] = [
    {title: "Machine", cell: (machine) => <div className="row nowrap">{may && canDrain(machine, pending) ? <input type="checkbox" aria-label={`Select ${machine.key}`} checked={picked.has(machine.key)} onChange={() => pick(machine.key)} /> : null}<div><Link to={pagePath({view: "jobs", site: machine.site, location: machine.name})} label={`Jobs on ${machine.key}`}><Name>{machine.key}</Name></Link><div><Muted>{bought(machine)}</Muted></div></div></div>, text: (machine) => machine.key, sort: "machine"},
    {title: "Bought", hidden: true, text: bought},
    {title: "State", cell: (machine) => { const [word, since] = machineState(machine); return <div><Badge word={word} />{isIdle(machine) ? <> <Badge word="idle" /><div className="line"><Muted>{idleSince(machine) < packing.since ? `before ${date(packing.since)}` : `since ${date(idleSince(machine))}`}</Muted></div></> : null}{since ? <div><Muted>{since}</Muted></div> : null}{request(machine) ? <div><Muted>{request(machine)}</Muted></div> : null}</div>; }, text: (machine) => [...machineState(machine), isIdle(machine) ? "idle" : null, request(machine)].filter(Boolean).join(" "), sort: "state"},
    {title: "Idle since", hidden: true, text: (machine) => (isIdle(machine) ? iso(idleSince(machine)) : "")},
    {title: "cpus, memory requested / up", csvTitle: "cpus requested", help: "Upper bar: the cpus that running jobs requested, out of all cpus of the machine. Lower bar: the same for memory, with the peaks of jobs that have run for a minute", cell: (machine) => <div>{load(machine)}{wasUp(machine) ? <><UseBar title="cpus requested" used={used.get(machine.key) ?? 0} most={machine.cpus} /><MemoryUse promised={promised.get(machine.key) ?? 0} used={peaks.get(machine.key) ?? 0} up={machine.memory} /></> : null}</div>, text: ({key}) => used.get(key) ?? 0, number: true, sort: "used", smallestFirst: true},
    {title: "Memory requested, MiB", hidden: true, text: ({key}) => promised.get(key) ?? 0},
    {title: "Memory at peak, MiB", hidden: true, text: ({key}) => peaks.get(key) ?? 0},
    {title: "Requested so far", help: "Percentage of the machine's cpu-hours that jobs requested, within the time range of the chart", cell: share, text: ({key}) => fraction(shares.get(key)?.used, shares.get(key)?.up), number: true, sort: "share"},
    {title: "cpus", hidden: true, text: ({cpus}) => cpus},
    {title: "Memory, MiB", hidden: true, text: (machine) => machine.memory},
    {title: "USD/h / so far", cell: (machine) => (machine.usd_per_hour === null ? "–" : `${usd(machine.usd_per_hour)} / ${usd(spent(machine, now))}`), text: false, has: (machine) => machine.usd_per_hour !== null, number: true, sort: "spent"},
    {title: "USD per hour", hidden: true, text: (machine) => machine.usd_per_hour},
    {title: "USD so far", hidden: true, text: (machine) => spent(machine, now)},
    {title: "Node, native id", cell: (machine) => <div><div>{machine.node ?? ""}</div><span className="muted line">{machine.native_id ?? ""}</span></div>, text: false, has: ({node, native_id}) => node ?? native_id},
    {title: "Node", hidden: true, text: (machine) => machine.node ?? ""},
    {title: "Native id", hidden: true, text: (machine) => machine.native_id ?? ""},
    {title: "Up since", cell: (machine) => <span className="line">{wasUp(machine) ? date(machine.spans[0][0]) : <Muted>ordered {date(machine.spans[0][0])}</Muted>}</span>, text: (machine) => iso(machine.spans[0][0]), sort: "since"},
    {title: "Note", cell: (machine) => <div className="note"><Clamp text={machine.reason ?? ""} /></div>, text: (machine) => machine.reason ?? "", has: ({reason}) => reason},
    ...actions(may, (machine: ChartMachine) => ofMachine(machine, pending), whyNotDrained),
  ];
  const drainable = rows.filter((machine) => canDrain(machine, pending)), idle = drainable.filter(isIdle);
  const chosen = drainable.filter(({key}) => picked.has(key)), keysOf = (machines: ChartMachine[]) => machines.map(({key}) => key);
  const jobsOn = (machines: ChartMachine[]) => [...packing.jobs.values()].filter(({end, place}) => end === null && machines.some(({key}) => key === place)).length;
  const drainChosen = async () => { await drainAll(keysOf(chosen)); setPicked(new Set()); };
  const idleFirst = by === "state" && !descending;
  const drain = !may ? null : chosen.length
    ? <><Confirmed key="chosen" label={`Drain ${machinesText(chosen.length)}`} verb="Drain" question={drainQuestion(keysOf(chosen), jobsOn(chosen))} onYes={drainChosen} /><Button onClick={() => setPicked(new Set())}>Clear selection</Button></>
    : <>{drainable.length > 1 ? <Muted>Tick machines to drain them together</Muted> : null}{idle.length > 1 ? <Confirmed key="idle" label={`Drain ${count(idle.length)} idle machines`} verb="Drain" question={`Drain ${namesText(keysOf(idle))}? They have no job and are released.`} onYes={() => drainAll(keysOf(idle))} /> : null}</>;
  const more = <>{drain}{idleKeys.size ? <Button aria-pressed={idleFirst} onClick={() => onSort(idleFirst ? "machine" : "state", false)}>Idle first</Button> : null}</>;
  return <Table name="Machines" more={more} rows={rows} columns={columns} empty="No machine is up." keyOf={({key}) => key} sorting={{by, descending, onSort}} />;
}
const MachineTable = memo(Machines);

/** Only the jobs and machines of one site, or of one of its machines. */
export function only(packing: Data, site: string, machine: string | null): Data {
  const isThere = (place: string) => (machine === null ? siteOf(place) === site : place === `${site}/${machine}`);
  const keep = <Value,>(all: Map<string, Value>, place: (value: Value) => string) => new Map([...all].filter(([, value]) => isThere(place(value))));
  return {...packing, jobs: keep(packing.jobs, (job) => job.place), machines: keep(packing.machines, (machine) => machine.key)};
}

const MEASURES: [Measure, string][] = [["cpus", "cpus over time"], ["memory", "memory over time"]];

const choice = (keys: string, isOpen: boolean) => Object.fromEntries(keys.split("\n").filter(Boolean).map((key) => [key, isOpen]));

export function MachinesPage({chosen, summary}: PageProps) {
  const range = rangeOf(chosen.get("range")), site = chosen.get("site"), machine = chosen.get("machine");
  const [whole, trouble, now] = usePacking({seconds: Number(range)});
  const packing = useMemo(() => (whole && site ? only(whole, site, machine) : whole), [whole, site, machine]);
  const openKeys = chosen.all("open").join("\n"), foldKeys = chosen.all("fold").join("\n");
  const opened = useMemo(() => ({...choice(openKeys, true), ...choice(foldKeys, false)}), [openKeys, foldKeys]);
  const setOpened = useCallback((next: Record<string, boolean>) => {
    const keys = (isOpen: boolean) => Object.keys(next).filter((key) => next[key] === isOpen);
    chosen.set({open: keys(true), fold: keys(false)});
  }, [chosen]);
  const shares = useMemo(() => (packing ? sharesOf(packing) : new Map<string, {used: number; up: number}>()), [packing]);
  const idle = idleShare(shares);
  // Draw the chart first: rendering the rows of hundreds of machines would delay it.
  const listed = useDeferredValue(packing, null);
  // As text, so that the table is only redrawn when a request is made or done.
  const requests = JSON.stringify((useAnswer<OperatorRequest[]>("requests", {}, 5)[0] ?? []).filter(({done_at: at}) => at === null));
  const pending = useMemo(() => pendingOf(JSON.parse(requests) as OperatorRequest[]), [requests]);
  const measure = MEASURES.find(([key]) => key === chosen.get("measure"))?.[0] ?? "cpus";
  const by = SORTS.find((key) => key === chosen.get("sort")) ?? "machine", descending = chosen.get("order") === "desc";
  const onSort = useCallback((sort: string, isDescending: boolean) => chosen.set({sort, order: isDescending ? "desc" : null}), [chosen]);
  const sites = [["", "all sites"], ...(summary?.sites ?? []).map(({name}) => [name, name])] as [string, string][];
  const more = (
    <Row>
      {idle === null ? null : <span data-testid="idle">Idle cpus: {percent(idle, 1)} of the cpu-hours in this time range</span>}
      <span className="muted pointer">Ctrl + wheel zooms, clicking a job opens its task</span>
      <Select label="Filter by site" value={site ?? ""} options={sites} onChange={(value) => chosen.set({site: value || null, machine: null})} />
      {site && !machine ? <Link to={pagePath({view: "jobs", site})}>jobs of {site}</Link> : null}
      {machine ? <span className="chip">machine: <Name>{machine}</Name><button type="button" aria-label={`All machines of ${site}`} onClick={() => chosen.set({machine: null})}>×</button></span> : null}
      <Select label="Lower chart" value={measure} options={MEASURES} onChange={(value) => chosen.set({measure: value === "cpus" ? null : value})} />
      <Select label="Time range" value={range} options={RANGES} onChange={(value) => chosen.set({range: value})} />
    </Row>
  );
  return (
    <>
      <Section title="Packing" more={more}>
        <Trouble text={trouble} />
        {packing && !packing.jobs.size ? <Muted>No job ran in this time.</Muted> : null}
        {packing || !trouble ? <Packing packing={packing} opened={opened} onOpened={setOpened} measure={measure} /> : null}
      </Section>
      <Section title="Machines" more={listed ? <Muted>{upText(listed)}</Muted> : null}>{listed ? <MachineTable packing={listed} pending={pending} shares={shares} now={now} may={summary?.may_act ?? false} by={by} descending={descending} onSort={onSort} /> : <Awaited trouble={trouble} />}</Section>
      <Asked />
    </>
  );
}
