// The runs with unfinished jobs: when they are expected to end, what they wait for, and their cost so far.
import * as React from "react";
import {useState} from "react";
import type {LiveRun, LiveRunList as Found} from "../api_types";
import {cost, count, date, iso, rangeText, runCost} from "../format";
import {dagPath, pagePath, runPath} from "../paths";
import {useAnswer} from "../polling";
import {AnswerSection, Button, Clamp, Link, Muted, Name, Section} from "../ui/parts";
import {Table, type Column} from "../ui/table";
import {WAITING} from "../ui/tries";

/** When a run is expected to end, and based on what or why not. */
export function endLines({expected_end: at, expected_end_span: span, expected_end_basis: basis, end_unknown: why}: Pick<LiveRun, "expected_end" | "expected_end_span" | "expected_end_basis" | "end_unknown">, now: number): [string, string] {
  return at === null || span === null ? ["unknown", why ?? ""] : [rangeText({...span, at}, now), `based on ${basis}`];
}

/** @param isFirstOpen: whether it is shown unless the user folds it; it is only loaded while it is shown */
export function LiveRuns({isFirstOpen}: {isFirstOpen: boolean}) {
  const [chosen, choose] = useState<boolean | null>(null), isOpen = chosen ?? isFirstOpen;
  const fold = <Button aria-expanded={isOpen} aria-label={isOpen ? "Hide live runs" : "Show live runs"} onClick={() => choose(!isOpen)}>{isOpen ? "▾ Hide" : "▸ Show"}</Button>;
  return isOpen ? <Runs fold={fold} /> : <Section title="Live runs" more={fold}>{null}</Section>;
}

function Runs({fold}: {fold: React.ReactNode}) {
  const asked = useAnswer<Found>("live-runs", {}, 60), now = asked[2];
  const jobs = (run: LiveRun, state: string | readonly string[], text: string, number: number) => (
    <Link to={pagePath({view: "jobs", dag: run.dag_id, run: run.run_id, state})} label={`${count(number)} ${text} jobs of ${run.dag_id}, ${run.run_id}`}>{count(number)}</Link>
  );
  const columns: Column<LiveRun>[] = [
    {title: "Run", cell: (run) => <div><Link to={runPath(run.dag_id, run.run_id)} label={`${run.dag_id}, ${run.run_id}`}><Name>{run.run_id}</Name></Link><div><Muted><Link to={dagPath(run.dag_id)}><Name>{run.dag_id}</Name></Link></Muted></div></div>, text: (run) => run.run_id},
    {title: "Dag", hidden: true, text: (run) => run.dag_id},
    {title: "Ends", help: "When the run is expected to end", cell: (run) => { const [when, why] = endLines(run, now); return <div className="starts">{when}{why ? <div className="muted"><Clamp text={why} /></div> : null}</div>; }, text: false},
    {title: "Ends about", hidden: true, text: (run) => iso(run.expected_end)},
    {title: "Ends from", hidden: true, text: (run) => iso(run.expected_end_span?.since)},
    {title: "Ends until", hidden: true, text: (run) => iso(run.expected_end_span?.until)},
    {title: "Waiting", cell: (run) => jobs(run, WAITING, "waiting", run.waiting), text: (run) => run.waiting, number: true},
    {title: "Running", cell: (run) => jobs(run, "running", "running", run.running), text: (run) => run.running, number: true},
    {title: "Finished", cell: (run) => count(run.jobs - run.live), text: (run) => run.jobs - run.live, number: true},
    {title: "Cost so far", cell: (run) => cost(runCost(run), run.cpu_hours), text: false, number: true},
    {title: "USD so far", hidden: true, text: runCost},
    {title: "cpu-hours so far", hidden: true, text: (run) => run.cpu_hours},
    {title: "Began", cell: (run) => date(run.began_at), text: (run) => iso(run.began_at), number: true},
  ];
  return (
    <AnswerSection title="Live runs" more={fold} asked={asked}>{(found) => <>
      <Table name="Live runs" rows={found.runs} columns={columns} few={15} empty="No run has unfinished jobs." keyOf={(run) => `${run.dag_id} ${run.run_id}`} />
      {found.runs_left_out ? <Muted>{count(found.runs_left_out)} more runs, which began earlier, are not listed</Muted> : null}
    </>}</AnswerSection>
  );
}
