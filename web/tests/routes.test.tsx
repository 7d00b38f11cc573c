// @vitest-environment happy-dom
// Each view while one of its routes fails, hangs or is slow: the others go on, and what has no answer says so.
import * as React from "react";
import {act} from "react";
import {createRoot, type Root} from "react-dom/client";
import {afterEach, beforeEach, expect, test, vi} from "vitest";
import type {BillPage, PackingChart, RunGantt, Savings, Summary, TryPage, WaitGroups} from "../src/api_types";
import {minute, utcDay} from "../src/format";
import {billSpan} from "../src/pages/bill_span";
import {ANSWERS, NOW} from "./answers";

vi.mock("../src/chart/draw", () => ({loadECharts: () => new Promise(() => undefined), PackingChart: class {}}));

const VIEWS = {
  "Overview": "?view=now", "Waits": "?view=waits", "Machines": "?view=machines", "Jobs": "?view=jobs&state=failed", "Running jobs": "?view=jobs&state=running", "Cost": "?view=cost",
  "the tab of a Dag": {dagId: "etl"}, "the tab of a run": {dagId: "etl", runId: "r1"}, "the tab of a task": {dagId: "etl", runId: "r1", taskId: "load"}, "Home": null,
} as const;
type View = keyof typeof VIEWS;
/** What is asked with an answer of another route: the chart of a run is of the time of the run. */
const NEEDS: Record<string, string> = {"packing": "dags/etl/runs/r1"};
const AWAY = "[data-testid=stale]";
const wait = (seconds: number) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const json = (body: unknown, status = 200) => new Response(JSON.stringify(body), {status});

let isPost = false, posted: Record<string, string> = {};
let answer: (route: string) => Promise<Response>, asked: string[], root: Root, box: HTMLElement;
const text = () => box.textContent ?? "";
const times = (route: string) => asked.filter((each) => each === route).length;
// A view can ask for several bills.
const good = async (question: string) => json(ANSWERS[question.split(" by ")[0]]);
async function pass(seconds: number) { await act(async () => { await vi.advanceTimersByTimeAsync(seconds * 1000); }); }

beforeEach(() => {
  vi.useFakeTimers({now: NOW * 1000});
  vi.stubGlobal("IS_REACT_ACT_ENVIRONMENT", true);
  vi.stubGlobal("fetch", (url: URL, options?: RequestInit) => {
    isPost = options?.method === "POST";
    posted = isPost ? JSON.parse(String(options?.body)) : {};
    const route = decodeURIComponent(url.pathname.replace(/^.*?\/web\/|^.*?\/src\//, "").replace(/^\//, ""));
    const split = url.searchParams.get("split"), question = split ? `${route} by ${split}` : route;
    asked.push(question);
    return answer(question);
  });
  asked = [];
  answer = good;
  document.head.innerHTML = '<base href="http://localhost/">'; // as Airflow's UI has one
  box = document.createElement("div");
  document.body.append(box);
});
afterEach(async () => {
  await act(async () => root.unmount());
  await pass(61);
  box.remove();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/** @param more: further choices in the address */
async function open(view: View, more = "") {
  await import("../src/main");
  const its = VIEWS[view], globals = globalThis as unknown as Record<string, React.ComponentType<Record<string, string>>>;
  if (typeof its === "string") history.replaceState(null, "", `/plugin/lading${its}${more}`);
  const Shown = its === null ? globals["Lading today"] : globals.Lading;
  root = createRoot(box);
  await act(async () => root.render(<Shown {...(typeof its === "string" ? {} : its)} />));
  await pass(1);
}

test.each(Object.keys(VIEWS) as View[])("%s, while each of its routes fails, hangs or is slow in turn", async (view) => {
  await open(view);
  await pass(60);
  const usual = Object.fromEntries([...new Set(asked)].map((route) => [route, times(route)])), routes = Object.keys(usual);
  expect(text()).not.toMatch(/could not be loaded|not updated/i);
  expect(routes.length).toBeGreaterThan(0);
  for (const route of routes) for (const mode of ["fails", "has no connection", "hangs", "is slow"]) {
    await act(async () => root.unmount());
    await pass(61); // until what was answered is forgotten
    asked = [];
    answer = async (each) => {
      if (each !== route) return good(each);
      if (mode === "fails") return json({detail: "on purpose"}, 500);
      if (mode === "has no connection") throw new TypeError("Failed to fetch");
      await wait(mode === "hangs" ? 1e6 : 30);
      return good(each);
    };
    await open(view);
    const which = `${view}, ${route} ${mode}`, why = {"fails": "on purpose", "has no connection": "the API server does not answer"}[mode] ?? "no answer for 20 s";
    if (mode === "hangs" || mode === "is slow") {
      await pass(18);
      expect(text(), which).not.toContain(why);
      await pass(2);
    }
    expect(text(), which).toContain(routes.length > 1 ? `: ${why}` : why);
    // Of a page with one question alone nothing answers.
    if (routes.length > 1) expect(box.querySelector(AWAY), which).toBeNull();
    if (mode === "is slow") {
      await pass(20);
      expect(text(), which).not.toContain(why);
    } else if (mode === "fails") {
      await pass(59);
      expect(times(route), which).toBeLessThanOrEqual(Math.max(6, usual[route]));
      for (const other of routes) if (other !== route && NEEDS[other] !== route) {
        expect(times(other), `${other} while ${which}`).toBeGreaterThanOrEqual(usual[other]);
        expect(times(other), `${other} while ${which}`).toBeLessThanOrEqual(usual[other] + 5);
      }
    }
  }
});

test("what was known stays where a newer answer does not come, and says since when", async () => {
  await open("Waits");
  answer = async (route) => (route === "waits" ? json({}, 500) : good(route));
  await pass(4);
  expect(text()).toMatch(/Not updated since \d\d:\d\d:\d\d: the API server answered 500/);
  expect(text()).toContain("All machines are busy");
  answer = async () => { throw new TypeError("Failed to fetch"); };
  await pass(30);
  expect(box.querySelectorAll(AWAY)).toHaveLength(1);
  expect(text().match(/Not updated/g), "said once, of all").toHaveLength(1);
  answer = good;
  await pass(61);
  expect(text()).not.toContain("Not updated");
});

test("Cost says in order of saving which settings halve the cost of idle cpus, and the same at each site", async () => {
  const bill = ANSWERS["bill"] as BillPage, [row] = bill.rows, [hpc] = bill.idle_sites, day = {since: NOW - 10 * 86400, until: NOW, is_whole: true};
  const at = (site: string, usd: number) => ({...row, kind: "named", site, dag_id: null, total: {...row.total, usd_idle: usd}});
  const lab = {...hpc, site: "lab", usd: 1, cpu_hours: 20, usd_machines: null, cpu_hours_machines: null, idle_seconds: null, machines: 0};
  const of = (advice: BillPage["idle_advice"]) => { answer = async (route) => (route.startsWith("bill") ? json({...bill, periods: [day], idle_since: day.since, split: "site", rows: [at("hpc", 5), at("lab", 1)], idle_sites: [hpc, lab], idle_advice: advice}) : good(route)); };
  const advice = () => [...box.querySelectorAll("[data-testid=idle-advice] > div, [data-testid=idle-advice] li")].map((each) => each.textContent);
  of({cost: 60, changes: [{site: "hpc", now: 300, then: 75, saved: 36}], saved: 36, is_halved: true, rest: []});
  await open("Cost");
  await pass(2);
  expect(advice()).toEqual(["To halve the cost of idle cpus, $6.00 a day: these settings save $3.60 a day, 60 %", "hpc: lower idle_seconds from 300 to 75, saves $3.60 a day"]);
  expect(rowsOf("Idle cpus")).toEqual([
    expect.stringMatching(/^hpc\$5\.00\$3\.004 machines\$2\.00.*Lower idle_seconds from 300 to 75: saves \$3\.60 a day\.$/),
    expect.stringMatching(/^lab\$1\.00unknownunknown.*Not needed to halve the cost of all sites\.$/),
  ]);
  const [above, below] = ["[data-testid=idle-advice]", "section[aria-label='Idle cpus'] table"].map((each) => box.querySelector(each));
  expect(above!.compareDocumentPosition(below!) & Node.DOCUMENT_POSITION_FOLLOWING, "above the table").toBeTruthy();
  await act(async () => root.unmount());
  await pass(61);
  of({cost: 60, changes: [{site: "hpc", now: 300, then: 0, saved: 20}], saved: 20, is_halved: false, rest: [{kind: "busy", sites: ["hpc"], cost: 30}, {kind: "fixed", sites: ["lab"], cost: 10}]});
  await open("Cost");
  await pass(2);
  expect(advice()).toEqual([
    "To halve the cost of idle cpus, $6.00 a day: settings save only $2.00 a day, 33 %",
    "hpc: lower idle_seconds from 300 to 0, saves $2.00 a day",
    "The other $4.00 a day:",
    expect.stringMatching(/^\$3\.00 a day for idle cpus of busy machines at hpc: hurry = "cheap"/),
    expect.stringMatching(/^\$1\.00 a day for machines that Lading does not release at lab: they cost the same without jobs/),
  ]);
});

test("Cost says from when on idle cpus are known, and takes amounts a day from then on", async () => {
  const bill = ANSWERS["bill"] as BillPage, month = {since: NOW - 30 * 86400, until: NOW, is_whole: true};
  answer = async (route) => (route.startsWith("bill") ? json({...bill, periods: [month], idle_since: NOW - 10 * 86400, split: "site", idle_advice: {cost: 60, changes: [], saved: 0, is_halved: false, rest: []}}) : good(route));
  await open("Cost");
  await pass(2);
  expect(box.querySelector("[data-testid=idle-advice]")?.textContent).toMatch(/\$6\.00 a day since .*; earlier records of machines have been deleted \(job_retention_days\): no setting/);
});

test("a search leads to the site, the Dag and the machine of that name", async () => {
  const found = [{dag_id: "lab_nightly", task_id: null, run_id: "r7"}, {dag_id: "lab_nightly", task_id: "align", run_id: null}];
  const machines = [{site: "cloud", name: "lab1", state: "up"}, {site: "cloud", name: "lab2", state: "ended"}];
  const summary = ANSWERS["summary"] as {sites: {name: string}[]};
  answer = async (route) => (route === "jobs" ? json({...(ANSWERS["jobs"] as object), tasks: found, machines}) : route === "summary" ? json({...summary, sites: [{...summary.sites[0], name: "lab", machines: 2}]}) : good(route));
  await open("Jobs", "&q=Lab");
  await pass(2);
  const lines = [...box.querySelectorAll("ul[aria-label=Found] li")];
  expect(lines.map((each) => each.textContent)).toEqual([
    "Site lab, what waits for it", "Dag lab_nightly: runs, cost and right sizes; newest run r7", "Task lab_nightly.align: right size", "Machine cloud/lab1 up chart",
  ]);
  const links = lines.map((each) => [...each.querySelectorAll("a")].map((link) => link.getAttribute("href")?.replace(/^.*?(\/plugin|\/dags)/, "$1")));
  expect(links.slice(0, 3)).toEqual([
    ["/plugin/lading?view=machines&site=lab", "/plugin/lading?view=waits&site=lab"],
    ["/dags/lab_nightly/plugin/lading-dag", "/dags/lab_nightly/runs/r7/plugin/lading-run"],
    ["/dags/lab_nightly/plugin/lading-dag?task=align"],
  ]);
});

const tile = (label: string) => box.querySelector(`[data-tile="${label}"]`)?.textContent ?? "";
const rowsOf = (section: string) => [...box.querySelectorAll(`section[aria-label='${section}'] tbody tr`)].map((each) => each.textContent ?? "");

test("Cost says at its top how many budgets are spent", async () => {
  const summary = ANSWERS["summary"] as {budgets: {name: string; spent: number; most: number}[]}, [budget] = summary.budgets;
  answer = async (route) => (route === "summary" ? json({...summary, budgets: [budget, {...budget, name: "old", spent: 100}]}) : good(route));
  await open("Cost");
  await pass(2);
  expect(tile("Budgets")).toBe("Budgets1 used up1 soon used up; left:old $0.00all $60.00");
  await act(async () => [...box.querySelectorAll<HTMLButtonElement>("[data-tile=Budgets] button")].at(-1)?.click());
  const marked = box.querySelector("section[aria-label='Budgets'] tr.marked");
  expect(marked?.textContent, "the tile leads to the row of the budget").toMatch(/^all/);
  expect(document.activeElement).toBe(marked);
  const section = box.querySelector("section[aria-label='Budgets']");
  expect(section?.querySelector(".head")?.textContent).toContain(`Used and unused cost of their jobs, without idle cpus and booting machines, as of ${minute(NOW - 20)}`);
  expect(rowsOf("Budgets")[1]).toMatch(/since[^$]*\$60\.00.*now \$4\.00 per hourDec/);
  expect(rowsOf("Breakdown")[0], "what budgets count").toContain("$10.00jobs $7.00");
  await pass(61);
  let isFailing = false;
  answer = async (route) => (route !== "summary" ? good(route) : isFailing ? json({}, 500) : json({...summary, budgets: []}));
  await pass(4);
  expect(box.querySelector("section[aria-label='Budgets']")).toBeNull();
  isFailing = true;
  await pass(4);
  expect(box.querySelector("section[aria-label='Budgets']")?.textContent).toContain("There are no budgets.");
});

test("Cost shows the most expensive runs, and not what was charged to no run", async () => {
  const bill = ANSWERS["bill"] as BillPage, row = bill.rows[0];
  const runs = Array.from({length: 7}, (_, index) => ({...row, run_id: `r${index}`}));
  const idle = {...row, kind: "machines" as const, dag_id: null};
  answer = async (route) => (route === "bill by run" ? json({...bill, split: "run", rows: [...runs, {...row, run_id: null}, idle]}) : good(route));
  await open("Cost");
  await pass(2);
  const shown = rowsOf("Most expensive runs");
  expect(shown).toHaveLength(5);
  expect(shown[0]).toContain("r0");
  expect(tile("Most expensive run")).toBe("Most expensive run$10.00etl, r0: see the most expensive runs");
  expect(text()).toContain("All 7 rows");
  const all = [...box.querySelectorAll("a")].find((each) => each.textContent === "More runs");
  expect(all?.getAttribute("href")).toContain("split=run");
  await act(async () => root.unmount());
  await open("Cost", "&split=run");
  expect(rowsOf("Most expensive runs"), "the breakdown has them").toHaveLength(0);
  expect(rowsOf("Breakdown").at(-1)).toContain("not charged to any job");
});

test("nothing of Cost is shown before all of it, unless an answer takes long", async () => {
  answer = async (route) => { if (route === "savings") await wait(2); return good(route); };
  await open("Cost");
  expect([...box.querySelectorAll("section")].map((each) => each.getAttribute("aria-label"))).toEqual(["Cost"]);
  await pass(1.1);
  expect(rowsOf("Savings from right sizes")).toHaveLength(1);
  await act(async () => root.unmount());
  await pass(61);
  answer = async (route) => { if (route === "savings") await wait(60); return good(route); };
  await open("Cost");
  expect(rowsOf("Breakdown")).toHaveLength(0);
  await pass(2.1);
  expect(rowsOf("Breakdown")).toHaveLength(1);
});

test("last week is compared with the week before, and past days have nothing that runs", async () => {
  const bill = ANSWERS["bill"] as BillPage, [row] = bill.rows, {since, until} = billSpan("weeks", NOW), middle = since + 7 * 86400;
  const periods = [{since, until: middle, is_whole: true}, {since: middle, until, is_whole: true}];
  answer = async (route) => (route.startsWith("bill") ? json({...bill, periods, totals: [row.total, row.total], rows: [{...row, dag_id: "steady", usd: [5, 6]}, {...row, usd: [3, 7]}]}) : good(route));
  await open("Cost", "&days=weeks");
  expect(box.querySelector("section[aria-label=Cost] .head")?.textContent).toContain(`${utcDay(since)} to ${utcDay(until - 1)}, UTC`);
  expect(rowsOf("Breakdown")[0]).toMatch(/^etl\$3\.00\$7\.00\+\$4\.00 \(\+133 %\)/);
  expect(tile("Difference")).toBe(`Differenceno difference${utcDay(middle)} to ${utcDay(until - 1)} against ${utcDay(since)} to ${utcDay(middle - 1)}`);
  expect([tile("Rose most"), rowsOf("Breakdown")[1].slice(0, 6)], "what rose most comes first").toEqual(["Rose most+$4.00 (+133 %)etl", "steady"]);
  const sections = [...box.querySelectorAll("section")].map((each) => each.getAttribute("aria-label"));
  expect(sections.slice(0, 2), "what is compared comes first").toEqual(["Cost", "Breakdown"]);
  expect(tile(`${utcDay(since)} to ${utcDay(until - 1)}`)).toContain("$10.00");
  expect(tile("Of this, still running")).toBe("");
});

test("Cost shows what last week cost more than the week before, and its tiles are in the order of what is asked", async () => {
  const bill = ANSWERS["bill"] as BillPage, [row] = bill.rows, {since, until} = billSpan("weeks", NOW), middle = since + 7 * 86400;
  const periods = [{since, until: middle, is_whole: true}, {since: middle, until, is_whole: true}], less = {...row.total, usd: 8, usd_used: 2};
  answer = async (route) => (route === "bill by team" ? json({...bill, periods, totals: [less, row.total]}) : route === "bill by run" ? json({...bill, split: "run", rows: [{...row, run_id: "r1"}]}) : good(route));
  await open("Cost");
  await pass(2);
  expect(tile(`Last week, ${utcDay(middle)} to ${utcDay(until - 1)}`)).toMatch(/\$10\.00\+\$2\.00 \(\+25 %\) against the week before; compare$/);
  expect(box.querySelector("[data-tile^='Last week'] a")?.getAttribute("href")).toContain("days=weeks");
  const tiles = [...box.querySelectorAll<HTMLElement>("[data-tile]")].map((each) => each.dataset.tile?.replace(/(until now|,|by the end).*/, "").trim());
  expect(tiles.slice(1)).toEqual(["Expected", "Used", "Requested but unused", "Idle cpus", "Booting machines", "Budgets", "Last week", "Most expensive run", "Savings from right sizes", "Of this"]);
});

test("the line to paste is in the row of its task", async () => {
  const bill = ANSWERS["bill"] as BillPage, [row] = bill.rows;
  answer = async (route) => (route.startsWith("bill by task") ? json({...bill, split: "task", rows: [{...row, task_id: "load"}, {...row, task_id: "other"}]}) : good(route));
  await open("Cost", "&split=task");
  await pass(2);
  expect(rowsOf("Breakdown")[0]).toMatch(/^etl\.loadresources\(cpus=1\)Copy/);
  expect(rowsOf("Breakdown")[1]).not.toContain("Copy");
  await act(async () => box.querySelector<HTMLButtonElement>("[data-tile='Savings from right sizes'] .to")?.click());
  expect(box.querySelector("tr.marked")?.textContent).toMatch(/^etl\.loadresources\(cpus=1\)Copy/);
  await act(async () => root.unmount());
  await open("the tab of a Dag");
  await pass(2);
  expect(rowsOf("Right sizes")[0], "saves as much as on Cost").toContain("$5.006 cpu-h7 GiB-h");
  await act(async () => [...box.querySelectorAll("button")].find((each) => each.textContent === "Right sizes of its tasks")?.click());
  expect(document.activeElement?.getAttribute("aria-label")).toBe("Right sizes");
});

test("a link that names a task opens its right size, once all above it is loaded", async () => {
  const bill = ANSWERS["bill"] as BillPage, [row] = bill.rows;
  answer = async (route) => (route.startsWith("bill by task") ? json({...bill, split: "task", rows: [{...row, dag_id: "etl", task_id: "load"}]}) : good(route));
  await open("Cost", "&split=task");
  await pass(2);
  const links = [...box.querySelectorAll<HTMLAnchorElement>("a[aria-label='etl.load']")].map(({href}) => new URL(href));
  expect(links.map(({pathname, search}) => pathname + search)).toEqual(Array(2).fill("/dags/etl/plugin/lading-dag?task=load"));
  await act(async () => root.unmount());
  answer = async (route) => { if (route === "dags/etl/runs") await wait(5); return good(route); };
  history.replaceState(null, "", links[0].pathname + links[0].search);
  await open("the tab of a Dag");
  await pass(2);
  expect(box.querySelector("tr.marked")).toBeNull();
  await pass(5);
  expect(box.querySelector("section[aria-label='Right sizes'] tr.marked")?.textContent).toMatch(/^load/);
  expect(document.activeElement?.getAttribute("data-row")).toBe("load");
  history.replaceState(null, "", "/");
});

test("what an amount consists of is shown as text, too", async () => {
  await open("Cost", "&days=week");
  await pass(2);
  const cell = box.querySelector("table[aria-label='Costs by Dag'] td[data-title='How it was spent']");
  expect(cell?.textContent).toMatch(/^used \$\d+\.\d\dunused \$/);
});

test("a phone shows fewer rows of a table", async () => {
  const bill = ANSWERS["bill"] as BillPage, rows = Array.from({length: 9}, (_, index) => ({...bill.rows[0], dag_id: `d${index}`}));
  answer = async (route) => (route.startsWith("bill") ? json({...bill, rows}) : good(route));
  vi.stubGlobal("matchMedia", () => ({matches: true}));
  await open("Cost");
  expect(rowsOf("Breakdown")).toHaveLength(5);
  expect(text()).toContain("All 9 rows");
});

test("this month has its cost, and the cost expected by its end", async () => {
  const bill = ANSWERS["bill"] as BillPage, {since} = billSpan("month", NOW);
  const of = (began: number) => { answer = async (route) => (route.startsWith("bill") ? json({...bill, periods: [{...bill.periods[0], since: began}]}) : good(route)); };
  of(since - 86400);
  await open("Cost", "&days=month&by=week");
  expect(tile("This month"), "more than the month").toBe("");
  await act(async () => root.unmount());
  await pass(61);
  of(since);
  await open("Cost", "&days=month");
  expect(tile("This month")).toContain("$10.00");
  const {expected} = bill;
  expect(tile(`Expected by the end of ${utcDay(expected!.until - 1)}`)).toContain(`≈ $1,230$10.00 so far; $500.00 for later jobs, at $100.00 a day, the mean since ${utcDay(expected!.since)}`);
});

test("Overview and Cost say the same of today", async () => {
  const bill = ANSWERS["bill"] as BillPage, {since} = billSpan(0, NOW);
  answer = async (route) => (route.startsWith("bill") ? json({...bill, periods: [{...bill.periods[0], since}]}) : good(route));
  await open("Overview");
  expect(tile("Today")).toBe("Today$10.00$2.00 of this for idle cpus");
  await act(async () => root.unmount());
  await open("Cost", "&days=0");
  expect(tile("Today")).toContain("$10.00");
  expect(tile("Idle cpus")).toContain("$2.00");
  expect(tile("Of this, still running")).toBe("Of this, still running$2.001 job and the machines that are up");
});

test("savings show what is requested and what the line requests, are sorted by memory too, and their line is copied", async () => {
  const savings = ANSWERS["savings"] as Savings, [task] = savings.tasks;
  const large = {...task, task_id: "fit", usd: 1, gib_hours: 900, memory_asked: 65_536, line: "resources(memory='1 GiB')"};
  answer = async (route) => (route === "savings" ? json({...savings, tasks: [task, large]}) : good(route));
  await open("Cost");
  expect(rowsOf("Savings from right sizes").map((each) => each.slice(0, 8))).toEqual(["etl.load", "etl.fitr"]);
  expect([...box.querySelectorAll("section[aria-label='Savings from right sizes'] th button")].map((each) => each.textContent)).toEqual(["Memory, requested → in the line", "cpus, requested → in the line", "USD a month ▾"]);
  await act(async () => root.unmount());
  await open("Cost", "&saved=memory");
  const [first] = rowsOf("Savings from right sizes");
  expect(first).toMatch(/^etl\.fit.*64 GiB → 2 GiBsaves 900 GiB-hours4 → 1saves 6 cpu-hours\$1\.00$/);
  const copied: string[] = [];
  vi.stubGlobal("navigator", {clipboard: {writeText: async (line: string) => { copied.push(line); }}});
  await act(async () => box.querySelector<HTMLButtonElement>("button[aria-label='Copy the line for etl.fit']")?.click());
  expect(copied).toEqual([large.line]);
  expect(text()).toContain("copied");
});

test("a browser without a clipboard copies what is selected, or says that it does not", async () => {
  await open("Cost");
  vi.stubGlobal("navigator", {});
  const press = () => act(async () => box.querySelector<HTMLButtonElement>("button[aria-label='Copy the line for etl.load']")?.click());
  let selected = "";
  document.execCommand = () => { selected = document.querySelector("textarea")?.value ?? ""; return true; };
  await press();
  expect(selected).toBe("resources(cpus=1)");
  document.execCommand = () => false;
  await press();
  expect(text()).toContain("Could not be copied");
  expect(document.querySelector("textarea")).toBeNull();
});

test("a machine that boots is not shown as up, and rows that add up nodes are explained", async () => {
  const chart = ANSWERS["packing"] as PackingChart, machine = chart.machines[0];
  answer = async (route) => (route === "packing" ? json({...chart, places: ["sge/n1"], queues: {sge: null}, machines: [machine, {...machine, key: "hpc/L2", name: "L2", state: "booting"}]}) : good(route));
  await open("Machines");
  await pass(2);
  const [up, boots] = rowsOf("Machines");
  expect(boots).toContain("ordered ");
  expect(up).not.toContain("ordered ");
  expect(text()).toContain("Rows in bold add up machines or nodes");
});

test("live runs are folded unless running jobs are shown, and loaded once they are shown", async () => {
  await open("Jobs");
  expect(times("live-runs")).toBe(0);
  await act(async () => box.querySelector<HTMLButtonElement>("button[aria-label='Show live runs']")?.click());
  await pass(1);
  expect(rowsOf("Live runs")).toHaveLength(1);
  await act(async () => root.unmount());
  await open("Running jobs");
  expect(rowsOf("Live runs")).toHaveLength(1);
});

test("with a site chosen, Waits counts and lists only what waits for it", async () => {
  await open("Waits", "&site=hpc");
  expect(text()).toContain("All 5 jobs");
  expect(rowsOf("Waits by size")).toHaveLength(1);
  await act(async () => root.unmount());
  await open("Waits", "&site=lab");
  expect(text()).toContain("All 0 jobs");
  expect(rowsOf("Waits by size")).toHaveLength(0);
});

test("the accuracy of expected starts names every source of an estimate", async () => {
  await open("Waits");
  await pass(1);
  const lines = [...box.querySelectorAll("section[aria-label='Accuracy of expected starts'] p")].map((each) => each.textContent);
  const none = "no job with such an estimate started in the last 30 days.";
  expect(lines[0]).toMatch(/^Lading's plan: 90 % of 10 jobs/);
  expect(lines.slice(1)).toEqual([`The batch system's estimate: ${none}`, `The position in the queue: ${none}`, `The waits of earlier tries: ${none}`]);
});

test("a search without other filters names none", async () => {
  answer = async (route) => (route === "jobs" ? json({...(ANSWERS["jobs"] as object), jobs: [], matching: 0}) : good(route));
  await open("Jobs", "&q=nonsense");
  expect(text()).toContain("No job matches “nonsense” and the other filters.");
  await act(async () => root.unmount());
  await openUnfiltered("nonsense");
  expect(text()).toContain("No job matches “nonsense”.");
});

/** @param q - the search */
async function openUnfiltered(q: string) {
  history.replaceState(null, "", `/plugin/lading?view=jobs&q=${q}`);
  root = createRoot(box);
  const {Lading} = globalThis as unknown as Record<string, React.ComponentType>;
  await act(async () => root.render(<Lading />));
  await pass(1);
}

test("a search for a map index without a record says which ones have records, or match the other filters", async () => {
  const map_indexes = [{dag_id: "genomes", task_id: "align", first: 0, last: 1839, recorded: 1210}, {dag_id: "etl", task_id: "align", first: 2, last: 2, recorded: 1}];
  const recorded = "genomes.align with 1,210 map indexes between 0 and 1839; etl.align with only map index 2.";
  answer = async (route) => (route === "jobs" ? json({...(ANSWERS["jobs"] as object), jobs: [], matching: 0, map_indexes}) : good(route));
  await open("Jobs", "&q=align+1700");
  expect(text()).toContain(`No job with this map index matches the other filters. Matching: ${recorded}`);
  await act(async () => root.unmount());
  await openUnfiltered("align+1700");
  expect(text()).toContain(`Lading has no record of a job with this map index: it has not been queued, it was not run by Lading, or its record has been purged (job_retention_days). Recorded: ${recorded}`);
});

test("a group of waiting jobs of several Dags says on request when the jobs of each start", async () => {
  const waits = ANSWERS["waits"] as WaitGroups, [group] = waits.groups;
  answer = async (route) => (route === "waits" ? json({...waits, groups: [{...group, dags: [{dag_id: "etl", jobs: 3}, {dag_id: "nightly", jobs: 2}], dags_total: 2}]}) : good(route));
  await open("Waits");
  await pass(2);
  expect(times("waits/dags"), "not before").toBe(0);
  const button = [...box.querySelectorAll("button")].find((each) => each.textContent?.includes("Starts by Dag"));
  await act(async () => button?.click());
  await pass(1);
  const cell = box.querySelector("section[aria-label='Waiting jobs'] td[data-title=Dags]");
  expect(cell?.textContent).toContain(`etl 3first about ${minute(NOW + 60)}, last about ${minute(NOW + 3000)}nightly 2first about ${minute(NOW + 600)}, last unknown`);
  expect(cell?.querySelector("a")?.getAttribute("href")).toMatch(/reason=machine_full.*&dag=etl&sort=starts$/);
  expect(box.querySelector("section[aria-label='Waits by size']")?.textContent, "as many as the API says").toContain("of the latest 4,000 batch jobs and 4,000 machines");
});

test("a group of one Dag has no button for the starts of each", async () => {
  await open("Waits");
  await pass(2);
  expect(text()).not.toContain("Starts by Dag");
});

test("while no controller is running each view and tab says so at its top, and as of when its contents are", async () => {
  const summary = ANSWERS["summary"] as Summary, sites = summary.sites.map((site) => ({...site, contact_at: NOW - 600}));
  answer = async (route) => (route === "summary" ? json({...summary, controller_lives: false, sites}) : good(route));
  for (const view of ["Overview", "Waits", "Machines", "Jobs", "Cost", "the tab of a Dag", "the tab of a run", "the tab of a task"] as const) {
    await open(view);
    await pass(2);
    expect(box.querySelector("header [role=alert]")?.textContent, view).toContain(`No controller is running: no jobs are started. The states of sites and machines and the reasons for waits are as of ${minute(NOW - 600)}.`);
    await act(async () => root.unmount());
  }
  answer = good;
  await pass(61);
  await open("Waits");
  await pass(2);
  expect(text()).not.toContain("No controller");
});

test("the tab of a task shows the try whose log was seen first, and offers the others", async () => {
  const tries = ANSWERS["dags/etl/runs/r1/tasks/load"] as TryPage, [job] = tries.jobs;
  const jobs = [["3", 3, "running"], ["2", 2, "failed"], ["1", 1, "failed"]].map(([id, try_number, state]) => ({...job, id, try_number, state}));
  answer = async (route) => (route.endsWith("/tasks/load") ? json({...tries, jobs}) : good(route));
  const titles = () => [...box.querySelectorAll("section")].map((section) => section.getAttribute("aria-label"));
  const url = "http://localhost/dags/etl/runs/r1/tasks/load";
  document.head.innerHTML = '<base href="/">'; // the address changes only within its origin
  vi.stubGlobal("navigation", {entries: () => [`${url}?try_number=2`, `${url}/plugin/lading-task`].map((each) => ({url: each})), currentEntry: {index: 1}});
  history.replaceState(null, "", "/dags/etl/runs/r1/tasks/load/plugin/lading-task");
  await open("the tab of a task");
  await pass(2);
  expect(titles()).toEqual(["Try 2", "Try 3", "Try 1"]);
  const buttons = [...box.querySelectorAll("button")].filter((button) => button.textContent?.startsWith("try "));
  expect(buttons.map((button) => `${button.textContent} ${button.getAttribute("aria-pressed")}`)).toEqual(["try 1: failed false", "try 2: failed true", "try 3: running false"]);
  await act(async () => buttons[0].click());
  await pass(1);
  expect(titles()).toEqual(["Try 1", "Try 3", "Try 2"]);
  expect(location.search).toContain("try_number=1");
  history.replaceState(null, "", "/plugin/lading");
});

test("the tab of a task shows the try that was clicked first", async () => {
  const tries = ANSWERS["dags/etl/runs/r1/tasks/load"] as TryPage, [job] = tries.jobs;
  answer = async (route) => (route.endsWith("/tasks/load") ? json({...tries, jobs: [2, 1].map((number) => ({...job, id: String(number), try_number: number}))}) : good(route));
  const titles = () => [...box.querySelectorAll("section")].map((each) => each.getAttribute("aria-label"));
  await open("the tab of a task");
  expect(titles()).toEqual(["Try 2", "Try 1"]);
  await act(async () => root.unmount());
  history.replaceState(null, "", "/plugin/lading?try_number=1");
  await open("the tab of a task");
  expect(titles()).toEqual(["Try 1", "Try 2"]);
  history.replaceState(null, "", "/plugin/lading");
});

test("a task that only waits has no percentage of its last run", async () => {
  const gantt = ANSWERS["dags/etl/runs/r1/gantt"] as RunGantt, [task] = gantt.tasks;
  const of = (started_at: number | null) => { answer = async (route) => (route.endsWith("/gantt") ? json({...gantt, tasks: [{...task, started_at}]}) : good(route)); };
  of(null);
  await open("the tab of a run");
  expect(rowsOf("Timeline")[0]).toMatch(/waiting 15 minlast 12 min(?!now)/);
  await act(async () => root.unmount());
  await pass(61);
  of(NOW - 800);
  await open("the tab of a run");
  expect(rowsOf("Timeline")[0]).toMatch(/15 minlast 12 minnow \+29 %/);
});

test("idle machines are listed first after one click, by a button or by the column of what is requested", async () => {
  document.head.innerHTML = '<base href="/">'; // the address changes only within its origin
  const chart = ANSWERS["packing"] as PackingChart, machine = chart.machines[0];
  answer = async (route) => (route === "packing" ? json({...chart, machines: [machine, {...machine, key: "hpc/L2", name: "L2"}]}) : good(route));
  await open("Machines");
  await pass(2);
  const first = () => /hpc\/L\d/.exec(rowsOf("Machines")[0])?.[0];
  expect(first()).toBe("hpc/L1");
  expect(text()).toContain("2 up, 1 idle machine");
  expect(text()).toContain("Tick machines to drain them together");
  for (const name of ["Idle first", "cpus, memory requested / up"]) {
    const press = () => act(async () => [...box.querySelectorAll("button")].find((each) => each.textContent?.startsWith(name))?.click());
    await press();
    await pass(1);
    expect(first(), name).toBe("hpc/L2");
    await press();
    await pass(1);
    expect(first(), name).toBe("hpc/L1");
  }
});

test("a share that exceeds what is reserved for it says so there, and not at its part by weight", async () => {
  const summary = ANSWERS["summary"] as Summary, [share] = summary.shares!;
  const lent = {...share, name: "data", used: 0.4, entitled: 0.25, guarantees: [], is_over: false};
  answer = async (route) => (route === "summary" ? json({...summary, shares: [lent, {...share, used: 0.25}]}) : good(route));
  await open("Overview");
  expect(rowsOf("Shares")).toEqual([expect.stringMatching(/^genomics.*etl 3.*over what is reserved12 cpus of 8 cpus at hpc25 % of 50 %/), expect.stringMatching(/^data.*nothing is reserved.*over its part by weight40 % of 25 %/)]);
});

test("jobs without a team have a row, so that teams add up", async () => {
  const summary = ANSWERS["summary"] as Summary;
  answer = async (route) => (route === "summary" ? json({...summary, teams: [...summary.teams, {name: null, running: 2, waiting: 3, cpus_used: 8}]}) : good(route));
  await open("Overview");
  expect(rowsOf("Teams")).toEqual(["genomics124", "no team238"]);
});

test("idle machines are drained together, after one question", async () => {
  const chart = ANSWERS["packing"] as PackingChart, machine = chart.machines[0];
  const idle = ["L2", "L3"].map((name) => ({...machine, key: `hpc/${name}`, name}));
  const sent: string[] = [];
  answer = async (route) => {
    if (route === "packing") return json({...chart, machines: [machine, ...idle]});
    if (route === "requests" && isPost) { sent.push(posted.target); return json({}, 202); }
    return good(route);
  };
  await open("Machines");
  await pass(2);
  const button = (name: string) => [...box.querySelectorAll("button")].find((each) => each.textContent === name);
  await act(async () => button("Drain 2 idle machines")?.click());
  expect(sent).toEqual([]);
  await act(async () => box.querySelector<HTMLButtonElement>("[role=alertdialog] button")?.click());
  await pass(1);
  expect(sent).toEqual(["hpc/L2", "hpc/L3"]);
});

test("selected machines are drained together, after one question, and say so while that is open", async () => {
  const chart = ANSWERS["packing"] as PackingChart, machine = chart.machines[0];
  const names = ["hpc/L1", "hpc/L2", "hpc/L3"], sent: string[] = [];
  answer = async (route) => {
    if (route === "packing") return json({...chart, machines: names.map((key) => ({...machine, key, name: key.slice(4)}))});
    if (route === "requests" && isPost) { sent.push(posted.target); return json({}, 202); }
    if (route === "requests") return json(sent.map((target, id) => ({id, kind: "drain", target, by: "carol", at: NOW, done_at: null, outcome: null})));
    return good(route);
  };
  await open("Machines");
  await pass(2);
  const button = (name: string) => [...box.querySelectorAll("button")].find((each) => each.textContent === name);
  const checkbox = (key: string) => box.querySelector<HTMLInputElement>(`input[aria-label='Select ${key}']`);
  for (const key of ["hpc/L1", "hpc/L2", "hpc/L3"]) await act(async () => checkbox(key)?.click());
  await act(async () => checkbox("hpc/L2")?.click());
  await act(async () => button("Drain 2 machines")?.click());
  expect(text()).toContain("Drain hpc/L1, hpc/L3? ");
  expect(sent).toEqual([]);
  await act(async () => box.querySelector<HTMLButtonElement>("[role=alertdialog] button")?.click());
  await pass(6);
  expect(sent).toEqual(["hpc/L1", "hpc/L3"]);
  expect(text().match(/drain requested by carol/g)).toHaveLength(2);
  expect([checkbox("hpc/L1"), checkbox("hpc/L2")?.checked]).toEqual([null, false]);
});

test.each(Object.keys(VIEWS) as View[])("%s: in CSV numbers are numbers, and times are in UTC with their year", async (view) => {
  const files: Blob[] = [];
  vi.spyOn(URL, "createObjectURL").mockImplementation((blob) => { files.push(blob as Blob); return "blob:"; });
  await open(view);
  await pass(5);
  const tables = [...box.querySelectorAll<HTMLButtonElement>("button[aria-label$=' as CSV']")].filter((button) => !button.ariaLabel?.startsWith("Jobs"));
  for (const button of tables) { await act(async () => button.click()); await pass(1); }
  expect(files).toHaveLength(tables.length);
  for (const file of files) {
    const [head, ...rows] = (await file.text()).split("\r\n").map((line) => [...line.matchAll(/(?:^|,)(?:"((?:[^"]|"")*)"|([^,]*))/g)].map(([, quoted, plain]) => quoted ?? plain));
    expect(rows.length, head.join()).toBeGreaterThan(0);
    for (const row of rows) row.forEach((cell, at) => {
      expect(cell, head[at]).not.toMatch(/^[$]?[\d,.]+ ?(%|s|min|h|days|GiB|MiB|cpu-h|GiB-h)$|^\d{1,3}(,\d{3})+$|^[$]\d|^[A-Z][a-z]{2} \d+|^\d\d:\d\d|^–$/);
      if (/^\d{4}-/.test(cell)) expect(cell).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$/);
    });
  }
  vi.restoreAllMocks();
});

test("who is logged out is told so, and who may not see the page sees nothing on Home", async () => {
  answer = async () => json({detail: "Not authenticated"}, 401);
  await open("Overview");
  await pass(1);
  expect(box.querySelector(`${AWAY} a`)?.textContent).toBe("Log in");
  await act(async () => root.unmount());
  answer = async () => json({detail: "Forbidden"}, 403);
  await open("Home");
  await pass(5);
  expect(text()).toBe("");
});
