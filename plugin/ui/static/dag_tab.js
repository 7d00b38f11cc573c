// The tab of a Dag: cost and efficiency of its runs.
import {useAnswer} from "./data.js";
import {Frame, Link, Section, Spinner, Table, Trouble, h} from "./ui.js";
import {count, date, duration, percent, usd} from "./words.js";

export function DagTab({dagId}) {
  const [found, trouble] = useAnswer(`dags/${encodeURIComponent(dagId)}/runs`, {}, 10);
  if (!found) return h(Frame, null, h(Trouble, {words: trouble}), trouble ? null : h(Spinner));
  const runs = `/dags/${encodeURIComponent(dagId)}/runs/`;
  return h(Frame, null, h(Trouble, {words: trouble}), h(Section, {title: "Cost and efficiency by run"}, h(Table, {name: `Runs of ${dagId}`, rows: found.runs, empty: "Lading has no record of a run of this Dag.", columns: [
    {title: "Run", cell: (run) => h(Link, {to: `${runs}${encodeURIComponent(run.run_id)}/plugin/lading-run`}, run.run_id), text: (run) => run.run_id},
    {title: "Began", cell: (run) => date(run.began_at)},
    {title: "Took", cell: (run) => duration(run.ended_at === null ? null : run.ended_at - run.began_at), text: (run) => run.ended_at - run.began_at, number: true},
    {title: "Jobs", cell: (run) => count(run.jobs), number: true},
    {title: "Failed", cell: (run) => count(run.failed), number: true},
    {title: "USD", cell: (run) => usd(run.usd), number: true},
    {title: "cpu-hours", cell: (run) => count(run.cpu_hours), number: true},
    {title: "of them used", cell: (run) => percent(run.cpu_hours_used, run.cpu_hours), number: true},
    {title: "Memory used", cell: (run) => (run.memory_used === null ? "–" : percent(run.memory_used, 1)), number: true},
    {title: "Mean wait", cell: (run) => duration(run.wait_seconds / run.jobs), number: true},
  ]})));
}
