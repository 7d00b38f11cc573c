// The rows of the packing chart by site: one per machine, or a single density row for batch nodes and large sites.
import type {ChartMachine} from "../api_types";
import type {ChartJob, Packing} from "./packing";

/** The time axis is divided into this many intervals, about as many as a screen can show. */
export const MOMENTS = 600;
/** Sites with more machines are folded by default. */
export const MOST_MACHINES = 40;
const GAP = 0.25;

export interface Row {
  key: string;
  label: string;
  group: string;
  machine: ChartMachine | null;
  cpus: number;
  top: number;
  /** Whether a job is drawn below its machine because it had no contiguous cpus there. */
  below: boolean;
  /** For a row of many machines or nodes: busy cpus over time, and cpus that were up if that is known. */
  density: {levels: number[]; mine: number[]; up: number[]; most: number} | null;
}

export interface Group {
  key: string;
  site: string;
  /** `machines`, or the `nodes` of a batch system, about which only their jobs are known. */
  sort: "machines" | "nodes";
  size: number;
  isOpen: boolean;
}

type IsMine = (job: ChartJob) => boolean;
export interface Layout {rows: Row[]; groups: Group[]; height: number}

/** Whether a machine is or was up. Ordered and booting machines have no cpus yet. */
export const wasUp = ({state}: Pick<ChartMachine, "state">): boolean => !["ordered", "booting"].includes(state);

type Span = ChartMachine["spans"][number];
/** The spans of a machine while it could be reached, or since then: an unreachable machine is not up. */
export function reachedSpans({spans, unreachable_since: since}: Pick<ChartMachine, "spans"> & Partial<Pick<ChartMachine, "unreachable_since">>): {reached: Span[]; silent: Span[]} {
  if (since === null || since === undefined) return {reached: spans, silent: []};
  return {
    reached: spans.filter(([from]) => from < since).map(([from, to, cpus]): Span => [from, Math.min(to ?? since, since), cpus]),
    silent: spans.filter(([, to]) => to === null || to > since).map(([from, to, cpus]): Span => [Math.max(from, since), to, cpus]),
  };
}

export const siteOf = (place: string): string => place.slice(0, place.indexOf("/"));

/** The shortest time range to draw, seconds. */
const SHORTEST = 60;
/** The start of the time range to draw: the first data, so that a new installation's chart is not mostly empty. */
export function beginning({since, until, jobs, machines}: Packing): number {
  let first = until - SHORTEST;
  for (const {start} of jobs.values()) first = Math.min(first, start);
  for (const {spans} of machines.values()) first = Math.min(first, spans[0][0]);
  return Math.max(since, first);
}

/** Sums up amounts over time, as a mean for each interval. */
export class Levels {
  private readonly within = new Float64Array(MOMENTS);
  private readonly onwards = new Float64Array(MOMENTS + 1);
  private readonly width: number;
  constructor(private readonly since: number, private readonly until: number) { this.width = (until - since) / MOMENTS; }

  /** O(1) for any length: adds a fraction to the first and last interval, and a step up and down in between. */
  add(from: number, to: number | null, amount: number): void {
    const {within, onwards, since, width} = this;
    const begin = Math.max(0, (from - since) / width);
    const end = Math.min(MOMENTS, ((to ?? this.until) - since) / width);
    if (!(end > begin)) return;
    const first = Math.floor(begin), last = Math.min(MOMENTS - 1, Math.floor(end));
    if (first === last) { within[first] += amount * (end - begin); return; }
    within[first] += amount * (first + 1 - begin);
    within[last] += amount * (end - last);
    onwards[first + 1] += amount;
    onwards[last] -= amount;
  }

  means(): number[] {
    let level = 0;
    return Array.from(this.within, (part, moment) => Math.max(0, (level += this.onwards[moment]) + part));
  }

  points(): [number, number][] {
    const means = this.means();
    return [...means.map((mean, moment): [number, number] => [(this.since + moment * this.width) * 1000, mean]), [this.until * 1000, means[MOMENTS - 1]]];
  }
}

/** @param opened: the groups that the user has opened or folded, by key */
export function rowsOf(packing: Packing, isMine?: IsMine, opened: Record<string, boolean> = {}): Layout {
  const since = beginning(packing);
  const needed = new Map<string, number>();
  const mine = new Set<string>();
  const byPlace = new Map<string, ChartJob[]>();
  for (const job of packing.jobs.values()) {
    needed.set(job.place, Math.max(needed.get(job.place) ?? 0, job.lane + job.cpus));
    if (isMine?.(job)) mine.add(job.place);
    const there = byPlace.get(job.place);
    if (there) there.push(job); else byPlace.set(job.place, [job]);
  }
  const members = new Map<string, string[]>();
  for (const place of new Set([...packing.machines.keys(), ...needed.keys()])) {
    const key = `${siteOf(place)}:${packing.machines.has(place) ? "machines" : "nodes"}`;
    const others = members.get(key);
    if (others) others.push(place); else members.set(key, [place]);
  }
  // The sites with highlighted jobs come first, and within each site its machines with such jobs.
  const rank = (place: string) => (mine.has(place) ? 0 : 1);
  const {compare} = new Intl.Collator();
  const byRank = (one: string, other: string) => rank(one) - rank(other) || compare(one, other);
  const groupRank = (places: string[]) => Math.min(...places.map(rank));
  const sorted = [...members].sort(([one, its], [other, theirs]) => groupRank(its) - groupRank(theirs) || compare(one, other));

  const full = (place: string, group: string): Row => {
    const machine = packing.machines.get(place) ?? null;
    const its = machine ? Math.max(...machine.spans.map(([, , cpus]) => cpus)) : 0;
    const cpus = Math.max(its, needed.get(place) ?? 0);
    return {key: place, label: place, group, machine, cpus, top: 0, below: machine !== null && cpus > its + 0.001, density: null};
  };
  const rows: Row[] = [], groups: Group[] = [];
  for (const [key, places] of sorted) {
    const [site, sort] = [key.slice(0, key.lastIndexOf(":")), key.slice(key.lastIndexOf(":") + 1) as Group["sort"]];
    const isOpen = opened[key] ?? (sort === "machines" && places.length <= MOST_MACHINES);
    groups.push({key, site, sort, size: places.length, isOpen});
    places.sort(byRank);
    const shown = isOpen ? places : places.filter((place) => mine.has(place)).slice(0, MOST_MACHINES);
    rows.push(...shown.map((place) => full(place, key)));
    if (isOpen) continue;
    const all = new Levels(since, packing.until), own = new Levels(since, packing.until);
    for (const place of places) for (const job of byPlace.get(place) ?? []) {
      const cpus = job.cpus * (sort === "nodes" ? job.nodes : 1);
      all.add(job.start, job.end, cpus);
      if (isMine?.(job)) own.add(job.start, job.end, cpus);
    }
    const there = new Levels(since, packing.until);
    for (const place of places) {
      const machine = packing.machines.get(place);
      if (machine && wasUp(machine)) for (const [from, to, cpus] of reachedSpans(machine).reached) there.add(from, to, cpus);
    }
    const levels = all.means(), up = there.means();
    rows.push({key: `${key}:density`, label: `${site}: ${sizeText(places.length, sort)}`, group: key, machine: null, cpus: 0, top: 0, below: false, density: {levels, mine: own.means(), up, most: Math.max(...levels, ...up, 0.001)}});
  }
  const usual = Math.max(1, Math.min(...rows.filter(({density}) => !density).map(({cpus}) => cpus), 16));
  for (const row of rows) if (row.density) row.cpus = 2 * usual;
  const gap = GAP * usual;
  let top = 0, group = rows[0]?.group;
  for (const row of rows) {
    if (row.group !== group) top += 2 * gap;
    group = row.group;
    row.top = top;
    top += row.cpus + gap;
  }
  return {rows, groups, height: top};
}

/** How many machines or nodes a group has. */
export const sizeText = (size: number, sort: Group["sort"]): string => `${size} ${size === 1 ? sort.slice(0, -1) : sort}`;

// Whether a job is a batch job of its own, on a node about which only its jobs are known.
const isBatch = (job: ChartJob, {machines, queues}: Packing) => !machines.has(job.place) && siteOf(job.place) in queues;

/** The unit of the lower chart: cpus, or GiB of requested memory. */
export type Measure = "cpus" | "memory";
export interface Series {used: [number, number][]; peaks: [number, number][] | null; up: [number, number][]; batch: [number, number][] | null; usd: [number, number][] | null}
/** The lines of the lower chart as means per interval: cpus used or memory requested, the sum of the jobs' memory peaks, what
 * was up, what batch jobs had, and USD per hour. null: not applicable, no batch jobs, or no prices. */
export function seriesOf(packing: Packing, since: number, measure: Measure = "cpus"): Series {
  const {until, jobs, machines, queues} = packing;
  const [used, peaks, up, batch, usd] = Array.from({length: 5}, () => new Levels(since, until));
  let isPriced = false, hasBatch = false;
  for (const job of jobs.values()) {
    const amount = measure === "cpus" ? job.cpus : job.memory / 1024;
    if (!isBatch(job, packing)) {
      used.add(job.start, job.end, amount);
      if (measure === "memory") peaks.add(job.start, job.end, (job.peak ?? 0) / 1024);
      continue;
    }
    const cpus = job.cpus * job.nodes, rate = queues[siteOf(job.place)];
    hasBatch = true;
    isPriced ||= rate !== null;
    batch.add(job.start, job.end, amount * job.nodes);
    usd.add(job.start, job.end, cpus * (rate ?? 0));
  }
  for (const machine of machines.values()) {
    const {usd_per_hour, usd_since: paidSince} = machine;
    isPriced ||= usd_per_hour !== null;
    // Spans do not record memory, so the machine's current memory is used throughout.
    if (wasUp(machine)) for (const [from, to, cpus] of reachedSpans(machine).reached) up.add(from, to, measure === "cpus" ? cpus : (machine.memory ?? 0) / 1024);
    if (wasUp(machine) || paidSince != null) for (const [from, to] of machine.spans) usd.add(from, to, usd_per_hour ?? 0);
  }
  return {used: used.points(), peaks: measure === "memory" ? peaks.points() : null, up: up.points(), batch: hasBatch ? batch.points() : null, usd: isPriced ? usd.points() : null};
}

/** By machine: the cpu-seconds it was up for, and those that jobs used. Batch jobs are not counted. */
export function sharesOf({since, until, jobs, machines}: Packing): Map<string, {used: number; up: number}> {
  const within = (from: number, to: number | null) => Math.max(0, Math.min(to ?? until, until) - Math.max(from, since));
  const shares = new Map<string, {used: number; up: number}>();
  for (const machine of machines.values()) if (wasUp(machine)) shares.set(machine.key, {used: 0, up: machine.spans.reduce((sum, [from, to, cpus]) => sum + within(from, to) * cpus, 0)});
  for (const job of jobs.values()) {
    const its = shares.get(job.place);
    if (its) its.used += within(job.start, job.end) * job.cpus;
  }
  return shares;
}

/** The fraction of cpu time that no job used while machines were up; null: none were up. */
export function idleShare(shares: Map<string, {used: number; up: number}>): number | null {
  let up = 0, used = 0;
  for (const each of shares.values()) { up += each.up; used += each.used; }
  return up ? Math.max(0, 1 - used / up) : null;
}
