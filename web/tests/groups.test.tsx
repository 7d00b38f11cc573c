import * as React from "react";
import {renderToStaticMarkup} from "react-dom/server";
import {beforeEach, expect, test, vi} from "vitest";
import {parts} from "../src/pages/cost";
import {limitText} from "../src/pages/waits";
import type {BillAmounts, SiteState} from "../src/api_types";
import {Machines, only, pendingOf, upText, whyNotDrained} from "../src/pages/machines";
import {FailedTile, limitLine, ranked} from "../src/pages/now";
import {Task, sequels} from "../src/pages/failures";
import {byWhom, runCost} from "../src/format";
import {endLines} from "../src/pages/live_runs";
import {runningPart} from "../src/tabs/dag";
import {Bars, firstSpan, lanesOf, spanOf, ticksOf, zoomed} from "../src/tabs/gantt";
import {Outlook, hurryBody, progress} from "../src/tabs/run";
import {TaskName} from "../src/ui/parts";
import {Facts, peakText, whyThere} from "../src/ui/tries";
import {job} from "./answers";

beforeEach(() => { vi.stubGlobal("localStorage", {getItem: () => null}); });

test("a limit says how much of it is used, and where", () => {
  const group = (more: object) => limitText({site: "hpc", limit: "max_allocations", params: {}, ...more} as never);
  expect(group({params: {used: 8, most: 8}})).toBe("hpc: max_allocations 8 of 8");
  expect(group({limit: "max_usd_per_hour", params: {used: 9.6, most: 10}})).toBe("hpc: max_usd_per_hour $9.60 of $10.00");
  expect(group({})).toBe("hpc: max_allocations");
  expect(group({limit: null})).toBe("hpc");
  expect(group({site: null, limit: null})).toBe("");
});

test("a remedy says who can apply it", () => {
  expect(byWhom({remedy: "Raise it", actors: ["operator"]})).toBe("The operator: Raise it");
  expect(byWhom({remedy: "Ask for less", actors: ["author", "operator"]})).toBe("The Dag's author, or the operator: Ask for less");
  expect(byWhom({remedy: "Wait", actors: []})).toBe("Wait");
});

test("the facts of a job say who can apply the remedy", () => {
  const facts = (more: object) => renderToStaticMarkup(<Facts job={{...job, dag_id: null, site: null, ...more}} now={job.queued_at + 60} />);
  expect(facts({remedy: "Raise it", actors: ["operator"]})).toContain("The operator: Raise it");
  expect(facts({remedy: null, actors: []})).not.toContain("What to do");
});

test("the facts of a try link to its log once it has started", () => {
  vi.stubGlobal("document", {baseURI: "http://localhost/"});
  const facts = (started_at: number | null) => renderToStaticMarkup(<Facts job={{...job, started_at}} now={job.queued_at + 60} />);
  expect(facts(job.queued_at + 5)).toContain('href="http://localhost/dags/etl/runs/r1/tasks/load/mapped/3?try_number=1"');
  expect(facts(null)).not.toContain("try_number");
});

test("what a killed job used is that of the last sample, if that is less than it requested", () => {
  const of = (peak_memory: number | null, cause: string | null) => peakText({peak_memory, memory: 8192, cause});
  expect(of(5652, "out_of_memory")).toBe("69 % in the last sample before it was killed");
  expect([of(5652, "error"), of(8300, "out_of_memory"), of(null, "out_of_memory")]).toEqual(["69 %", "101 %", null]);
});

test("a job that waited for a place says that there was no room before", () => {
  const of = (until: number | null, placed_because: string | null = null) => whyThere({placed_because, phases: [{key: "airflow", title: "waits for a place", since: 0, until}]}, 500);
  expect(of(5)).toBe("the first eligible site had room");
  expect(of(420)).toBe("after 7 min without room at any eligible site, this was the first one to have room");
  expect(of(420, "its inputs are there")).toBe("its inputs are there");
});

test("machines that are ordered or boot are coming, unreachable ones are not up, and the idle ones are counted even if there are none", () => {
  const of = (states: string[], jobs: object[] = [], silent: string | null = null) => upText({
    machines: new Map(states.map((state) => [state, {key: state, state, unreachable_since: state === silent ? 5 : null}])), jobs: new Map(jobs.map((each, index) => [String(index), each])),
  } as never);
  expect(of(["up", "draining", "booting", "ordered", "ended"])).toBe("2 up, 1 idle machine, 2 coming");
  expect(of(["up"], [{place: "up", end: null}])).toBe("1 up, 0 idle machines");
  expect(of(["up", "draining"], [{place: "up", end: 7}], "up")).toBe("1 up, 0 idle machines, 1 unreachable");
});

test("a bill is split into its four parts, in USD or in cpu-hours", () => {
  const amounts = {usd: 10, usd_used: 4, usd_unused: 3, usd_idle: 2, usd_boot: 1, cpu_hours: 100, cpu_hours_used: 70, cpu_hours_unused: 20, cpu_hours_idle: 10, cpu_hours_boot: 0, jobs: 5, failed: 0};
  expect(parts(amounts, true).map(({value}) => value)).toEqual([4, 3, 2, 1]);
  expect(parts(amounts, false).map(({text}) => text)).toEqual(["70 cpu-h", "20 cpu-h", "10 cpu-h", "0 cpu-h"]);
});

const tries = (spans: [number, number | null][]) => ({tries: spans.map(([since, until], index) => ({id: String(index), map_index: index, try_number: 1, state: "succeeded", phases: [{key: "runs", title: "runs", since, until}]}))}) as never;
test("tries at the same time are in lanes of their own", () => {
  expect(lanesOf(tries([[0, 10], [5, 15], [10, 20], [12, null]]), 30).map(({lane}) => lane)).toEqual([0, 1, 0, 2]);
  const many = lanesOf(tries(Array.from({length: 40}, () => [0, 10])), 30);
  expect(Math.max(...many.map(({lane}) => lane))).toBe(7);
});
test("the chart of a run reaches to what is to come", () => {
  const run = {now: 100, began_at: 10, ended_at: null, expected_end: 400, tasks: [{expected: {since: 100, until: 350}, until: null}]} as never;
  expect(spanOf(run)).toEqual({since: 10, until: 400});
});

test("a task of a run says what it took and what is to come", () => {
  const phases = [{key: "airflow", title: "waits for a place", since: 10, until: 40}, {key: "runs", title: "runs", since: 40, until: null}];
  const task = {task_id: "align", ready_at: 5, since: 10, until: null, expected: {since: 40, until: 200}, is_critical: true, tries: [{id: "1", map_index: -1, try_number: 1, state: "running", phases}]} as never;
  const bars = renderToStaticMarkup(<Bars task={task} span={{since: 0, until: 200}} now={100} />);
  expect(bars).toMatch(/aria-label="align; waits for a place 30 s, runs 1 min; expected from .* to .*"/);
  expect(bars).toContain("stroke-dasharray=\"4 3\"");
  expect(bars).toMatch(/<rect x="30" y="3" width="90"[^>]*url\(#lading-airflow\)/);
});

const NOTHING = {hurry: null, finish_by: null, ends_at: null, trouble: null, asked_hurry: null, asked_finish_by: null, asked_by: null, asked_at: null, is_planned: true};
test("a run is hurried by what was chosen and typed", () => {
  expect(hurryBody("fast", "")).toEqual({hurry: "fast", finish_by: null});
  expect(hurryBody("", " 06:00 ")).toEqual({hurry: null, finish_by: "06:00"});
  expect(hurryBody("", "")).toEqual({hurry: null, finish_by: null});
});
test("only who may change the run has the form, and what was asked can be taken back", () => {
  const page = (outlook: object, mayEdit: boolean) => renderToStaticMarkup(<Outlook dagId="d" runId="r" outlook={{...NOTHING, ...outlook}} mayEdit={mayEdit} />);
  expect(page({}, true)).toContain('aria-label="Hurry"');
  expect(page({}, true)).not.toContain("Reset");
  expect(page({asked_by: "alice", asked_hurry: 0, asked_at: 0}, true)).toContain("Reset");
  const seen = page({finish_by: 0, ends_at: 60, trouble: "cannot end by 1970-01-01 00:00:00 UTC: about 1970-01-01 00:01:00 UTC at the earliest"}, false);
  expect(seen).not.toContain("Hurry");
  expect(seen).toMatch(/role="alert">It cannot end by/);
});

test("the axis of a run has few round times, and none where there is no room for it", () => {
  expect(ticksOf({since: 1000, until: 1000 + 3 * 3600})).toEqual([3600, 7200]);
  for (const seconds of [7, 61, 4000, 50_000, 3e6, 4e7]) {
    const found = ticksOf({since: 1234, until: 1234 + seconds});
    expect(found.length).toBeLessThanOrEqual(5);
    expect(found.every((at) => at >= 1234 && at < 1234 + seconds)).toBe(true);
  }
});
test("a limit says how much of it is used, in its unit", () => {
  expect(limitLine({name: "max_allocations", text: "8", used: 7, most: 8, coming: 0, is_reached: false})).toBe("max_allocations: 7 of 8");
  expect(limitLine({name: "max_instances", text: "10", used: 10, most: 10, coming: 2, is_reached: true})).toBe("max_instances: 10 of 10, 2 of them ordered or booting");
  expect(limitLine({name: "max_usd_per_hour", text: "10 USD", used: 9.6, most: 10, coming: 0, is_reached: false})).toBe("max_usd_per_hour: $9.60 of $10.00");
  expect(limitLine({name: "max_usd_per_hour", text: "10 USD", used: 9.6, most: 10, coming: 0, is_reached: true})).toBe("max_usd_per_hour: $9.60 of $10.00, too little is left");
  expect(limitLine({name: "queue", text: "batch", used: null, most: null, coming: 0, is_reached: false})).toBe("queue = batch");
});
test("sites that need somebody come first, the others as the sites file has them", () => {
  const site = (name: string, state: string, full_because: string | null = null, idle_nodes: number | null = null, used = 0) => ({name, state, full_because, idle_nodes, limits: [{name: "max_jobs", text: "9", used, most: 9, is_reached: used >= 9}]}) as SiteState;
  const sites = [site("a", "up"), site("b", "up", "full"), site("c", "paused", "full"), site("d", "degraded", "full"), site("e", "up"), site("f", "down")];
  expect(ranked(sites).map(({name}) => name).join("")).toBe("fdbcae");
  const busy = [site("a", "up", null, 3), site("b", "up", null, 0), site("c", "up", null, null, 9), site("d", "down")];
  expect(ranked(busy).map(({name}) => name).join(""), "those without a free node or at a limit come next").toBe("dbca");
});
test("tries that were repeated are no alarm, tasks that failed are", () => {
  vi.stubGlobal("document", {baseURI: "http://localhost/"});
  const tile = (failed: number, failed_tasks: number | null) => renderToStaticMarkup(<FailedTile summary={{failed, failed_tasks}} />);
  expect(tile(6, 0)).toMatch(/class="tile"[^]*>6<[^]*>0 tasks gave up</);
  expect(tile(6, 1)).toMatch(/class="tile bad"[^]*>6<[^]*>1 task gave up</);
  expect(tile(6, null)).toContain("how many tasks gave up is unknown");
});
test("a group of failures says what has become of its tasks, and of a single one which try succeeded", () => {
  const task = {since_then: {state: "succeeded", try_number: 2, at: 0}} as never;
  expect(sequels({since_then: {succeeded: 1}, failed_tasks: [task]}, 60)).toEqual([expect.stringMatching(/^try 2 succeeded \d\d:\d\d$/)]);
  expect(sequels({since_then: {succeeded: 2, waits: 1, gave_up: 3}, failed_tasks: [task]}, 60)).toEqual(["3 gave up", "1 is waiting to run again", "2 succeeded"]);
  expect(sequels({since_then: {}, failed_tasks: []}, 60)).toEqual([]);
});
test("a failed task leads to its failed try, or to its right size if no try is known", () => {
  vi.stubGlobal("document", {baseURI: "http://localhost/"});
  const task = {dag_id: "etl", task_id: "load", jobs: 1, advice: null, line: null, run_id: "r1", map_index: 3, try_number: 1, since_then: null};
  expect(renderToStaticMarkup(<Task task={task} />)).toContain("/dags/etl/runs/r1/tasks/load/mapped/3/plugin/lading-task?try_number=1");
  expect(renderToStaticMarkup(<Task task={{...task, advice: "request 2 GiB"}} />)).toContain("/mapped/3/plugin/lading-task?try_number=1");
  expect(renderToStaticMarkup(<Task task={{...task, run_id: null}} />)).toContain("/dags/etl/plugin/lading-dag?task=load");
});
test("what a run cost has its part of idle machines, and none where nothing has a price", () => {
  const billed = {usd_idle: 2, usd_boot: 1} as BillAmounts;
  expect(runCost({usd: 7, billed})).toBe(10);
  expect(runCost({usd: null, billed})).toBeNull();
  const part = (usd: number) => runningPart({usd, cpu_hours: 0, billed: {usd_used: 3, usd_unused: 1} as BillAmounts}, true);
  expect([part(7).value, part(4).value]).toEqual([3, 0]);
});
test("only one machine of a site is shown where one was looked for", () => {
  const machine = (key: string) => [key, {key}] as const, packing = {jobs: new Map([["j", {place: "lab/m1"}]]), machines: new Map([machine("lab/m1"), machine("lab/m10"), machine("hpc/m1")])} as never;
  expect([...only(packing, "lab", null).machines.keys()]).toEqual(["lab/m1", "lab/m10"]);
  expect([...only(packing, "lab", "m1").machines.keys()]).toEqual(["lab/m1"]);
});
const MACHINE = {site: "lab", sort: "machine", state: "up", cpus: 8, memory: 1, usd_per_hour: null, usd: 0, unreachable_since: null};
const BOX = {...MACHINE, key: "lab/box", name: "box", spans: [[100, null, 8]]}, NODE = {...MACHINE, key: "lab/node", name: "node", spans: [[50, null, 8]]};
const CLOUD = {...MACHINE, site: "cloud", sort: "instance", key: "cloud/i-1", name: "i-1", spans: [[100, null, 8]]};
const asking = (...requests: object[]) => pendingOf(requests.map((each, id) => ({id, kind: "drain", by: "carol", done_at: null, ...each})) as never);
const machineRows = (requests: object[], by: "machine" | "state" | "used" = "machine", may = true) => {
  const jobs = new Map([["run", {place: "lab/box", cpus: 2, memory: 1, end: null}], ["ran", {place: "cloud/i-1", cpus: 2, memory: 1, end: 400}]]);
  const packing = {since: 60, jobs, machines: new Map([BOX, NODE, CLOUD].map((each) => [each.key, each]))} as never;
  const page = renderToStaticMarkup(<Machines packing={packing} pending={asking(...requests)} shares={new Map()} now={500} may={may} by={by} descending={false} onSort={() => undefined} />);
  return page.split("<tr").slice(2).map((row) => row.replace(/ href="[^"]*"/g, ""));
};
test("every machine without a job says since when it is idle, also one that was not bought, and idle ones come first", () => {
  vi.stubGlobal("document", {baseURI: "http://localhost/"});
  const [cloud, box, node] = machineRows([]);
  expect(cloud).toMatch(/idle[^]*since /);
  expect(box).not.toContain("idle");
  expect(node, "its last job is older than the chart").toMatch(/idle[^]*before /);
  for (const by of ["state", "used"] as const) expect(machineRows([], by).map((row) => /(lab|cloud)\/[\w-]+/.exec(row)?.[0]), by).toEqual(["cloud/i-1", "lab/node", "lab/box"]);
});
test("a machine can be drained, or says why not, and a request that is open stays visible", () => {
  vi.stubGlobal("document", {baseURI: "http://localhost/"});
  const [cloud, box] = machineRows([]);
  expect(cloud).toContain('aria-label="Select cloud/i-1"');
  expect(cloud).toContain('aria-label="Drain cloud/i-1"');
  expect(box).toContain("Pause lab to give it no more jobs");
  expect(box).not.toContain("checkbox");
  expect(whyNotDrained({sort: "instance", site: "cloud"})).toBeNull();
  const [asked] = machineRows([{target: "cloud/i-1"}]);
  expect(asked).toContain("drain requested by carol");
  expect(asked).not.toMatch(/checkbox|aria-label="Drain/);
  expect(asked).toContain('aria-label="Terminate cloud/i-1"');
  expect(machineRows([{target: "cloud/i-1"}], "machine", false)[0], "also to who may not drain").toContain("drain requested by carol");
  expect(machineRows([{target: "cloud/i-1", done_at: 5}])[0]).not.toContain("requested by");
});

test("a Dag and its task keep their order where one is written from right to left", () => {
  expect(renderToStaticMarkup(<TaskName job={{dag_id: "תחזית", task_id: "fit", map_index: 2}} />)).toBe('<span dir="ltr"><bdi>תחזית</bdi>.<bdi>fit[2]</bdi></span>');
  expect(renderToStaticMarkup(<TaskName job={{dag_id: null, task_id: null, hidden: true}} />)).toContain("another Dag");
});

test("a choice is made beside those of the address, not of what is still drawn", async () => {
  const go = vi.fn();
  vi.stubGlobal("ReactRouterDOM", {useNavigate: () => go, useLocation: () => ({pathname: "/plugin/lading", search: "?state=failed"})});
  vi.stubGlobal("location", {search: "?state=failed&site=hpc"});
  vi.resetModules();
  const {useChoices} = await import("../src/ui/choices");
  let chosen: ReturnType<typeof useChoices> | undefined;
  const Drawn = () => { chosen = useChoices(); return null; };
  renderToStaticMarkup(<Drawn />);
  chosen!.set({sort: "usd"});
  expect(go).toHaveBeenCalledWith("/plugin/lading?state=failed&site=hpc&sort=usd", undefined);
  vi.unstubAllGlobals();
});

test("a run says first how far it is, and when it ends", () => {
  const run = (live: number, failed = 0) => ({totals: {jobs: 2529, live, failed}, states: {running: 28}}) as never;
  const at = 1_800_000_000, end = {expected_end: at + 600, expected_end_span: {since: at + 300, until: at + 1200}, expected_end_basis: "Lading's plan", end_unknown: null};
  expect(progress(run(2428, 3), end, at)).toMatch(/^28 of 2,529 jobs running, 2,400 waiting, 101 finished, of these 3 failed. Expected end: about \d\d:10; between \d\d:05 and \d\d:20, based on Lading's plan\.$/);
  expect(progress(run(2428), null, at), "not loaded yet").toMatch(/101 finished\.$/);
  expect(progress(run(2428), {...end, expected_end: null, expected_end_span: null, end_unknown: "1 job is held"}, at)).toMatch(/Its end is unknown: 1 job is held.$/);
  expect(progress(run(0), null, at)).toBe("All 2,529 jobs finished.");
});
test("a live run says when it ends and based on what, or what holds it", () => {
  const at = 1_800_000_000, run = {expected_end: at + 600, expected_end_span: {since: at + 300, until: at + 1200}, expected_end_basis: "Lading's plan", end_unknown: null};
  expect(endLines(run, at)).toEqual([expect.stringMatching(/^about .*; between .* and /), "based on Lading's plan"]);
  expect(endLines({expected_end: null, expected_end_span: null, expected_end_basis: null, end_unknown: "1 job is held"}, at)).toEqual(["unknown", "1 job is held"]);
});
test("the chart of a run is zoomed within its span", () => {
  const whole = {since: 0, until: 1000};
  expect(firstSpan(whole, 900)).toBe(whole);
  expect(firstSpan(whole, 100), "what ran is seen, however far away the end is").toEqual({since: 0, until: 400});
  expect(zoomed(whole, whole, 0.5)).toEqual({since: 250, until: 750});
  expect(zoomed({since: 250, until: 750}, whole, 1, 1)).toEqual({since: 500, until: 1000});
  expect(zoomed({since: 250, until: 750}, whole, 2)).toBeNull();
  const phases = [{key: "runs", title: "runs", since: 0, until: 100}];
  const task = {task_id: "t", ready_at: null, since: 0, until: 100, expected: null, is_critical: false, tries: [{id: "1", map_index: -1, try_number: 1, state: "succeeded", phases}]} as never;
  expect(renderToStaticMarkup(<Bars task={task} span={{since: 500, until: 1000}} now={2000} />)).not.toContain("<rect");
});
