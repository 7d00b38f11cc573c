// What runs where: the packing chart, and the machines with actions such as draining them.
import * as React from "react";
import {memo, useCallback, useDeferredValue, useMemo} from "react";
import {ask} from "../api";
import type {ChartMachine} from "../api_types";
import type {Packing as Data} from "../chart/packing";
import {idleShare, sharesOf, siteOf, wasUp, type Measure} from "../chart/rows";
import {bought, count, date, fraction, iso, machineState, percent, spoken, usd} from "../format";
import {RANGES, pagePath, rangeOf} from "../paths";
import {usePacking} from "../polling";
import {Packing} from "../ui/chart";
import {Awaited, Badge, Clamp, Confirmed, Link, Muted, Name, Row, Section, Select, MemoryUse, Trouble, UseBar} from "../ui/parts";
import {Table, type Column} from "../ui/table";
import {Asked, actions, type Action} from "./now";
import type {PageProps} from "./page";

const LIVING = ["ordered", "booting", "up"];

function ofMachine({sort, state, key}: ChartMachine): Action[] {
  if (sort !== "instance" || !(LIVING.includes(state) || state === "draining")) return [];
  const drain: Action = ["drain", "Drain", key, `Drain ${key}? It is released once its jobs have finished.`];
  return [...(LIVING.includes(state) ? [drain] : []), ["terminate", "Terminate", key, `Terminate ${key} and the jobs that run there?`]];
}

const spent = ({usd: before, usd_since: since, usd_per_hour: rate}: ChartMachine, now: number) =>
  since === null || since === undefined ? null : before + ((rate ?? 0) * Math.max(0, now - since)) / 3600;

const SORTS = ["machine", "used", "share", "spent", "since"] as const;
type SortKey = (typeof SORTS)[number];
interface TableProps {packing: Data; shares: ReturnType<typeof sharesOf>; now: number; may: boolean; by: SortKey; descending: boolean; onSort: (by: string, descending: boolean) => void}
function Machines({packing, shares, now, may, by, descending, onSort}: TableProps) {
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
  const amounts: Record<Exclude<SortKey, "machine">, (machine: ChartMachine) => number> = {
    used: ({key, cpus}) => (used.get(key) ?? 0) / (cpus || 1),
    share: ({key}) => (shares.get(key)?.used ?? 0) / (shares.get(key)?.up || 1),
    spent: (machine) => spent(machine, now) ?? -1,
    since: ({spans}) => spans[0][0],
  };
  const turn = descending ? -1 : 1;
  const rows = [...packing.machines.values()].filter(({state}) => !["gone", "ended"].includes(state)).sort((one, other) =>
    turn * (by === "machine" ? 0 : amounts[by](one) - amounts[by](other)) || (by === "machine" ? turn : 1) * one.key.localeCompare(other.key));
  // Idle machines that cost money and can be drained.
  const isIdle = ({key, state, sort}: ChartMachine) => sort === "instance" && state === "up" && !used.get(key);
  const load = (machine: ChartMachine) => `${count(used.get(machine.key) ?? 0)} / ${wasUp(machine) ? count(machine.cpus) : "–"}`;
  const share = ({key}: ChartMachine) => percent(shares.get(key)?.used ?? 0, shares.get(key)?.up);
  const columns: Column<ChartMachine>[] = [
    {title: "Machine", cell: (machine) => <div><Link to={pagePath({view: "jobs", site: machine.site, location: machine.name})} label={`Jobs on ${machine.key}`}><Name>{machine.key}</Name></Link><div><Muted>{bought(machine)}</Muted></div></div>, text: (machine) => machine.key, sort: "machine"},
    {title: "Bought", hidden: true, text: bought},
    {title: "State", cell: (machine) => { const [word, since] = machineState(machine); return <div><Badge word={word} />{isIdle(machine) ? <> <Badge word="idle" /><div className="line"><Muted>{idleSince(machine) < packing.since ? `before ${date(packing.since)}` : `since ${date(idleSince(machine))}`}</Muted></div></> : null}{since ? <div><Muted>{since}</Muted></div> : null}</div>; }, text: (machine) => [...machineState(machine), isIdle(machine) ? "idle" : null].filter(Boolean).join(" ")},
    {title: "Idle since", hidden: true, text: (machine) => (isIdle(machine) ? iso(idleSince(machine)) : "")},
    {title: "cpus, memory / up", csvTitle: "cpus used", help: "Upper bar: the cpus that running jobs requested, out of all cpus of the machine. Lower bar: the same for memory, with the peaks of jobs that have run for a minute", cell: (machine) => <div>{load(machine)}{wasUp(machine) ? <><UseBar title="cpus used" used={used.get(machine.key) ?? 0} most={machine.cpus} /><MemoryUse promised={promised.get(machine.key) ?? 0} used={peaks.get(machine.key) ?? 0} up={machine.memory} /></> : null}</div>, text: ({key}) => used.get(key) ?? 0, number: true, sort: "used"},
    {title: "Memory requested, MiB", hidden: true, text: ({key}) => promised.get(key) ?? 0},
    {title: "Memory at peak, MiB", hidden: true, text: ({key}) => peaks.get(key) ?? 0},
    {title: "Used so far", help: "Percentage of the machine's cpu-hours that jobs used, within the time range of the chart", cell: share, text: ({key}) => fraction(shares.get(key)?.used, shares.get(key)?.up), number: true, sort: "share"},
    {title: "cpus", hidden: true, text: ({cpus}) => cpus},
    {title: "Memory, MiB", hidden: true, text: (machine) => machine.memory},
    {title: "USD/h / so far", cell: (machine) => (machine.usd_per_hour === null ? "–" : `${usd(machine.usd_per_hour)} / ${usd(spent(machine, now))}`), text: false, has: (machine) => machine.usd_per_hour !== null, number: true, sort: "spent"},
    {title: "USD per hour", hidden: true, text: (machine) => machine.usd_per_hour},
    {title: "USD so far", hidden: true, text: (machine) => spent(machine, now)},
    {title: "Node, native id", cell: (machine) => <div><div>{machine.node ?? ""}</div><span className="muted line">{machine.native_id ?? ""}</span></div>, text: false, has: ({node, native_id}) => node ?? native_id},
    {title: "Node", hidden: true, text: (machine) => machine.node ?? ""},
    {title: "Native id", hidden: true, text: (machine) => machine.native_id ?? ""},
    {title: "Up since", cell: (machine) => <span className="line">{date(machine.spans[0][0])}</span>, text: (machine) => iso(machine.spans[0][0]), sort: "since"},
    {title: "Note", cell: (machine) => <div className="note"><Clamp text={spoken(machine.reason) ?? ""} /></div>, text: (machine) => spoken(machine.reason) ?? "", has: ({reason}) => reason},
    ...actions(may, ofMachine),
  ];
  const idle = rows.filter(isIdle), drainIdle = async () => { for (const {key} of idle) await ask("drain", key); };
  const more = may && idle.length > 1 ? <Confirmed label={`Drain ${count(idle.length)} idle machines`} question={`Drain ${count(idle.length)} machines that have no job?`} onYes={drainIdle} /> : null;
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
  const measure = MEASURES.find(([key]) => key === chosen.get("measure"))?.[0] ?? "cpus";
  const by = SORTS.find((key) => key === chosen.get("sort")) ?? "machine", descending = chosen.get("order") === "desc";
  const onSort = useCallback((sort: string, isDescending: boolean) => chosen.set({sort, order: isDescending ? "desc" : null}), [chosen]);
  const sites = [["", "all sites"], ...(summary?.sites ?? []).map(({name}) => [name, name])] as [string, string][];
  const more = (
    <Row>
      {idle === null ? null : <span data-testid="idle">{percent(idle, 1)} of the cpu-hours in this time range were idle</span>}
      <span className="muted pointer">Ctrl + wheel zooms, clicking a job opens its task</span>
      <Select label="Filter by site" value={site ?? ""} options={sites} onChange={(value) => chosen.set({site: value || null, machine: null})} />
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
      <Section title="Machines">{listed ? <MachineTable packing={listed} shares={shares} now={now} may={summary?.may_act ?? false} by={by} descending={descending} onSort={onSort} /> : <Awaited trouble={trouble} />}</Section>
      <Asked />
    </>
  );
}
