// Tries of tasks: where, why, their phases as a bar, and what they used of what they asked for.
import {ask} from "./data.js";
import {Badge, Confirmed, Link, Muted, Swatch, Table, h} from "./ui.js";
import {cost, count, dagPath, date, duration, iso, memory, percent, spoken, taskName, taskPath} from "./words.js";

const COLORS = {airflow: "#a1a1aa", sent: "#60a5fa", queue: "#f59e0b", boot: "#c084fc", runs: "#16a34a"};

// In a table only the longest phase is said in words, all of them where the pointer is; `whole` says all.
export function Phases({job, now, whole}) {
  const end = job.ended_at ?? now, all = Math.max(end - job.queued_at, 0.001);
  const part = (phase) => Math.max(0, (phase.until ?? end) - phase.since);
  const said = whole ? job.phases : job.phases.toSorted((one, other) => part(other) - part(one)).slice(0, 1);
  return h("div", null,
    h("div", {role: "img", "aria-label": job.phases.map((phase) => `${phase.title} ${duration(part(phase))}`).join(", "), style: {display: "flex", height: 18, borderRadius: 4, overflow: "hidden", minWidth: 160}},
      job.phases.map((phase) => h("div", {key: phase.key + phase.since, title: `${phase.title}: ${duration(part(phase))}`, style: {flexGrow: part(phase) / all, flexBasis: 0, minWidth: 2, background: COLORS[phase.key] ?? "#71717a"}}))),
    h("div", {style: {display: "flex", flexWrap: "wrap", gap: 10, marginTop: 4, fontSize: "0.8em"}}, said.map((phase) => h("span", {key: phase.key + phase.since},
      h(Swatch, {color: COLORS[phase.key] ?? "#71717a"}), `${phase.title} ${duration(part(phase))}`))));
}

const where = (job) => job.held ? `room is held at ${job.held}` : [job.site, job.location !== job.site ? job.location : null, job.node].filter(Boolean).join(" / ") || "–";
const ran = (job, now) => (job.started_at === null ? null : (job.ended_at ?? now) - job.started_at);
const cpus = (job) => job.cpus * (job.nodes ?? 1);

export function Facts({job, now}) {
  const seconds = ran(job, now), used = job.cpu_seconds === null || !seconds ? null : job.cpu_seconds / seconds;
  const limit = (value, words) => (value === null ? "" : ` (limit ${words(value)})`);
  const rows = [
    ["State", h("span", null, h(Badge, {word: job.state}), job.cause ? ` ${[job.cause, job.cause_title].filter(Boolean).join(": ")}` : "",
      job.state === "attempted" && h(Confirmed, {label: "Wake", question: "Look for room now?", onYes: () => ask("wake", job.id)}))],
    ["Why", spoken(job.reason) ?? (["queued", "attempted", "placed"].includes(job.state) ? "nothing was said yet" : null)],
    ["What would change it", job.remedy],
    ["Team", job.team],
    ["Where", where(job)],
    ["Why there", job.site === null ? null : spoken(job.placed_because) ?? "the first site that takes it had room"],
    ["Batch job", job.native_id],
    ...(job.native_id && job.dag_id ? [["Its script", h("code", {style: {userSelect: "all"}}, `lading script --dag ${job.dag_id} --task ${job.task_id}`)]] : []),
    ["Queue asked for", job.queue],
    ["cpus asked / used", `${count(cpus(job))} / ${used === null ? "–" : `${count(used)} (${percent(used, cpus(job))})`}`],
    ["Memory asked / peak", `${memory(job.memory)}${limit(job.memory_limit, memory)} / ${job.peak_memory === null ? "–" : `${memory(job.peak_memory)} (${percent(job.peak_memory, job.memory)})`}`],
    ["Time limit / ran", `${job.time_limit === null ? "none" : duration(job.time_limit)} / ${duration(seconds)}`],
    ["Cost", seconds === null ? null : cost(job.usd, (seconds * cpus(job)) / 3600)],
    ...(job.dag_id ? [["To ask for next time", h(Link, {to: dagPath(job.dag_id)}, "right sizes of its tasks")]] : []),
    ["Queued", date(job.queued_at)],
    ["Exit code", job.exit_code],
    ["Token", h("code", null, job.id)],
  ];
  return h("dl", {style: {display: "grid", gridTemplateColumns: "max-content 1fr", gap: "4px 16px"}}, rows.filter(([, value]) => value !== null).flatMap(([title, value]) => [h("dt", {key: title}, h(Muted, null, title)), h("dd", {key: `${title}-value`, style: {margin: 0, overflowWrap: "anywhere"}}, value)]));
}

export const TryTable = ({name, jobs, now, empty, load}) => h(Table, {name, rows: jobs, empty, load, columns: tryColumns(now)});

export const tryColumns = (now) => [
  {title: "Task", cell: (job) => h(Link, {to: taskPath(job)}, taskName(job)), text: taskName},
  {title: "Run", shown: false, text: (job) => job.run_id},
  {title: "Team", cell: (job) => job.team ?? "", has: (job) => job.team},
  {title: "Try", cell: (job) => job.try_number, number: true},
  {title: "State", cell: (job) => h(Badge, {word: job.state}), text: (job) => job.state},
  {title: "Cause", shown: false, text: (job) => job.cause},
  {title: "Reason", shown: false, text: (job) => job.reason},
  {title: "Where", cell: where},
  {title: "Batch job", cell: (job) => job.native_id ?? "", has: (job) => job.native_id},
  {title: "Waited", cell: (job) => duration((job.started_at ?? job.ended_at ?? now) - job.queued_at), text: (job) => (job.started_at ?? job.ended_at ?? now) - job.queued_at, number: true},
  {title: "Ran", cell: (job) => duration(ran(job, now)), text: (job) => ran(job, now), number: true},
  {title: "cpus used", cell: (job) => (job.cpu_seconds === null ? "" : percent(job.cpu_seconds, (ran(job, now) ?? 0) * cpus(job))), number: true},
  {title: "Memory used", cell: (job) => (job.peak_memory === null ? "" : percent(job.peak_memory, job.memory)), number: true},
  {title: "Phases", cell: (job) => h(Phases, {job, now}), text: (job) => job.phases.map((phase) => phase.title).join("; ")},
  {title: "Queued at", shown: false, text: (job) => iso(job.queued_at)},
  {title: "Started at", shown: false, text: (job) => iso(job.started_at)},
  {title: "Ended at", shown: false, text: (job) => iso(job.ended_at)},
  {title: "cpu-hours", shown: false, text: (job) => (ran(job, now) === null ? "" : (ran(job, now) * cpus(job)) / 3600)},
  {title: "USD", shown: false, text: (job) => job.usd},
];
