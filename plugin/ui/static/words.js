// Numbers, times and amounts as people read them.
const number = (value, digits = 1) => value.toLocaleString("en-US", {maximumFractionDigits: digits});

export const count = (value) => (value === null || value === undefined ? "–" : value > 0 && value < 0.005 ? "< 0.01" : number(value, 2));
export const usd = (value) => (value === null || value === undefined ? "–" : `$${value.toLocaleString("en-US", {minimumFractionDigits: 2, maximumFractionDigits: value < 0.1 ? 4 : 2})}`);
export function percent(part, whole) {
  if (!whole) return "–";
  const share = (100 * part) / whole;
  return share > 0 && share < 1 ? "< 1 %" : `${Math.round(share)} %`;
}

export function memory(mib) {
  if (mib === null || mib === undefined) return "–";
  return mib >= 1024 ? `${number(mib / 1024)} GiB` : `${number(mib, 0)} MiB`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, seconds);
  if (whole < 60) return `${number(whole, whole < 10 ? 1 : 0)} s`;
  if (whole < 600) return `${Math.floor(whole / 60)} min ${Math.floor(whole % 60)} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.round(minutes / 1440)} days`;
}

// The time zone that the user has chosen in Airflow; else the browser's.
function zone() {
  try {
    const chosen = JSON.parse(localStorage.getItem("timezone") ?? "null");
    return typeof chosen === "string" && chosen !== "local" ? chosen : undefined;
  } catch {
    return localStorage.getItem("timezone") || undefined;
  }
}

// To make one takes longer than to use it a hundred times.
const formatters = new Map();
function formatter(options) {
  const timeZone = zone(), key = JSON.stringify([timeZone, options]);
  if (!formatters.has(key)) formatters.set(key, made({...options, timeZone, hourCycle: "h23"}));
  return formatters.get(key);
}
function made(options) {
  try {
    return new Intl.DateTimeFormat(undefined, options);
  } catch { // a zone that this browser does not know
    return new Intl.DateTimeFormat(undefined, {...options, timeZone: undefined});
  }
}

export const clock = (seconds) => formatter({hour: "2-digit", minute: "2-digit", second: "2-digit"}).format(seconds * 1000);
const SECONDS = {hour: 3600, minute: 60, second: 1};
// When the day began in that time zone, seconds since the epoch.
export function midnight() {
  const parts = formatter({hour: "numeric", minute: "numeric", second: "numeric"});
  const ofDay = (at) => parts.formatToParts(at * 1000).reduce((sum, {type, value}) => sum + (SECONDS[type] ? SECONDS[type] * Number(value) : 0), 0);
  const now = Math.floor(Date.now() / 1000), first = now - ofDay(now);
  return first - ((ofDay(first) + 43200) % 86400) + 43200; // a day on which clocks change is longer or shorter
}
export const date = (seconds) => (seconds === null || seconds === undefined ? "–" : formatter({month: "short", day: "numeric", hour: "2-digit", minute: "2-digit"}).format(seconds * 1000));
// Times in what the engine says are UTC, "2026-11-23 12:00:00 UTC": as the others of the page they are read in its time zone.
const SPOKEN = /\b(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) UTC\b/g;
export const spoken = (words) => words?.replace(SPOKEN, (_, year, month, ...rest) => moment(Date.UTC(year, month - 1, ...rest.slice(0, 4)) / 1000)) ?? null;
const moment = (seconds) => formatter({month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit"}).format(seconds * 1000);
// The label of a time in a chart that shows so many seconds: of several days the time of day alone says nothing.
export const tickLabel = (seconds, shown) => (shown > 86400 ? date(seconds) : clock(seconds));
// For programs, as in CSV.
export const iso = (seconds) => (seconds === null || seconds === undefined ? "" : new Date(seconds * 1000).toISOString());
export const cpuHours = (value) => value > 0 && value < 0.005 ? "< 0.01 cpu-h" : `${number(value, value < 10 ? 2 : 0)} cpu-h`;
export const cost = (money, hours) => (money === null || money === undefined ? cpuHours(hours) : usd(money));

// How long a run took, or where jobs have not ended has taken until now, seconds.
export const took = ({live, began_at, ended_at}, now) => (live ? now : ended_at) - began_at;

// Beside how many cpus are in use: of how many, and what is on nodes that are not Lading's to count.
export function inUse({cpus_used, cpus_up, cpus_batch}) {
  const parts = [cpus_up ? `of ${count(cpus_up)} that are up, ${percent(cpus_used, cpus_up)}` : null, cpus_batch ? `${count(cpus_batch)} more in batch jobs` : null];
  return parts.filter(Boolean).join("; ") || null;
}
// The state of a machine, in a word, and since when where it does not answer: what it was when it last did says little.
export const machineState = ({state, unreachable_since: since}) => (since === null || since === undefined ? [state, null] : ["unreachable", `since ${date(since)}`]);
export const bought = ({instance_type, capacity_type, zone}) => [instance_type, capacity_type, zone].filter(Boolean).join(", ");
export const taskName = (job) => (job.hidden || job.hidden === undefined && !job.taskId ? "another Dag's task" : `${job.dagId ?? job.dag_id ?? ""}${job.dagId ?? job.dag_id ? "." : ""}${job.taskId ?? job.task_id}${(job.mapIndex ?? job.map_index) >= 0 ? `[${job.mapIndex ?? job.map_index}]` : ""}`);

// What a live run goes by, a line for each part.
const HURRIES = new Map([[0, "cheap"], [1, "balanced"], [10, "fast"]]);
const hurryName = (value) => (HURRIES.has(value) ? `hurry ${count(value)} (${HURRIES.get(value)})` : `hurry ${count(value)}`);
export function outlookLines({hurry, finish_by, ends_at, trouble, asked_hurry, asked_finish_by, asked_by, asked_at, is_planned}) {
  const asks = [asked_hurry === null ? null : hurryName(asked_hurry), asked_finish_by === null ? null : `finish_by ${asked_finish_by}`].filter(Boolean).join(", ");
  const asked = asks ? `${asked_by} has asked for ${asks}, ${date(asked_at)}` : null;
  if (!is_planned) return [asked, "Nothing is planned for it: only sites that buy machines by a forecast go by that."].filter(Boolean);
  const shall = finish_by === null ? "" : `, and shall by ${date(finish_by)}`;
  const end = trouble ? `It ${spoken(trouble)}` : ends_at !== null ? `Planned to end at about ${date(ends_at)}${shall}` : finish_by === null ? null : `It shall end by ${date(finish_by)}; when it will is not known`;
  return [asked, asked_hurry !== null ? null : hurry === null ? "The hurry is that of its sites" : `${hurryName(hurry)}, as its Dag says`, end].filter(Boolean);
}

// The Dag's tab: what its runs cost, and what its tasks could ask for.
export const dagPath = (dagId) => `/dags/${encodeURIComponent(dagId)}/plugin/lading-dag`;

export function taskPath(job) {
  const [dag, run, task, index] = [job.dagId ?? job.dag_id, job.runId ?? job.run_id, job.taskId ?? job.task_id, job.mapIndex ?? job.map_index];
  if (!dag || !run || !task) return null;
  return `/dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}/tasks/${encodeURIComponent(task)}${index >= 0 ? `/mapped/${index}` : ""}`;
}
