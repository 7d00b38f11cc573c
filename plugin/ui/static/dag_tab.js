// The tab of a Dag: cost and efficiency of its runs, and what its tasks could ask for.
import {useAnswer} from "./data.js";
import {Frame, Link, Muted, Section, Spinner, Table, Trouble, h} from "./ui.js";
import {count, date, duration, memory, percent, took, usd} from "./words.js";

function Sizes({dagId}) {
  const [found, trouble] = useAnswer(`dags/${encodeURIComponent(dagId)}/advice`, {}, 60);
  if (!found) return trouble ? h(Trouble, {words: trouble}) : h(Spinner);
  const both = (sizes, words) => (sizes.nearly_all === null ? "–" : sizes.most === sizes.nearly_all ? words(sizes.most) : `${words(sizes.most)} / ${words(sizes.nearly_all)}`);
  const sum = (name) => count(found.tasks.reduce((all, task) => all + task[name], 0));
  const more = h(Muted, null, `needed: by 95 / 99 of 100 tries, a fifth of memory and time added; to ask for that would have saved ${sum("saved_cpu_hours")} cpu-hours and ${sum("saved_gib_hours")} GiB-hours`);
  const rows = found.tasks.flatMap((task) => [task, ...task.by_input.map((part) => ({...part, task_id: `${task.task_id}, inputs below ${memory(part.bytes / 2 ** 20)}`, part: true}))]);
  const whole = (cell) => (task) => (task.part ? "" : cell(task));
  const line = (task) => (task.part ? null : task.line ? h("code", {style: {userSelect: "all", fontSize: "0.85em"}}, task.line) : h(Muted, null, `known from ${found.fewest} tries on`));
  return h(Section, {title: "What its tasks could ask for", more}, h(Table, {name: "Right sizes", rows, empty: "No try has ended.", columns: [
    {title: "Task, and the line to paste", cell: (task) => h("div", null, h("div", null, task.task_id), line(task)), text: (task) => task.task_id},
    {title: "Tries", cell: (task) => count(task.tries), number: true},
    {title: "Had too little", cell: whole((task) => count(task.short)), number: true},
    {title: "cpus asked", cell: whole((task) => count(task.cpus_asked)), number: true},
    {title: "cpus needed", cell: (task) => both(task.cpus, count), number: true},
    {title: "Memory asked", cell: whole((task) => memory(task.memory_asked)), number: true},
    {title: "Memory needed", cell: (task) => both(task.memory, memory), number: true},
    {title: "Time needed", cell: (task) => both(task.time, duration), number: true},
    {title: "95 of 100 began within", cell: whole((task) => duration(task.waited)), number: true},
    {title: "cpu-hours saved", cell: whole((task) => count(task.saved_cpu_hours)), number: true},
    {title: "GiB-hours saved", cell: whole((task) => count(task.saved_gib_hours)), number: true},
    {title: "To paste", shown: false, text: (task) => task.line ?? ""},
  ]}));
}

export function DagTab({dagId}) {
  const [found, trouble, now] = useAnswer(`dags/${encodeURIComponent(dagId)}/runs`, {}, 10);
  if (!found) return h(Frame, null, h(Trouble, {words: trouble}), trouble ? null : h(Spinner));
  const runs = `/dags/${encodeURIComponent(dagId)}/runs/`;
  return h(Frame, null, h(Trouble, {words: trouble}), h(Section, {title: "Cost and efficiency by run"}, h(Table, {name: `Runs of ${dagId}`, rows: found.runs, empty: "Lading has no record of a run of this Dag.", columns: [
    {title: "Run", cell: (run) => h(Link, {to: `${runs}${encodeURIComponent(run.run_id)}/plugin/lading-run`}, run.run_id), text: (run) => run.run_id},
    {title: "Began", cell: (run) => date(run.began_at)},
    {title: "Took", cell: (run) => duration(took(run, now)), text: (run) => took(run, now), number: true},
    {title: "Jobs", cell: (run) => count(run.jobs), number: true},
    {title: "Failed", cell: (run) => count(run.failed), number: true},
    {title: "USD", cell: (run) => usd(run.usd), has: (run) => run.usd !== null, number: true},
    {title: "cpu-hours", cell: (run) => count(run.cpu_hours), number: true},
    {title: "of them used", cell: (run) => percent(run.cpu_hours_used, run.cpu_hours_measured), number: true},
    {title: "Memory used", cell: (run) => (run.memory_used === null ? "–" : percent(run.memory_used, 1)), number: true},
    {title: "Mean wait", cell: (run) => duration(run.wait_seconds / run.jobs), number: true},
  ]})), h(Sizes, {dagId}));
}
