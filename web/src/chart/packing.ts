// What ran where, merged from incremental answers. Independent of the DOM.
import type {ChartMachine, PackingChart} from "../api_types";

// The longest window the application accepts, and how far the window reaches into the future so that jobs which start
// during the request are included; seconds.
const LONGEST = 31 * 86400, AHEAD = 60;
// Without new data the chart advances in steps of this fraction of the window, because each drawing costs time.
const STEP = 0.01;

/** The last `seconds`, or from `since` until `until`; null: until now. */
export interface Window {seconds?: number; since?: number; until?: number | null}

export interface ChartJob {
  id: string;
  place: string;
  dagId?: string | null;
  runId?: string | null;
  taskId?: string;
  /** Whether its name is hidden from the user. */
  hidden: boolean;
  mapIndex: number;
  tryNumber: number;
  lane: number;
  cpus: number;
  /** MiB. */
  memory: number;
  /** Peak memory so far, MiB; null: not measured. */
  peak: number | null;
  nodes: number;
  start: number;
  end: number | null;
  state: string | null;
}

export interface Packing {
  since: number;
  until: number;
  now: number;
  truncated: boolean;
  jobs: Map<string, ChartJob>;
  machines: Map<string, ChartMachine>;
  /** USD per cpu-hour in the queues of batch systems, by site; null: no price. */
  queues: Record<string, number | null>;
}

/** The time range to request at a given time. */
export function asked({seconds, since, until = null}: Window, now: number): {since: number; until: number} {
  const end = until ?? now + AHEAD;
  return {since: seconds === undefined ? Math.max(since ?? 0, end - LONGEST) : now - seconds, until: end};
}

/** The window of a run: from a little before it began to a little after it ended, however long ago that was. */
export function windowOfRun(began: number, ended: number | null): Window {
  if (ended === null) return {since: began - 60, until: null};
  const margin = Math.max(60, 0.1 * (ended - began));
  return {since: began - margin, until: ended + margin};
}

/** The time range to draw. */
function edges({seconds, since, until = null}: Window, now: number): {since: number; until: number} {
  const end = Math.min(now, until ?? now);
  return {since: seconds === undefined ? Math.max(since ?? 0, end - LONGEST) : end - seconds, until: end};
}

const isSame = (one: unknown, other: unknown) => JSON.stringify(one) === JSON.stringify(other);
// Compared field by field, because serializing thousands of jobs would take longer than drawing them.
const FIELDS = ["place", "dagId", "runId", "taskId", "mapIndex", "tryNumber", "lane", "cpus", "memory", "peak", "nodes", "start", "end", "state"] as const;
const isSameJob = (one: ChartJob, other: ChartJob | undefined) => other !== undefined && FIELDS.every((field) => one[field] === other[field]);

/** The jobs of an answer, which stores them as one list per property. */
function* jobsOf({jobs: its, places, names, states, origin}: PackingChart): Generator<ChartJob> {
  for (let at = 0; at < its.id.length; at++) {
    const name = its.name[at], end = its.ended[at], state = its.state[at], [dagId, runId, taskId] = name === null ? [] : names[name];
    yield {
      id: its.id[at], place: places[its.place[at]], dagId, runId, taskId, hidden: name === null, mapIndex: its.map_index[at], tryNumber: its.try_number[at], lane: its.lane[at], cpus: its.cpus[at], memory: its.memory[at], peak: its.peak[at],
      nodes: its.nodes[at], start: origin + its.started[at], end: end === null ? null : origin + end, state: state === null ? null : states[state],
    };
  }
}

/** Merges an answer into `before`. Returns `before` itself if the answer has nothing new and little time has passed. */
export function merged(before: Packing | null, found: PackingChart, window: Window): Packing {
  const {jobs, machines} = before ?? {jobs: new Map<string, ChartJob>(), machines: new Map<string, ChartMachine>()};
  const drawn = edges(window, found.now);
  let isNew = before === null || (found.truncated && !before.truncated) || !isSame(found.queues, before.queues);
  for (const job of jobsOf(found)) {
    if (before && isSameJob(job, jobs.get(job.id))) continue; // recent changes are sent several times
    jobs.set(job.id, job);
    isNew = true;
  }
  for (const machine of found.machines) {
    if (isSame(machine, machines.get(machine.key))) continue;
    machines.set(machine.key, machine);
    isNew = true;
  }
  if (before && !isNew && drawn.until - before.until < STEP * (before.until - before.since)) return before;
  for (const job of jobs.values()) if (job.end !== null && job.end < drawn.since) jobs.delete(job.id);
  for (const machine of machines.values()) {
    const end = machine.spans.at(-1)?.[1] ?? null;
    if (end !== null && end < drawn.since) machines.delete(machine.key);
  }
  return {...drawn, now: found.now, truncated: found.truncated || (before?.truncated ?? false), jobs, machines, queues: found.queues};
}
