// The tasks of a run over time: when each waited and ran, when pending ones are expected, and the critical path.
import * as React from "react";
import {useState} from "react";
import type {GanttTask, RunGantt} from "../api_types";
import {PHASE_SLANTS, SLANTS, hatched} from "../chart/colors";
import {clock, cost, count, date, duration, minute, percent} from "../format";
import {pagePath} from "../paths";
import {AnswerSection, Button, Legend, Link, Muted, Name, Row} from "../ui/parts";
import {Table, type Column} from "../ui/table";

export interface Span {since: number; until: number}
const WIDTH = 600, LANE = 7, MOST_LANES = 8;

/** The time range of the chart, including expected times. */
export function spanOf({now, began_at: began, ended_at: ended, expected_end: end, tasks}: RunGantt): Span {
  const since = began ?? now;
  const last = Math.max(ended ?? now, end ?? 0, ...tasks.map(({expected, until}) => Math.max(expected?.until ?? 0, until ?? 0)));
  return {since, until: Math.max(last, since + 1)};
}

/** The time range to show first: all of it, but at most four times as long as the run has taken so far. */
export function firstSpan(whole: Span, now: number): Span {
  const shown = 4 * Math.max(60, now - whole.since);
  return whole.until - whole.since > shown ? {since: whole.since, until: whole.since + shown} : whole;
}

/** The span scaled by a factor and shifted by a fraction of its new length, within `whole`; null: all of it. */
export function zoomed({since, until}: Span, whole: Span, by: number, shift = 0): Span | null {
  const length = Math.max(10, (until - since) * by);
  if (length >= whole.until - whole.since) return null;
  const begin = (since + until) / 2 - length / 2 + shift * length, from = Math.min(Math.max(begin, whole.since), whole.until - length);
  return {since: from, until: from + length};
}

/** Assigns the tries of a task to as few lanes as possible without overlap; tries beyond the last lane share it. */
export function lanesOf(task: GanttTask, now: number): {since: number; until: number; lane: number; index: number}[] {
  const ends: number[] = [];
  return task.tries.map(({phases}, index) => {
    const since = phases[0]?.since ?? now, until = phases.at(-1)?.until ?? now;
    let lane = ends.findIndex((end) => end <= since);
    if (lane < 0) lane = Math.min(ends.length, MOST_LANES - 1);
    ends[lane] = Math.max(ends[lane] ?? 0, until);
    return {since, until, lane, index};
  });
}

export function Bars({task, span, now}: {task: GanttTask; span: Span; now: number}) {
  const x = (at: number) => ((Math.min(Math.max(at, span.since), span.until) - span.since) / (span.until - span.since)) * WIDTH;
  const lanes = lanesOf(task, now), height = Math.max(1, ...lanes.map(({lane}) => lane + 1)) * LANE + 6;
  const rect = (since: number, until: number, y: number, tall: number, color: string, key: React.Key, extra: React.SVGProps<SVGRectElement> = {}) => until < span.since || since > span.until ? null :
    <rect key={key} x={x(since)} y={y} width={Math.max(1.5, x(until) - x(since))} height={tall} fill={color} {...extra} />;
  const phaseSeconds = new Map<string, number>();
  for (const {phases} of task.tries) for (const {title, since, until} of phases) phaseSeconds.set(title, (phaseSeconds.get(title) ?? 0) + (until ?? now) - since);
  const label = [...phaseSeconds].map(([title, seconds]) => `${title} ${duration(seconds)}`).join(", ");
  const expected = task.expected ? `expected from ${date(task.expected.since)} to ${date(task.expected.until)}` : null;
  return (
    <svg viewBox={`0 0 ${WIDTH} ${height}`} preserveAspectRatio="none" role="img" aria-label={[task.task_id, label, expected].filter(Boolean).join("; ")} style={{width: "100%", minWidth: 280, height, display: "block"}}>
      <title>{[label, expected].filter(Boolean).join("; ")}</title>
      {task.expected ? rect(task.expected.since, task.expected.until, 1, height - 2, "none", "expected", {stroke: "currentColor", strokeDasharray: "4 3", strokeOpacity: 0.7}) : null}
      {task.ready_at !== null && task.since !== null && task.since > task.ready_at ? rect(task.ready_at, task.since, height / 2 - 1, 2, "var(--l-airflow)", "ready") : null}
      {lanes.flatMap(({lane, index}) => task.tries[index].phases.map((phase, at) => {
        const isFailed = phase.key === "runs" && task.tries[index].state === "failed";
        return rect(phase.since, phase.until ?? now, 3 + lane * LANE, LANE - 1, isFailed ? "url(#lading-failed)" : PHASE_SLANTS[phase.key] == null ? `var(--l-${phase.key}, var(--l-hidden))` : `url(#lading-${phase.key})`, `${index} ${at}`);
      }))}
      {task.is_critical ? <line x1={x(task.ready_at ?? task.since ?? task.expected?.since ?? span.since)} x2={x(task.until ?? task.expected?.until ?? now)} y1={height - 1} y2={height - 1} stroke="currentColor" strokeWidth={2} /> : null}
      {now < span.since || now > span.until ? null : <line x1={x(now)} x2={x(now)} y1={0} y2={height} stroke="currentColor" strokeOpacity={0.5} strokeDasharray="2 2" />}
    </svg>
  );
}

const STEPS = [10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800, 2592000];
/** At most four round times, none near the end, where its label has no room; dates need more room than times. */
export function ticksOf({since, until}: Span): number[] {
  const whole = until - since, step = STEPS.find((each) => whole / each <= 4) ?? Math.ceil(whole / 4), found = [];
  for (let at = Math.ceil(since / step) * step; at < until - whole * (whole > 43200 ? 0.22 : 0.12); at += step) found.push(at);
  return found;
}

function Axis({span}: {span: Span}) {
  const whole = span.until - span.since, left = (at: number) => `${(100 * (at - span.since)) / whole}%`;
  return (
    <span style={{display: "block", position: "relative", height: "2.8em", fontWeight: 400, fontSize: "0.8em", minWidth: 280}} aria-hidden>
      <span>{date(span.since)}</span>
      {ticksOf(span).map((at) => <span key={at} style={{position: "absolute", insetInlineStart: left(at), bottom: 0, borderInlineStart: "1px solid var(--l-line)", paddingInlineStart: 2}}>{whole < 300 ? clock(at) : whole > 2 * 86400 ? date(at) : minute(at)}</span>)}
    </span>
  );
}

/** The patterns that all bars are filled with: the same hatching as in the legend. */
function Hatches() {
  const fills = {...PHASE_SLANTS, failed: SLANTS.failed};
  return (
    <svg width="0" height="0" style={{position: "absolute"}} aria-hidden><defs>{Object.entries(fills).map(([key, slant]) => slant === null ? null : (
      <pattern key={key} id={`lading-${key}`} width="5" height="5" patternUnits="userSpaceOnUse" patternTransform={`rotate(${slant})`}>
        <rect width="5" height="5" style={{fill: `color-mix(in srgb, var(--l-${key}) 55%, var(--l-page))`}} /><rect width="5" height="3" style={{fill: `var(--l-${key})`}} />
      </pattern>
    ))}</defs></svg>
  );
}

const LEGEND = [["airflow", "in Airflow, or waits for a place"], ["sent", "sent"], ["queue", "in the queue"], ["boot", "boots"], ["runs", "runs"]].map(([key, title]) => ({key, title, color: hatched(`var(--l-${key})`, PHASE_SLANTS[key])}));

const share = (value: number | null) => (value === null ? "–" : percent(value, 1));
function Used({task}: {task: GanttTask}) {
  const parts = ([["cpus", task.cpus_used], ["memory", task.memory_used], ["time", task.time_used]] as const).filter(([, value]) => value !== null);
  return parts.length ? <Muted>{parts.map(([name, value]) => <span key={name} className="line" style={{display: "block"}}>{share(value)} {name}</span>)}</Muted> : <>–</>;
}
export function Gantt({asked, dagId, runId}: {asked: readonly [RunGantt | null, string | null, number]; dagId: string; runId: string}) {
  const now = asked[2];
  return <AnswerSection title="Timeline" asked={asked}>{(found) => <Tasks found={found} now={now} dagId={dagId} runId={runId} />}</AnswerSection>;
}

function Tasks({found, now, dagId, runId}: {found: RunGantt; now: number; dagId: string; runId: string}) {
  // null: the whole range; undefined: not zoomed yet.
  const [zoom, setZoom] = useState<Span | null | undefined>(undefined);
  const whole = spanOf(found), span = zoom === undefined ? firstSpan(whole, now) : zoom ?? whole, last = found.last_run;
  const isPart = span.since > whole.since || span.until < whole.until;
  const turn = (by: number, shift = 0) => setZoom(zoomed(span, whole, by, shift));
  const took = ({since, until}: GanttTask) => (since === null ? null : (until ?? now) - since);
  /** Whether it is queued and none of its tries has started. */
  const isWaiting = ({since, started_at: started, until}: GanttTask) => since !== null && started === null && until === null;
  const against = (task: GanttTask): string[] => {
    const seconds = took(task);
    if (task.last_seconds === null) return [];
    if (seconds === null || isWaiting(task) || !task.last_seconds) return [`last ${duration(task.last_seconds)}`];
    const change = `${seconds >= task.last_seconds ? "+" : "−"}${percent(Math.abs(seconds - task.last_seconds), task.last_seconds)}`;
    return [`last ${duration(task.last_seconds)}`, `now ${change}`];
  };
  const columns: Column<GanttTask>[] = [
    {title: "Task", cell: (task) => (
      <div style={{fontWeight: task.is_critical ? 600 : 400, minWidth: "9.5em"}}>{task.is_critical ? <span title="on the critical path">◆ </span> : null}
        <Link to={pagePath({view: "jobs", dag: dagId, run: runId, task: task.task_id})} label={`Jobs of ${task.task_id}${task.is_critical ? ", on the critical path" : ""}`}><Name>{task.task_id}</Name></Link></div>
    ), text: (task) => task.task_id},
    {title: "Critical", hidden: true, text: ({is_critical}) => is_critical},
    {title: "Over time", head: <Axis span={span} />, cell: (task) => <Bars task={task} span={span} now={now} />, text: false},
    {title: "Tries", cell: (task) => <div>{count(task.jobs)}{task.failed ? <div><Muted>{count(task.failed)} failed</Muted></div> : null}{task.is_cut ? <div><Muted>{count(task.tries.length)} drawn</Muted></div> : null}</div>, text: (task) => task.jobs, number: true},
    {title: "Failed", hidden: true, text: (task) => task.failed},
    {title: "Median wait", csvTitle: "Median wait, s", cell: (task) => <div>{duration(task.median_wait)}{task.longest_wait !== task.median_wait ? <div><Muted>longest {duration(task.longest_wait)}</Muted></div> : null}</div>, text: (task) => task.median_wait, number: true},
    {title: "Longest wait", csvTitle: "Longest wait, s", hidden: true, text: (task) => task.longest_wait},
    {title: "Took", csvTitle: "Took, s", cell: (task) => <div>{isWaiting(task) ? "waiting " : ""}{duration(took(task))}{against(task).map((text) => <div key={text}><Muted>{text}</Muted></div>)}</div>, text: took, number: true},
    {title: "Last run", csvTitle: "Last run, s", hidden: true, text: (task) => task.last_seconds},
    {title: "Used, of requested", help: "Percentage of the cpus, memory and time that its tries requested", cell: (task) => <Used task={task} />, text: false},
    {title: "cpus used", hidden: true, text: (task) => task.cpus_used},
    {title: "Memory used", hidden: true, text: (task) => task.memory_used},
    {title: "Time used", hidden: true, text: (task) => task.time_used},
    {title: "Cost", cell: (task) => (task.usd === null && !task.cpu_hours ? "–" : cost(task.usd, task.cpu_hours)), csvTitle: "USD", text: (task) => task.usd, number: true},
    {title: "cpu-hours", hidden: true, text: (task) => task.cpu_hours},
  ];
  const before = last ? `The last run, ${last.run_id}, took ${duration(last.seconds)}.` : "";
  return (
    <>
      <p data-testid="critical">{found.critical.length ? <>Critical path: {found.critical.map((task, index) => <React.Fragment key={task}>{index ? " → " : ""}<Name>{task}</Name></React.Fragment>)}. </> : null}<Muted>{before} Dashed: expected. ◆ and a line below the bars: the critical path.</Muted></p>
      <div style={{margin: "4px 0"}}><Row><Button onClick={() => turn(0.5)}>Zoom in</Button>{isPart ? <><Button onClick={() => turn(2)}>Zoom out</Button><Button onClick={() => turn(1, -0.5)}>Earlier</Button><Button onClick={() => turn(1, 0.5)}>Later</Button></> : null}</Row><Legend parts={[...LEGEND, {key: "failed", title: "failed", color: hatched("var(--l-failed)", SLANTS.failed)}]} /><Hatches /></div>
      <Table name="Tasks of the run" rows={found.tasks} columns={columns} empty="No task has started." keyOf={({task_id}) => task_id} />
    </>
  );
}
