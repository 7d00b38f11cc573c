// Tries of tasks: where and why, their phases as a bar, and what they requested and used.
import * as React from "react";
import {ask, get} from "../api";
import type {TryPage, TryPhase, TrySummary} from "../api_types";
import type {Parameters} from "../api";
import {LIGHT, PHASE_SLANTS, hatched} from "../chart/colors";
import {byWhom, cost, count, date, duration, fraction, iso, memory, percent, spoken} from "../format";
import {dagPath, logPath, pagePath, taskName, taskPath} from "../paths";
import {Badge, Bar, Clamp, Confirmed, Legend, Link, Muted, Name, TaskName} from "./parts";
import {Table, type Column} from "./table";

const PHASES = Object.keys(LIGHT.phases);
const phaseColor = (key: string) => (PHASES.includes(key) ? hatched(`var(--l-${key})`, PHASE_SLANTS[key]) : "var(--l-hidden)");

/** The phases of a try as a bar. Its legend names only the longest phase; `whole`: all of them. */
export function Phases({job, now, whole = false}: {job: TrySummary; now: number; whole?: boolean}) {
  const end = job.ended_at ?? now;
  const part = (phase: TryPhase) => Math.max(0, (phase.until ?? end) - phase.since);
  const parts = job.phases.map((phase) => ({key: `${phase.key}${phase.since}`, title: phase.title, value: Math.max(part(phase), 0.001), text: duration(part(phase)), color: phaseColor(phase.key)}));
  const said = whole ? parts : [...parts].sort((one, other) => other.value - one.value).slice(0, 1);
  return <div style={{minWidth: 140}}><Bar parts={parts} height={whole ? 18 : 12} /><Legend parts={said} /></div>;
}

export const NOWHERE = "–";
export const where = (job: TrySummary): string =>
  job.held ? `room is held at ${job.held}` : [job.site, job.location !== job.site ? job.location : null, job.node].filter(Boolean).join(" / ") || NOWHERE;
/** Where a job is or was, linked to the jobs of that machine. */
export function Where({job}: {job: TrySummary}) {
  const {site, location} = job, text = where(job);
  if (job.held || !site || !location) return <Clamp text={text} />;
  return <Link to={pagePath(location === site ? {view: "jobs", site} : {view: "jobs", site, location})} label={`Jobs at ${text}`}><Name>{text}</Name></Link>;
}
const ran = (job: TrySummary, now: number) => (job.started_at === null ? null : (job.ended_at ?? now) - job.started_at);
const waited = (job: TrySummary, now: number) => (job.started_at ?? job.ended_at ?? now) - job.queued_at;
const cpus = (job: TrySummary) => job.cpus * (job.nodes ?? 1);
export const WAITING = ["queued", "attempted", "placed"] as const;
export const isWaiting = (job: TrySummary) => WAITING.includes(job.state as never);

/** The log of a try in Airflow; null: it has neither started nor failed, or is hidden. */
const logOf = (job: TrySummary) => (job.started_at === null && job.ended_at === null ? null : logPath(job));
export function LogLink({job, text = "log", before = ""}: {job: TrySummary; text?: string; before?: string}) {
  const path = logOf(job);
  return path ? <>{before}<Link to={path} label={`Log of try ${job.try_number} of ${taskName(job)}`}>{text}</Link></> : null;
}

/** The peak memory of a job, as a percentage of its request. What a killed job used last was not measured. */
export function peakText({peak_memory: peak, memory: requested, cause}: Pick<TrySummary, "peak_memory" | "memory" | "cause">): string | null {
  if (peak === null) return null;
  const share = percent(peak, requested);
  return cause === "out_of_memory" && peak < requested ? `${share} in the last sample before it was killed` : share;
}

/** Waits for room from this length on are mentioned, seconds. */
const LONG_WAIT = 60;
/** Why a job is where it is; without another reason, its site was the first one with room. */
export function whyThere({placed_because: because, phases}: Pick<TrySummary, "placed_because" | "phases">, now: number): string {
  const [first] = phases, waited = first?.key === "airflow" ? (first.until ?? now) - first.since : 0;
  return spoken(because) ?? (waited < LONG_WAIT ? "the first eligible site had room" : `after ${duration(waited)} without room at any eligible site, this was the first one to have room`);
}

export function Facts({job, now, more = []}: {job: TrySummary; now: number; more?: [string, React.ReactNode][]}) {
  const seconds = ran(job, now), used = job.cpu_seconds === null || !seconds ? null : job.cpu_seconds / seconds;
  const limit = (value: number | null, text: (value: number) => string) => (value === null ? "" : ` (limit ${text(value)})`);
  const cause = [job.cause, job.cause_title].filter(Boolean).join(": ");
  const facts: [string, React.ReactNode][] = [
    ["State", <span><Badge word={job.state} />{cause ? ` ${cause}` : ""} {job.state === "attempted" ? <Confirmed label="Wake" name={`Wake try ${job.try_number}`} question="Look for room now?" onYes={() => ask("wake", job.id)} /> : null}</span>],
    ...more,
    ["Why", job.reason ? <bdi>{spoken(job.reason)}</bdi> : isWaiting(job) ? "no reason yet" : null],
    ["What to do", job.remedy === null ? null : byWhom({remedy: job.remedy, actors: job.actors})],
    ["Team", job.team],
    ["Where", <Where job={job} />],
    ["Why there", job.site === null ? null : whyThere(job, now)],
    ["Log", logOf(job) && <LogLink job={job} text="in Airflow" />],
    ["Native id", job.native_id],
    ["Job script", job.native_id && job.dag_id ? <code style={{userSelect: "all"}}>{`airflow lading script --dag ${job.dag_id} --task ${job.task_id}`}</code> : null],
    ["Requested queue", job.queue],
    ["cpus requested / used", `${count(cpus(job))} / ${used === null ? "–" : `${count(used)} (${percent(used, cpus(job))})`}`],
    ["Memory requested / peak", `${memory(job.memory)}${limit(job.memory_limit, memory)} / ${job.peak_memory === null ? "–" : `${memory(job.peak_memory)} (${peakText(job)})`}`],
    ["Time limit / ran", `${job.time_limit === null ? "none" : duration(job.time_limit)} / ${duration(seconds)}`],
    ["Cost", seconds === null ? null : cost(job.usd, (seconds * cpus(job)) / 3600)],
    ["For the next run", job.dag_id ? <Link to={dagPath(job.dag_id)}>right sizes of its tasks</Link> : null],
    ["Queued", date(job.queued_at)],
    ["Exit code", job.exit_code],
    ["Token", <code>{job.id}</code>],
  ];
  return (
    <dl className="facts">{facts.filter(([, value]) => value !== null && value !== undefined).map(([title, value]) => (
      <React.Fragment key={title}><dt><Muted>{title}</Muted></dt><dd>{value}</dd></React.Fragment>
    ))}</dl>
  );
}

/** Fetches all jobs of a paged answer. */
export async function allJobs(path: string, parameters: Parameters): Promise<TrySummary[]> {
  const jobs: TrySummary[] = [];
  for (let after: string | null = null; ;) {
    const page: TryPage = await get<TryPage>(path, {...parameters, limit: 500, after});
    jobs.push(...page.jobs);
    if ((after = page.after) === null) return jobs;
  }
}

export function TryTable({name, jobs, now, empty, load}: {name: string; jobs: TrySummary[]; now: number; empty: string; load?: () => Promise<TrySummary[]>}) {
  return <Table name={name} rows={jobs} empty={empty} load={load} columns={tryColumns(now)} keyOf={({id}) => id} />;
}

const cpusUsed = (job: TrySummary, now: number) => (job.cpu_seconds === null ? "" : percent(job.cpu_seconds, (ran(job, now) ?? 0) * cpus(job)));
const memoryUsed = (job: TrySummary) => (job.peak_memory === null ? "" : percent(job.peak_memory, job.memory));
export const tryColumns = (now: number): Column<TrySummary>[] => [
  {title: "Task", cell: (job) => <Link to={taskPath(job)} label={taskName(job)}><TaskName job={job} /></Link>, text: taskName},
  {title: "Run", hidden: true, text: (job) => job.run_id},
  {title: "Team", hidden: true, text: (job) => job.team},
  {title: "State, try", cell: (job) => <div><Badge word={job.state} /><div><Muted>try {job.try_number}<LogLink job={job} before=", " /></Muted></div></div>, text: false},
  {title: "Try", hidden: true, text: (job) => job.try_number},
  {title: "State", hidden: true, text: (job) => job.state},
  {title: "Cause", hidden: true, text: (job) => job.cause},
  {title: "Reason", hidden: true, text: (job) => job.reason},
  {title: "Where, native id", cell: (job) => <div><Where job={job} /><div><Muted>{job.native_id ?? ""}</Muted></div></div>, text: false},
  {title: "Where", hidden: true, text: where},
  {title: "Native id", hidden: true, text: (job) => job.native_id},
  {title: "Waited", csvTitle: "Waited, s", cell: (job) => duration(waited(job, now)), text: (job) => waited(job, now), number: true},
  {title: "Ran", csvTitle: "Ran, s", cell: (job) => duration(ran(job, now)), text: (job) => ran(job, now), number: true},
  {title: "Used, of requested", cell: (job) => <Muted>{[[cpusUsed(job, now), "cpus"], [memoryUsed(job), "memory"]].map(([share, name]) => (share ? <span key={name} className="line" style={{display: "block"}}>{share} {name}</span> : null))}</Muted>, text: false, has: (job) => cpusUsed(job, now) || memoryUsed(job)},
  {title: "cpus used", hidden: true, text: (job) => fraction(job.cpu_seconds, (ran(job, now) ?? 0) * cpus(job))},
  {title: "Memory used", hidden: true, text: (job) => fraction(job.peak_memory, job.memory)},
  {title: "Phases", cell: (job) => <Phases job={job} now={now} />, text: (job) => job.phases.map((phase) => phase.title).join("; ")},
  {title: "Queued at", hidden: true, text: (job) => iso(job.queued_at)},
  {title: "Started at", hidden: true, text: (job) => iso(job.started_at)},
  {title: "Ended at", hidden: true, text: (job) => iso(job.ended_at)},
  {title: "cpu-hours", hidden: true, text: (job) => (ran(job, now) === null ? "" : ((ran(job, now) ?? 0) * cpus(job)) / 3600)},
  {title: "USD", hidden: true, text: (job) => job.usd},
];
