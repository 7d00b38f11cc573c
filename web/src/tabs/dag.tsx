// The tab of a Dag: cost and efficiency of its runs, and what its tasks should request.
import * as React from "react";
import {get} from "../api";
import type {RunPage, RunTotals} from "../api_types";
import {count, cpuHours, date, duration, fraction, iso, percent, runCost, took, usd} from "../format";
import {shareColumns, ShareLegend, spentColumn, whole} from "../pages/cost";
import {pagePath, runPath} from "../paths";
import {useAnswer} from "../polling";
import {useChoices} from "../ui/choices";
import {AnswerSection, Button, Frame, goTo, Link, Muted, Name, Row, type Part} from "../ui/parts";
import {RIGHT_SIZES, Sizes} from "../ui/sizes";
import {Table, type Column} from "../ui/table";

const cpusUsed = (run: RunTotals) => percent(run.cpu_hours_used, run.cpu_hours_measured);

/** The cost of running jobs, which the bill does not include yet. */
export function runningPart({usd: charged, cpu_hours: hours, billed}: Pick<RunTotals, "usd" | "cpu_hours" | "billed">, inUsd: boolean): Part {
  const value = Math.max(0, inUsd ? (charged ?? 0) - (billed.usd_used ?? 0) - (billed.usd_unused ?? 0) : hours - billed.cpu_hours_used - billed.cpu_hours_unused);
  return {key: "running", title: "Running", value: value < 1e-6 ? 0 : value, text: inUsd ? usd(value) : cpuHours(value), color: "var(--l-hidden)"};
}

export function DagTab({dagId}: {dagId: string}) {
  const chosen = useChoices(), sort = chosen.get("sort") === "cost" ? "cost" : "began";
  const asked = useAnswer<RunPage>(`dags/${encodeURIComponent(dagId)}/runs`, {sort}, 10), now = asked[2];
  const inUsd = asked[0]?.runs.some(({usd: spent}) => spent !== null) ?? false;
  const most = Math.max(1e-9, ...(asked[0]?.runs ?? []).map((run) => whole(run.billed, inUsd) + runningPart(run, inUsd).value));
  const columns: Column<RunTotals>[] = [
    {title: "Run", sort: "began", cell: (run) => <div><Link to={runPath(dagId, run.run_id)}><Name>{run.run_id}</Name></Link><div><Muted>{date(run.began_at)}</Muted></div></div>, text: (run) => run.run_id},
    {title: "Started", hidden: true, text: (run) => iso(run.began_at)},
    {title: "Took", csvTitle: "Took, s", cell: (run) => duration(took(run, now)), text: (run) => took(run, now), number: true},
    {title: "Jobs", cell: (run) => <Link to={pagePath({view: "jobs", dag: dagId, run: run.run_id})} label={`${count(run.jobs)} jobs of ${run.run_id}`}>{count(run.jobs)}</Link>, text: (run) => run.jobs, number: true},
    {title: "Failed", cell: (run) => count(run.failed), text: (run) => run.failed, number: true},
    {title: "USD", help: "The cost of its jobs until now, and its share of the cost of idle and booting time of machines that have ended", cell: (run) => usd(runCost(run)), text: runCost, has: (run) => run.usd !== null, sort: "cost", number: true},
    spentColumn(({billed}) => billed, inUsd, most, (run) => [runningPart(run, inUsd)], (run) => (run.cpu_hours ? "has no price" : run.live ? "nothing ran yet" : "nothing ran")),
    ...shareColumns<RunTotals>(({billed}) => billed),
    {title: "cpu-hours requested / used", cell: (run) => `${count(run.cpu_hours)} / ${cpusUsed(run)}`, text: false, number: true},
    {title: "cpu-hours requested", hidden: true, text: (run) => run.cpu_hours},
    {title: "cpus used", hidden: true, text: (run) => fraction(run.cpu_hours_used, run.cpu_hours_measured)},
    {title: "Memory used", cell: (run) => (run.memory_used === null ? "–" : percent(run.memory_used, 1)), text: (run) => run.memory_used, number: true},
    {title: "Mean wait", csvTitle: "Mean wait, s", cell: (run) => duration(run.wait_seconds / run.jobs), text: (run) => run.wait_seconds / run.jobs, number: true},
  ];
  const allRuns = async () => (await get<RunPage>(`dags/${encodeURIComponent(dagId)}/runs`, {sort, limit: 1000})).runs;
  const links = (
    <Row>
      <Button onClick={() => goTo(RIGHT_SIZES)}>Right sizes of its tasks</Button>
      <Link to={pagePath({view: "jobs", dag: dagId})}>All jobs</Link>
      <Link to={pagePath({view: "jobs", dag: dagId, state: "failed"})}>Failed jobs</Link>
    </Row>
  );
  return (
    <Frame isTab>
      <AnswerSection title="Runs" more={links} asked={asked}>{(found) => <Table name={`Runs of ${dagId}`} rows={found.runs} load={allRuns} columns={columns} few={10} more={<ShareLegend more={found.runs.map((run) => runningPart(run, inUsd)).filter(({value}) => value > 0).slice(0, 1)} />} sorting={{by: sort, descending: true, onSort: (by) => chosen.set({sort: by === "cost" ? by : null})}} empty="Lading has no record of a run of this Dag." keyOf={({run_id}) => run_id} />}</AnswerSection>
      <Sizes dagId={dagId} task={chosen.get("task")} isSettled={(asked[0] ?? asked[1]) !== null} />
    </Frame>
  );
}
