// The jobs explorer: search, filters as chips, and the jobs, sorted and paged by the server.
import * as React from "react";
import {useState} from "react";
import {address, type Parameters} from "../api";
import type {FoundMachine, FoundTask, JobPage, MapIndexes, SiteState, TrySummary} from "../api_types";
import {byWhom, cost, count, cpusText, date, duration, memory, percent, sentence, sequelText, startText} from "../format";
import {WITHIN, dagPath, pagePath, runPath, sizePath, taskName, taskPath, withinText, type Choices} from "../paths";
import {useAnswer, useLast} from "../polling";
import type {Chosen} from "../ui/choices";
import {Awaited, Badge, Button, Clamp, Input, Link, Muted, Name, Section, Select, SiteLink, TaskName, Trouble} from "../ui/parts";
import {Table, type Column} from "../ui/table";
import {LogLink, NOWHERE, WAITING, Where, isWaiting, peakText, where} from "../ui/tries";
import {Failures} from "./failures";
import {LiveRuns} from "./live_runs";
import type {PageProps} from "./page";

const ROWS = 25;
/** Seconds between updates; expected starts take longer to sort. */
const EVERY = 10, EVERY_BY_START = 30;

// The filters: the name in the page's URL, the API's parameter, and the title of the chip.
interface Chip {name: string; parameter: string; title: string; many: boolean}
const CHIPS: readonly Chip[] = [
  {name: "q", parameter: "q", title: "find", many: false},
  {name: "dag", parameter: "dag_id", title: "Dag", many: true},
  {name: "run", parameter: "run_id", title: "run", many: false},
  {name: "task", parameter: "task_id", title: "task", many: false},
  {name: "team", parameter: "team", title: "team", many: true},
  {name: "site", parameter: "site", title: "site", many: true},
  {name: "location", parameter: "location", title: "machine", many: false},
  {name: "state", parameter: "state", title: "state", many: true},
  {name: "reason", parameter: "reason_code", title: "reason", many: true},
  {name: "limit", parameter: "reason_limit", title: "limit", many: false},
  {name: "at", parameter: "reason_site", title: "waits for site", many: false},
  {name: "cause", parameter: "cause", title: "cause", many: true},
];
const STATES = [["", "any state"], ["running", "running"], ["waiting", "waiting"], ["failed", "failed"], ["succeeded", "succeeded"], ["cancelled", "cancelled"]] as const;
const CAUSES = ["error", "out_of_memory", "time_limit", "node_failure", "preempted", "lost", "submit_rejected", "no_capacity", "cancelled"];
export const SORTS = ["queued", "started", "ended", "waited", "ran", "usd", "cpus_used", "memory_used", "starts"];
/** Sorts waiting jobs only. */
const STARTS = "starts";

export interface Sorted {by: string; descending: boolean}
const isOfWaiting = (states: readonly string[]) => states.length > 0 && states.every((state) => WAITING.includes(state as never));
export function sorted(chosen: Pick<Chosen, "get" | "all">): Sorted {
  const by = chosen.get("sort") ?? "", isUsable = SORTS.includes(by) && (by !== STARTS || isOfWaiting(chosen.all("state")));
  return {by: isUsable ? by : "queued", descending: chosen.get("order") !== "asc"};
}
/** The choices that sort the list; sorted by expected starts, it has only waiting jobs. */
export const sortChoices = (states: readonly string[], by: string, descending: boolean): Choices =>
  ({sort: by, order: descending ? null : "asc", after: null, ...(by === STARTS && !isOfWaiting(states) ? {state: WAITING} : {})});
/** Converts the filters in the page's URL to the API's parameters. */
export function parametersOf(chosen: Pick<Chosen, "get" | "all">): Parameters {
  const found: Parameters = {};
  for (const {name, parameter, many} of CHIPS) found[parameter] = many ? chosen.all(name) : chosen.get(name);
  return found;
}
/** The time range, seconds as text; null: unlimited, or the URL has an invalid number. */
export function withinOf(chosen: Pick<Chosen, "get">): string | null {
  const within = chosen.get("within"), seconds = Number(within);
  return seconds > 0 && seconds <= 3660 * 86400 ? within : null;
}
// Failures are filtered by when they ended, like the tile and the groups that link here.
const byEnd = (chosen: Pick<Chosen, "all">) => chosen.all("state").join() === "failed";
export function sinceOf(chosen: Pick<Chosen, "get" | "all">, now: number): Parameters {
  const within = withinOf(chosen);
  return within === null ? {} : {[byEnd(chosen) ? "ended_since" : "queued_since"]: Math.floor(now - Number(within))};
}

function stateOf(states: string[]): string {
  if (!states.length) return "";
  return WAITING.every((state) => states.includes(state)) ? "waiting" : states[0];
}

function Chips({chosen}: {chosen: Chosen}) {
  const chips = CHIPS.flatMap(({name, title}) => {
    const values = chosen.all(name);
    if (name === "state" && stateOf(values) === "waiting" && values.length === WAITING.length) return [{name, title, text: "waiting", without: null as Choices[string]}];
    return values.map((value) => ({name, title, text: value, without: values.filter((each) => each !== value) as Choices[string]}));
  });
  const within = withinOf(chosen);
  if (within) chips.push({name: "within", title: byEnd(chosen) ? "ended in" : "queued in", text: `the ${withinText(within)}`, without: null});
  if (!chips.length) return null;
  return (
    <div className="chips" role="group" aria-label="Active filters">
      {chips.map(({name, title, text, without}) => (
        <span className="chip" key={`${name} ${text}`}>{title}: <Name>{text}</Name>
          <button type="button" aria-label={`Remove ${title} ${text}`} onClick={() => chosen.set({[name]: without, after: null})}>×</button></span>
      ))}
      {chips.length > 1 ? <Button onClick={() => chosen.set({...Object.fromEntries([...CHIPS, {name: "within"}].map(({name}) => [name, null])), after: null})}>Remove all</Button> : null}
    </div>
  );
}

function Filters({chosen, sites}: {chosen: Chosen; sites: string[]}) {
  const [dag, setDag] = useState("");
  const put = (name: string, value: Choices[string]) => chosen.set({[name]: value, after: null});
  const addDag = () => { if (dag.trim()) { put("dag", [...new Set([...chosen.all("dag"), dag.trim()])]); setDag(""); } };
  return (
    <div className="chips" role="group" aria-label="Choose filters">
      <Select label="Filter by state" value={stateOf(chosen.all("state"))} options={STATES} onChange={(value) => put("state", value === "waiting" ? WAITING : value || null)} />
      <Select label="Filter by site" value={chosen.get("site") ?? ""} options={[["", "any site"], ...sites.map((site): [string, string] => [site, site])]} onChange={(value) => put("site", value || null)} />
      <Select label="Filter by cause" value={chosen.get("cause") ?? ""} options={[["", "any cause"], ...CAUSES.map((cause): [string, string] => [cause, cause.replaceAll("_", " ")])]} onChange={(value) => put("cause", value || null)} />
      <Select label="Filter by time" value={withinOf(chosen) ?? ""} options={[["", "any time"], ...WITHIN]} onChange={(value) => put("within", value || null)} />
      <Input label="Filter by Dag" value={dag} placeholder="Dag" onChange={setDag} onEnter={addDag} width="9em" />
      <Button disabled={!dag.trim()} aria-label="Add this Dag" onClick={addDag}>Add</Button>
    </div>
  );
}

const ran = (job: TrySummary, now: number) => (job.started_at === null ? null : (job.ended_at ?? now) - job.started_at);
const cpus = (job: TrySummary) => job.cpus * (job.nodes ?? 1);

function why(job: TrySummary): string {
  if (job.state === "failed" || job.state === "cancelled") return [job.cause_title ?? job.cause, job.reason].filter(Boolean).join(": ");
  return WAITING.includes(job.state as never) ? job.reason ?? "no reason yet" : "";
}

function columnsOf(now: number): Column<TrySummary>[] {
  const used = (job: TrySummary) => {
    const share = job.cpu_seconds === null ? null : percent(job.cpu_seconds, (ran(job, now) ?? 0) * cpus(job));
    const peak = job.peak_memory === null ? "" : `${memory(job.memory)}, used: ${peakText(job)}`;
    return (
      <div><div>{share ? `${share} of ` : ""}{cpusText(cpus(job))}</div><Muted>{peak || memory(job.memory)}</Muted></div>
    );
  };
  return [
    {title: "Task", cell: (job) => (
      <div><Link to={taskPath(job)} label={taskName(job)}><TaskName job={job} /></Link><div><Muted>{job.run_id && job.dag_id ? <Link to={runPath(job.dag_id, job.run_id)}><Name>{job.run_id}</Name></Link> : null}{job.team ? <>, team <Name>{job.team}</Name></> : null}</Muted></div></div>
    )},
    {title: "State, try", cell: (job) => job.hidden ? null : <div><Badge word={job.state} /><div><Muted>try {job.try_number}<LogLink job={job} before=", " /></Muted></div></div>},
    {title: "Cause or reason", help: "And what to do about it, and who can", cell: (job) => <div><Clamp text={sentence(why(job), null)} lines={6} />{job.remedy === null ? null : <div className="muted"><Clamp text={byWhom({remedy: job.remedy, actors: job.actors})} /></div>}</div>, has: why},
    {title: "Since then", help: "What has become of the task since this try failed. Gave up: Airflow does not retry it", cell: (job) => (job.since_then ? sequelText(job.since_then, now) : null), has: (job) => job.since_then},
    {title: "Starts", help: "When the job is expected to start. Waits shows how many jobs started within the interval that was shown for them", cell: (job) => (job.start ? <div className="starts">{startText(job.start, now)}<div className="muted"><Clamp text={job.start.text} /></div></div> : isWaiting(job) ? <Muted>unknown</Muted> : null), has: (job) => job.start !== null || isWaiting(job), sort: STARTS},
    {title: "Where, native id", cell: (job) => <div><Where job={job} />{job.native_id ? <div><Muted>{job.native_id}</Muted></div> : null}</div>, has: (job) => where(job) !== NOWHERE || job.native_id},
    {title: "Queued", cell: (job) => date(job.queued_at), sort: "queued", number: true},
    {title: "Waited", cell: (job) => duration((job.started_at ?? job.ended_at ?? now) - job.queued_at), sort: "waited", number: true},
    {title: "Ran", cell: (job) => duration(ran(job, now)), has: (job) => ran(job, now) !== null, sort: "ran", number: true},
    {title: "Requested and used", cell: used, sort: "cpus_used"},
    {title: "Cost", cell: (job) => (ran(job, now) === null ? "" : cost(job.usd, ((ran(job, now) ?? 0) * cpus(job)) / 3600)), has: (job) => ran(job, now) !== null, sort: "usd", number: true},
  ];
}

function Pager({chosen, found}: {chosen: Chosen; found: JobPage}) {
  const some = found.is_more ? `more than ${count(found.matching)}` : count(found.matching);
  return (
    <>
      <span data-testid="matching">{some} {found.matching === 1 && !found.is_more ? "job" : "jobs"}</span>
      {found.is_partial ? <Muted>only the newest are sorted; add filters to sort all</Muted> : null}
      <Button disabled={!chosen.get("after")} onClick={() => chosen.set({after: null})}>First page</Button>
      <Button disabled={!found.after} onClick={() => chosen.set({after: found.after})}>Next page</Button>
    </>
  );
}

/** What the search names besides jobs: sites, Dags, tasks and machines, each with links to what is usually wanted of it.
 * A machine that has ended is left out if its name only begins like that of a site, Dag or task.
 * @param sites - those whose name was searched for */
export function Found({sites, tasks, machines}: {sites: SiteState[]; tasks: FoundTask[]; machines: FoundMachine[]}) {
  const shown = sites.length || tasks.length ? machines.filter(({state}) => state !== "ended") : machines;
  if (!sites.length && !tasks.length && !shown.length) return null;
  return (
    <ul className="found" aria-label="Found">
      {sites.map((site) => <li key={site.name}>Site <SiteLink site={site} />, <Link to={pagePath({view: "waits", site: site.name})} label={`What waits for ${site.name}`}>what waits for it</Link></li>)}
      {tasks.map(({dag_id: dag, task_id: task, run_id: run}) => (
        <li key={`${dag} ${task ?? ""}`}>{task === null ? <>Dag <Link to={dagPath(dag)} label={`Runs, cost and right sizes of ${dag}`}><Name>{dag}</Name></Link></> : <>Task <Link to={sizePath(dag, task)} label={`Right size of ${dag}.${task}`}><Name>{`${dag}.${task}`}</Name></Link></>}
          {`: ${task === null ? "runs, cost and right sizes" : "right size"}`}{run === null ? null : <>; newest run <Link to={runPath(dag, run)} label={`When ${dag}, ${run} ends, and what it waits for`}><Name>{run}</Name></Link></>}</li>
      ))}
      {shown.map(({site, name, state}) => (
      <li key={`${site}/${name}`}>Machine <Link to={pagePath({view: "jobs", site, location: name})} label={`Jobs on ${site}/${name}`}><Name>{`${site}/${name}`}</Name></Link> <Badge word={state} />
        {state === "ended" ? null : <> <Link to={pagePath({view: "machines", site, machine: name})} label={`Chart of ${site}/${name}`}>chart</Link></>}</li>
      ))}
    </ul>
  );
}

/** What is recorded of tasks, if no job has the map index that was searched for.
 * @param isFiltered - whether other filters hide jobs as well */
function mapIndexText(found: MapIndexes[], isFiltered: boolean): string {
  const each = found.map(({dag_id: dag, task_id: task, first, last, recorded}) => `${dag}.${task} with ${recorded === 1 ? `only map index ${first}` : `${count(recorded)} map indexes between ${first} and ${last}`}`);
  const why = isFiltered ? "No job with this map index matches the other filters. Matching" : "Lading has no record of a job with this map index: it has not been queued, it was not run by Lading, or its record has been purged (job_retention_days). Recorded";
  return `${why}: ${each.join("; ")}.`;
}

export function JobsPage({chosen, summary}: PageProps) {
  const parameters = parametersOf(chosen), {by, descending} = sorted(chosen), within = withinOf(chosen);
  const since = () => sinceOf(chosen, Date.now() / 1000);
  const asked = {...parameters, sort: by, order: descending ? "desc" : "asc", limit: ROWS, after: chosen.get("after")};
  const [found, trouble, now] = useAnswer<JobPage>("jobs", asked, by === STARTS ? EVERY_BY_START : EVERY, since, within ?? "");
  const shown = useLast(found);
  const q = chosen.get("q"), dags = chosen.all("dag"), isFailed = chosen.all("state").includes("failed");
  const isFiltered = within !== null || CHIPS.some(({name}) => name !== "q" && chosen.all(name).length);
  const more = dags.length === 1 ? <Link to={dagPath(dags[0])}>runs and right sizes of {dags[0]}</Link> : null;
  const table = shown ? (
    <div style={{opacity: found ? 1 : 0.55}} aria-busy={!found}>
      <Table
        name="Jobs" rows={shown.jobs} columns={columnsOf(now)} empty={q ? <>No job matches “<Name>{q}</Name>”{isFiltered ? " and the other filters" : ""}. The search covers the names of tasks, Dags, runs, sites, machines and nodes, native ids and tokens.{shown.map_indexes.length ? ` ${mapIndexText(shown.map_indexes, isFiltered)}` : ""}</> : "No job matches these filters."} few={ROWS} keyOf={({id}) => id}
        href={address("jobs.csv", {...parameters, ...since()}).href}
        sorting={{by, descending, onSort: (sort, isDescending) => chosen.set(sortChoices(chosen.all("state"), sort, isDescending))}}
        more={<Pager chosen={chosen} found={shown} />} />
    </div>
  ) : null;
  return (
    <>
      <LiveRuns isFirstOpen={chosen.all("state").includes("running")} />
      <Section title="Jobs" more={more}>
        <Filters chosen={chosen} sites={(summary?.sites ?? []).map(({name}) => name)} />
        <div style={{margin: "6px 0"}}><Chips chosen={chosen} /></div>
        {shown ? <Found sites={(summary?.sites ?? []).filter(({name}) => name.toLowerCase() === q?.trim().toLowerCase())} tasks={shown.tasks} machines={shown.machines} /> : null}
        {table ? <><Trouble text={trouble} />{table}</> : <Awaited trouble={trouble} />}
      </Section>
      {isFailed ? <Failures within={within ?? "86400"} /> : null}
    </>
  );
}
