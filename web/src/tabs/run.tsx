// The tab of a run: its duration, also compared to a lower bound, its cost, its tasks over time, and its packing.
import * as React from "react";
import {useMemo, useState} from "react";
import {hurry} from "../api";
import type {RunGantt, RunOutlook, RunSummary} from "../api_types";
import {windowOfRun, type ChartJob} from "../chart/packing";
import {cost, count, duration, jobsText, outlookLines, percent, rangeText, runCost, took} from "../format";
import {parts} from "../pages/cost";
import {pagePath, runData} from "../paths";
import {usePacking, useAnswer} from "../polling";
import {Packing} from "../ui/chart";
import {AnswerSection, Confirmed, Frame, Input, Muted, Row, Section, Select, Tile, Tiles, Trouble} from "../ui/parts";
import {TryTable} from "../ui/tries";
import {runningPart} from "./dag";
import {Gantt} from "./gantt";

interface Run {dagId: string; runId: string}

/** The packing chart, zoomed to the run's own time range; the slider reaches a little further. */
function RunPacking({dagId, runId, began, ended, now}: Run & {began: number; ended: number | null; now: number}) {
  const [packing, trouble] = usePacking(windowOfRun(began, ended));
  const mine = useMemo(() => (job: ChartJob) => job.dagId === dagId && job.runId === runId, [dagId, runId]);
  const look = useMemo((): [number, number | null] => {
    const margin = Math.max(5, 0.03 * ((ended ?? now) - began));
    return [began - margin, ended === null ? null : ended + margin];
  }, [began, ended]);
  return <Section title="Packing" more={<Muted>this run's machines first; other runs are pale</Muted>}><Trouble text={trouble} /><Packing packing={packing} mine={mine} look={look} /></Section>;
}

const HURRIES = [["", "hurry: as its Dag says"], ["cheap", "hurry: cheap"], ["balanced", "hurry: balanced"], ["fast", "hurry: fast"]] as const;

/** The request to hurry a run; it replaces earlier ones. */
export const hurryBody = (worth: string, end: string) => ({hurry: worth || null, finish_by: end.trim() || null});

/** The hurry and deadline of a live run, with controls for users who are allowed to change the run. */
export function Outlook({dagId, runId, outlook, mayEdit}: Run & {outlook: RunOutlook; mayEdit: boolean}) {
  const [worth, setWorth] = useState(""), [end, setEnd] = useState("");
  const isAsked = outlook.asked_by !== null;
  return (
    <Section title="Deadline and hurry">
      {outlookLines(outlook).map((text) => <p key={text} role={outlook.trouble && text.includes("cannot end by") ? "alert" : undefined}>{text}</p>)}
      {mayEdit ? (
        <Row>
          <Select label="Hurry" value={worth} options={HURRIES} onChange={setWorth} />
          <Input label="Finish by" value={end} placeholder="finish by: 2h, 06:00 …" onChange={setEnd} />
          {worth || end.trim() ? <Confirmed label="Apply" question="Apply this to the run?" onYes={() => hurry(dagId, runId, hurryBody(worth, end))} /> : null}
          {isAsked ? <Confirmed label="Reset" question="Restore the settings of the Dag?" onYes={() => hurry(dagId, runId, hurryBody("", ""))} /> : null}
        </Row>
      ) : null}
    </Section>
  );
}

export function RunTab({dagId, runId}: Run) {
  const path = runData(dagId, runId), asked = useAnswer<RunSummary>(path), [found, , now] = asked;
  const gantt = useAnswer<RunGantt>(`${path}/gantt`, {}, 5);
  if (found && (!found.totals.jobs || found.totals.began_at === null)) return <Frame isTab><Muted>Lading has no record of this run: it was not run by Lading, or its records have been purged (job_retention_days).</Muted></Frame>;
  return (
    <Frame isTab>
      <AnswerSection title="Run" asked={asked}>{(run) => <Took run={run} gantt={gantt[0]} now={now} dagId={dagId} runId={runId} />}</AnswerSection>
      {found?.outlook ? <Outlook dagId={dagId} runId={runId} outlook={found.outlook} mayEdit={found.may_edit ?? false} /> : null}
      <Gantt asked={gantt} dagId={dagId} runId={runId} />
      {found && found.totals.began_at !== null ? <RunPacking dagId={dagId} runId={runId} began={found.totals.began_at} ended={found.totals.live ? null : found.totals.ended_at} now={found.now} /> : null}
      {found ? <Section title="Longest waits"><TryTable name="Longest waits" jobs={found.waits} now={now} empty="No job has waited." /></Section> : null}
    </Frame>
  );
}

type End = Pick<RunGantt, "expected_end" | "expected_end_span" | "expected_end_basis" | "end_unknown">;
function endText(end: End | null, now: number): string {
  if (end === null) return "";
  if (end.expected_end === null || !end.expected_end_span) return ` Its end is unknown: ${end.end_unknown}.`;
  return ` Expected end: ${rangeText({...end.expected_end_span, at: end.expected_end}, now)}, based on ${end.expected_end_basis}.`;
}

/** The progress and expected end of a run in one line.
 *
 * @param end: when it is expected to end, and based on what; null: not loaded yet
 */
export function progress({totals: {jobs, live, failed}, states}: Pick<RunSummary, "totals" | "states">, end: End | null, now: number): string {
  const failures = failed ? `, of these ${count(failed)} failed` : "";
  if (!live) return `All ${jobsText(jobs)} finished${failures}.`;
  const running = states.running ?? 0;
  return `${count(running)} of ${jobsText(jobs)} running, ${count(live - running)} waiting, ${count(jobs - live)} finished${failures}.${endText(end, now)}`;
}

function Took({run: found, gantt, now, dagId, runId}: Run & {run: RunSummary; gantt: RunGantt | null; now: number}) {
  const {totals, states, billed} = found;
  const waiting = (states.queued ?? 0) + (states.attempted ?? 0) + (states.placed ?? 0);
  const jobs = (more: Record<string, string>) => pagePath({view: "jobs", dag: dagId, run: runId, ...more});
  return (
    <>
        <p className="lead" data-testid="progress">{progress(found, gantt, now)}</p>
        <Tiles>
          <Tile label="Jobs" value={count(totals.jobs)} help={`${count(states.running ?? 0)} running, ${count(waiting)} waiting, ${count(totals.failed)} failed`} to={jobs({})} />
          {totals.failed ? <Tile label="Failed tries" value={count(totals.failed)} to={jobs({state: "failed"})} isBad /> : null}
          <Tile label="Cost" value={cost(runCost({usd: totals.usd, billed}), totals.cpu_hours)} help={[...parts(billed, totals.usd !== null), runningPart({...totals, billed}, totals.usd !== null)].filter(({value}) => value > 0).map(({title, text}) => `${text} ${title.toLowerCase()}`).join(", ") || null} />
          <Tile label="cpus used, of requested" value={percent(totals.cpu_hours_used, totals.cpu_hours_measured)} />
          <Tile label="Memory used, of requested" value={totals.memory_used === null ? "–" : percent(totals.memory_used, 1)} help="by measured peaks" />
          <Tile label="Time used, of limits" value={totals.time_used === null ? "–" : percent(totals.time_used, 1)} help={totals.time_used === null ? "no try had a limit" : null} />
          <Tile label="Took" value={duration(took(totals, now))} help={[totals.live ? "until now" : null, totals.live || found.bound_seconds === null ? null : `at least ${duration(found.bound_seconds)} with these cpus`].filter(Boolean).join("; ")} />
          <Tile label="Most jobs at once" value={count(found.most_at_once)} />
          <Tile label="Median wait" value={duration(found.median_wait)} help={`longest ${duration(found.longest_wait)}`} />
        </Tiles>
    </>
  );
}
