// Formats numbers, times and amounts for people.
import type {Since, SinceThen, StartEstimate} from "./api_types";
import type {ChartMachine, RunOutlook, RunTotals, Summary} from "./api_types";

type Maybe<Value> = Value | null | undefined;

const NONE = "–";
const isNone = (value: unknown): value is null | undefined => value === null || value === undefined;
const number = (value: number, digits = 1) => value.toLocaleString("en-US", {maximumFractionDigits: digits});

export const count = (value: Maybe<number>): string => (isNone(value) ? NONE : value > 0 && value < 0.005 ? "< 0.01" : number(value, 2));

/** Three decimals, as in the text of reasons; a value that would round to 0 keeps one significant digit. */
export const exact = (value: number): string => (value > 0 && value < 0.0005 ? value.toLocaleString("en-US", {maximumSignificantDigits: 1}) : number(value, 3));

// Amounts below ten cents are never rounded to 0, as in the text of reasons.
const digitsOfUsd = (value: number) => (value > 0 && value < 0.1 ? Math.min(20, Math.max(4, 1 - Math.floor(Math.log10(value)))) : 2);
export const usd = (value: Maybe<number>): string =>
  isNone(value) ? NONE : `$${value.toLocaleString("en-US", {minimumFractionDigits: 2, maximumFractionDigits: digitsOfUsd(value)})}`;

/** An estimated amount, to three digits. */
export function about(money: Maybe<number>, hours: number): string {
  const amount = (value: number) => value.toLocaleString("en-US", {maximumSignificantDigits: 3});
  return isNone(money) ? `≈ ${amount(hours)} cpu-h` : `≈ $${amount(money)}`;
}

export function percent(part: number, whole: Maybe<number>): string {
  if (!whole) return NONE;
  const share = (100 * part) / whole;
  return share > 0 && share < 1 ? "< 1 %" : `${Math.round(share)} %`;
}

/** Shortens a long name in the middle, because related names tend to differ at the end. */
export function middle(text: string, most = 48): string {
  const kept = Math.floor((most - 1) / 2), characters = [...text];
  return characters.length > most ? `${characters.slice(0, kept).join("")}…${characters.slice(-kept).join("")}` : text;
}

/** A fraction for programs, 0 to 1. */
export const fraction = (part: Maybe<number>, whole: Maybe<number>): number | null => (isNone(part) || !whole ? null : Math.round((part / whole) * 1e4) / 1e4);

export function memory(mib: Maybe<number>): string {
  if (isNone(mib)) return NONE;
  return mib >= 1024 ? `${number(mib / 1024)} GiB` : `${number(mib, 0)} MiB`;
}

export function duration(seconds: Maybe<number>): string {
  if (isNone(seconds)) return NONE;
  const exactly = Math.max(0, seconds), whole = Math.round(exactly);
  if (whole < 60) return `${number(exactly, exactly < 10 ? 1 : 0)} s`;
  if (whole < 600) return `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
  return `${Math.round(minutes / 1440)} days`;
}

export const ago = (seconds: number): string => (seconds < 1 ? "now" : `${duration(seconds)} ago`);
/** A number with its unit, which is singular if the number is shown as 1. */
export function amountOf(value: number, one: string, several = `${one}s`, text: (value: number) => string = count): string {
  const shown = text(value);
  return `${shown} ${shown === "1" ? one : several}`;
}
export const cpusText = (cpus: number): string => amountOf(cpus, "cpu");
export const jobsText = (jobs: number): string => amountOf(jobs, "job");
export const tasksText = (tasks: number): string => amountOf(tasks, "task");
export const machinesText = (machines: number): string => amountOf(machines, "machine");

/** The time zone that the user has chosen in Airflow; undefined: the browser's. */
function zone(): string | undefined {
  try {
    const chosen: unknown = JSON.parse(localStorage.getItem("timezone") ?? "null");
    return typeof chosen === "string" && chosen !== "local" ? chosen : undefined;
  } catch {
    return localStorage.getItem("timezone") || undefined;
  }
}

// Creating a formatter takes longer than using it a hundred times.
const formatters = new Map<string, Intl.DateTimeFormat>();
function formatter(options: Intl.DateTimeFormatOptions, timeZone = zone()): Intl.DateTimeFormat {
  const key = JSON.stringify([timeZone, options]);
  let found = formatters.get(key);
  if (!found) formatters.set(key, (found = made({...options, timeZone, hourCycle: "h23"})));
  return found;
}
function made(options: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  try {
    return new Intl.DateTimeFormat(undefined, options);
  } catch {
    // This browser does not know the time zone.
    return new Intl.DateTimeFormat(undefined, {...options, timeZone: undefined});
  }
}

export const clock = (seconds: number): string =>
  formatter({hour: "2-digit", minute: "2-digit", second: "2-digit"}).format(seconds * 1000);

export const minute = (seconds: number): string => formatter({hour: "2-digit", minute: "2-digit"}).format(seconds * 1000);

/** Adds the year unless it is the current one. */
const yearOf = (seconds: number): Intl.DateTimeFormatOptions => (new Date(seconds * 1000).getUTCFullYear() === new Date().getUTCFullYear() ? {} : {year: "numeric"});
const dayAndYear = (seconds: number): Intl.DateTimeFormatOptions => ({...yearOf(seconds), month: "short", day: "numeric"});
/** The date in the user's time zone, unless it is today. */
function dayUnlessToday(seconds: number, now: number): Intl.DateTimeFormatOptions {
  const its = formatter({year: "numeric", month: "numeric", day: "numeric"});
  return its.format(seconds * 1000) === its.format(now * 1000) ? {} : dayAndYear(seconds);
}
/** A time, with its date unless that is today. */
export const date = (seconds: Maybe<number>, now = Date.now() / 1000): string =>
  isNone(seconds) ? NONE : formatter({...dayUnlessToday(seconds, now), hour: "2-digit", minute: "2-digit"}).format(seconds * 1000);
/** A time to the second, with its date unless that is today. */
export const moment = (seconds: number, now = Date.now() / 1000): string =>
  formatter({...dayUnlessToday(seconds, now), hour: "2-digit", minute: "2-digit", second: "2-digit"}).format(seconds * 1000);
/** A day of a bill. Bills are in UTC, and in another time zone their days could start on the day before. */
export function utcDay(seconds: number): string {
  const isPast = new Date(seconds * 1000).getUTCFullYear() !== new Date().getUTCFullYear();
  return formatter({month: "short", day: "numeric", ...(isPast ? {year: "numeric"} : {})}, "UTC").format(seconds * 1000);
}
/** A month of a bill, in UTC as its days. */
export const utcMonth = (seconds: number): string => formatter({month: "long", year: "numeric"}, "UTC").format(seconds * 1000);
export const day = (seconds: number): string => formatter({month: "short", day: "numeric"}).format(seconds * 1000);

// Text from the engine contains times as "2026-11-23 12:00:00 UTC"; the page shows all times in the user's time zone.
const UTC = /\b(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) UTC\b/g;
export const spoken = (text: Maybe<string>): string | null =>
  text?.replace(UTC, (_, year, month, ...rest) => {
    const [dayOfMonth, hour, minute, second] = rest.slice(0, 4).map(Number);
    return date(Date.UTC(Number(year), Number(month) - 1, dayOfMonth, hour, minute, second) / 1000);
  }) ?? null;

/** A label on a time axis that spans `shown` seconds; longer spans need the date. */
export function tickLabel(seconds: number, shown: number): string {
  return shown > 12 * 3600 ? formatter({...dayAndYear(seconds), hour: "2-digit", minute: "2-digit"}).format(seconds * 1000) : shown > 1800 ? minute(seconds) : clock(seconds);
}

/** ISO 8601 for programs, such as in CSV: UTC, whole seconds, as in `jobs.csv`. */
export const iso = (seconds: Maybe<number>): string => (isNone(seconds) ? "" : `${new Date(seconds * 1000).toISOString().slice(0, 19)}+00:00`);

export const cpuHours = (value: number): string =>
  value > 0 && value < 0.005 ? "< 0.01 cpu-h" : `${number(value, value < 10 ? 2 : 0)} cpu-h`;
export const cost = (money: Maybe<number>, hours: number): string => (isNone(money) ? cpuHours(hours) : usd(money));

/** The difference between two amounts, and its percentage of the earlier one. */
export function difference(before: number, after: number, text: (value: number) => string): string {
  const zero = text(0), amount = text(Math.abs(after - before)), sign = after < before ? "−" : "+";
  if (amount === zero) return "no difference";
  if (before <= 0) return `${sign}${amount}`;
  const part = percent(Math.abs(after - before), before);
  return `${sign}${amount} (${part.startsWith("<") ? part : `${sign}${part}`})`;
}

/** The cost of a run, including its share of idle and booting machines. */
export const runCost = ({usd: charged, billed}: Pick<RunTotals, "usd" | "billed">): number | null =>
  charged === null ? null : charged + (billed.usd_idle ?? 0) + (billed.usd_boot ?? 0);

/** How long a run took, or has taken until now if jobs are unfinished, seconds. */
export const took = ({live, began_at, ended_at}: {live: number; began_at: number | null; ended_at: number | null}, now: number) =>
  ((live ? now : ended_at) ?? now) - (began_at ?? now);

/** Text for the cpus that running jobs requested: out of how many, and how many more in batch jobs on nodes that Lading does not count. */
export function inUse({cpus_used, cpus_up, cpus_batch}: Pick<Summary, "cpus_used" | "cpus_up" | "cpus_batch">): string | null {
  const parts = [
    cpus_up ? `of ${count(cpus_up)} up, ${percent(cpus_used, cpus_up)}` : null,
    cpus_batch ? `${count(cpus_batch)} more in batch jobs` : null,
  ];
  return parts.filter(Boolean).join("; ") || null;
}

/** The state of a machine; if it is unreachable, that and since when, because its last state is outdated. */
export const machineState = ({state, unreachable_since: since}: Pick<ChartMachine, "state"> & Partial<Pick<ChartMachine, "unreachable_since">>): [string, string | null] =>
  isNone(since) ? [state, null] : ["unreachable", `since ${date(since)}`];

export const bought = ({instance_type, capacity_type, zone: where}: Partial<Pick<ChartMachine, "instance_type" | "capacity_type" | "zone">>): string =>
  [instance_type, capacity_type, where].filter(Boolean).join(", ");

// The hurry and deadline of a live run, one line each.
const HURRIES = new Map([[0, "cheap"], [1, "balanced"], [10, "fast"]]);
const hurryName = (value: number) => (HURRIES.has(value) ? `hurry ${count(value)} (${HURRIES.get(value)})` : `hurry ${count(value)}`);
export function outlookLines({hurry, finish_by, ends_at, trouble, asked_hurry, asked_finish_by, asked_by, asked_at, is_planned}: RunOutlook): string[] {
  const requested = [
    asked_hurry === null ? null : hurryName(asked_hurry),
    asked_finish_by === null ? null : `finish_by ${asked_finish_by}`,
  ].filter(Boolean).join(", ");
  const asked = requested ? `${asked_by} requested ${requested}, ${date(asked_at)}` : null;
  const isText = (line: string | null): line is string => Boolean(line);
  if (!is_planned) return [asked, "This run is not in Lading's plan: only sites with policy = \"forecast\" and sites with allocations plan ahead."].filter(isText);
  // The expected end is shown above, so it is not repeated.
  const end = trouble ? `It ${spoken(trouble)}` : finish_by === null ? null : `It must finish by ${date(finish_by)}${ends_at === null ? ", but when it will finish is not planned yet" : ", as planned"}`;
  const worth = asked_hurry !== null ? null : hurry === null ? "It uses the hurry settings of its sites" : `${hurryName(hurry)}, as its Dag says`;
  return [asked, worth, end].filter(isText);
}

/** When a job is expected to start, in a few characters. */
export function startText({since, at, until}: Pick<StartEstimate, "since" | "at" | "until">, now: number): string {
  return since === null || at === null || until === null ? "held up" : rangeText({since, at, until}, now);
}
export const momentText = (at: number, now: number): string => date(at, now);
/** An expected time and the range around it. */
export function rangeText({since, at, until}: {since: number; at: number; until: number}, now: number): string {
  const [first, likely, last] = [since, at, until].map((time) => date(time, now));
  if (since > now && first === last) return `at about ${last}`;
  const range = since <= now ? `by ${last}` : `between ${first} and ${last}`;
  return at <= now ? range : `about ${likely}; ${range}`;
}

/** What has become of tasks that failed, in the order in which they need attention: of one task, and of several. */
const SEQUELS: readonly (readonly [Since, string, string])[] = [["gave_up", "gave up", "gave up"], ["waits", "is waiting to run again", "are waiting to run again"], ["runs", "is running again", "are running again"], ["succeeded", "succeeded", "succeeded"], ["skipped", "was skipped", "were skipped"]];
/** What has become of a task since one of its tries failed. */
export function sequelText({state, try_number: later, at}: SinceThen, now: number): string {
  const words = SEQUELS.find(([key]) => key === state)?.[1] ?? state;
  const when = isNone(at) ? "" : ` ${date(at, now)}`;
  return state === "succeeded" ? `${isNone(later) ? "" : `try ${later} `}${words}${when}` : words;
}
/** What has become of several tasks, a line for each state. */
export const sequelLines = (tasks: Partial<Record<Since, number>>): string[] =>
  SEQUELS.flatMap(([state, one, several]) => (tasks[state] ? [`${count(tasks[state])} ${tasks[state] === 1 ? one : several}`] : []));

/** The reason for a wait without what its column already says: that the job waits, and the site if that is shown. */
export const sentence = (text: string, site: string | null): string =>
  text.replace(site === null ? /^waits: / : /^(waits: )?(site '[^']*': )?/, "");

const ACTORS: Record<string, string> = {author: "The Dag's author", operator: "The operator"};
/** The start of a remedy that says that none is needed. */
const NOTHING = "Nothing";
/** The remedy, with who can apply it. */
export function byWhom({remedy, actors}: {remedy: string; actors: string[]}): string {
  const who = actors.map((actor) => ACTORS[actor] ?? actor);
  return who.length && !remedy.startsWith(NOTHING) ? `${who.join(", or ").replace(/, or The /g, ", or the ")}: ${remedy}` : remedy;
}
