import {expect, test} from "vitest";
import type {ChartMachine, PackingChart} from "../src/api_types";
import {machineTip} from "../src/chart/draw";
import {asked, merged, windowOfRun} from "../src/chart/packing";
import {MOMENTS, Levels, beginning, idleShare, reachedSpans, rowsOf, seriesOf, sharesOf} from "../src/chart/rows";

const DAY = 86400, NOW = 1_800_000_000, HOUR = {seconds: 3600};
const machine = {key: "local/host", site: "local", state: "up", usd_per_hour: 2, spans: [[NOW - 3600, null, 16]]} as unknown as ChartMachine;
const ORIGIN = NOW - 7200, STATES = ["running", "succeeded"];
type Job = {id: string; place: number; cpus: number; nodes: number; start: number; end: number | null; name: number};
const job = (id: string, place: number, cpus: number, nodes: number, start: number, end: number | null = null, name = 0): Job => ({id, place, cpus, nodes, start, end, name});
const answer = (now: number, jobs: Job[] = [], machines: ChartMachine[] = [], more: Partial<PackingChart> = {}): PackingChart => ({
  now, cursor: now, since: 0, until: 0, truncated: false, origin: ORIGIN, places: ["local/host", "sge/n1", "free/n2", "sge/n3"], names: [["d", "r", "t"], ["d", "mine", "t"]], states: STATES,
  jobs: {
    id: jobs.map(({id}) => id), place: jobs.map(({place}) => place), name: jobs.map(({name}) => name), map_index: jobs.map(() => -1), try_number: jobs.map(() => 1), lane: jobs.map(() => 0),
    cpus: jobs.map(({cpus}) => cpus), memory: jobs.map(({cpus}) => 4096 * cpus), peak: jobs.map(({cpus, start, end}) => (end === null && NOW - start < 60 ? null : 1024 * cpus)), nodes: jobs.map(({nodes}) => nodes), started: jobs.map(({start}) => start - ORIGIN), ended: jobs.map(({end}) => (end === null ? null : end - ORIGIN)),
    state: jobs.map(({end}) => (end === null ? 0 : 1)),
  },
  machines, queues: {sge: 0.5, free: null}, ...more,
}) as PackingChart;

test("the window of a run is its own time, however old it is", () => {
  const began = NOW - 20 * DAY, {since, until} = asked(windowOfRun(began, began + 3600), NOW);
  expect(since < began && began + 3600 < until && until < NOW - 19 * DAY).toBe(true);
  expect(asked(windowOfRun(NOW - 10 * DAY, null), NOW)).toEqual({since: NOW - 10 * DAY - 60, until: NOW + 60});
  const long = asked(windowOfRun(NOW - 90 * DAY, null), NOW);
  expect(long.until - long.since).toBe(31 * DAY);
  expect(asked(HOUR, NOW)).toEqual({since: NOW - 3600, until: NOW + 60});
});

test("memory that jobs were promised, and used, is drawn beside what is up, as cpus are", () => {
  const large = {...machine, memory: 65_536} as ChartMachine;
  const jobs = [job("a", 0, 2, 1, NOW - 1800), job("b", 1, 4, 2, NOW - 1800)];
  const found = merged(null, answer(NOW, jobs, [large]), HOUR), series = seriesOf(found, NOW - 3600, "memory");
  const last = (points: [number, number][] | null) => points?.at(-1)?.[1];
  expect([last(series.used), last(series.peaks), last(series.up), last(series.batch)].map((value) => Math.round(value ?? 0))).toEqual([8, 2, 64, 32]);
  const cpus = seriesOf(found, NOW - 3600);
  expect([last(cpus.used), last(cpus.up), last(cpus.batch)].map((value) => Math.round(value ?? 0))).toEqual([2, 16, 8]);
  expect(cpus.peaks).toBeNull();
  expect(last(series.usd), "money is no memory").toBe(last(cpus.usd));
});

test("what is drawn of an old window ends with it", () => {
  const began = NOW - 20 * DAY, window = windowOfRun(began, began + 60);
  const old = {...machine, spans: [[began - DAY, null, 16]]} as unknown as ChartMachine;
  const found = merged(null, answer(NOW, [job("a", 0, 2, 1, began, began + 60)], [old]), window);
  expect(found.until).toBe(began + 120);
  expect(found.jobs.size).toBe(1);
  expect(sharesOf(found).get("local/host")).toEqual({used: 120, up: 180 * 16});
  expect(idleShare(sharesOf(found))).toBeCloseTo(1 - 120 / (180 * 16));
  expect(beginning(found)).toBe(began - 60);
  expect(merged(found, answer(NOW + DAY), window), "time does not move it").toBe(found);
});

test("it is drawn anew where something has come, and else in steps of time", () => {
  const first = merged(null, answer(NOW, [job("a", 0, 1, 1, NOW - 60)], [machine]), HOUR);
  expect(merged(first, answer(NOW + 3, [job("a", 0, 1, 1, NOW - 60)], [{...machine}]), HOUR), "what is told again is nothing new").toBe(first);
  expect(merged(first, answer(NOW + 30), HOUR)).toBe(first);
  const moved = merged(first, answer(NOW + 40), HOUR);
  expect(moved).not.toBe(first);
  expect(moved.until).toBe(NOW + 40);
  const ended = merged(moved, answer(NOW + 41, [job("a", 0, 1, 1, NOW - 60, NOW + 41)]), HOUR);
  expect(ended).not.toBe(moved);
  expect(ended.jobs.get("a")?.state).toBe("succeeded");
  expect(merged(ended, answer(NOW + 42, [], [{...machine, state: "gone"}]), HOUR)).not.toBe(ended);
  expect(merged(ended, answer(NOW + 4000), HOUR).jobs.size, "what has left the window is forgotten").toBe(0);
});

test("what is ordered or boots is not up, and costs where it is paid for", () => {
  const boots = {...machine, key: "cloud/new", state: "booting", usd_since: null} as unknown as ChartMachine, paid = {...boots, key: "cloud/paid", usd_since: NOW - 3600} as ChartMachine;
  const found = merged(null, answer(NOW, [], [machine, boots, paid]), HOUR), series = seriesOf(found, found.since);
  expect([series.up[300][1], series.usd?.[300][1]].map((each) => Math.round(each ?? 0))).toEqual([16, 4]);
  expect([...sharesOf(found).keys()]).toEqual(["local/host"]);
  expect(rowsOf(found, undefined, {"local:machines": false, "cloud:machines": false}).rows.find(({group}) => group === "cloud:machines")?.density?.up[300]).toBe(0);
});

test("a machine that cannot be reached is not up from then on, but still costs", () => {
  const lost = {...machine, key: "local/lost", unreachable_since: NOW - 1800} as ChartMachine;
  const found = merged(null, answer(NOW, [], [machine, lost]), HOUR), series = seriesOf(found, found.since);
  const at = (points: [number, number][] | null, moment: number) => Math.round(points?.[moment][1] ?? 0);
  expect([at(series.up, 10), at(series.up, MOMENTS - 1)]).toEqual([32, 16]);
  expect(at(series.usd, MOMENTS - 1)).toBe(4);
  expect(rowsOf(found, undefined, {"local:machines": false}).rows[0].density?.up.map(Math.round).at(-1)).toBe(16);
  expect(reachedSpans(lost)).toEqual({reached: [[NOW - 3600, NOW - 1800, 16]], silent: [[NOW - 1800, null, 16]]});
  expect(reachedSpans({spans: [[NOW - 60, null, 16]], unreachable_since: NOW - 90})).toEqual({reached: [], silent: [[NOW - 60, null, 16]]});
});

test("an id is that of a batch job at sites with a queue only", () => {
  const machine = {key: "cloud/L1", site: "cloud", state: "up", cpus: 8, memory: 1024, usd_per_hour: null, native_id: "i-000a", reason: null} as never;
  expect(machineTip(machine, false)).toMatch(/<br>i-000a$/);
  expect(machineTip(machine, true)).toContain("batch job i-000a");
});
test("batch jobs have a line of their own, and cost", () => {
  const jobs = [job("a", 0, 4, 1, NOW - 3600), job("b", 1, 8, 3, NOW - 3600), job("c", 2, 100, 1, NOW - 3600)];
  const found = merged(null, answer(NOW, jobs, [machine]), HOUR), series = seriesOf(found, found.since);
  const middle = (points: [number, number][] | null) => (points ? Math.round(points[300][1] * 1000) / 1000 : null);
  expect([series.used, series.up, series.batch, series.usd].map(middle)).toEqual([4, 16, 124, 2 + 24 * 0.5]);
  const without = merged(null, answer(NOW, [jobs[0]], [{...machine, usd_per_hour: null}]), HOUR);
  expect([seriesOf(without, without.since).batch, seriesOf(without, without.since).usd]).toEqual([null, null]);
});

test("the nodes of a batch system are one row of their density until they are opened", () => {
  const jobs = [job("a", 0, 4, 1, NOW - 1800), job("b", 1, 8, 3, NOW - 3600), job("c", 3, 2, 1, NOW - 3600)];
  const found = merged(null, answer(NOW, jobs, [machine]), HOUR);
  const {rows, groups} = rowsOf(found);
  expect(groups.map(({key, size, isOpen}) => [key, size, isOpen])).toEqual([["local:machines", 1, true], ["sge:nodes", 2, false]]);
  expect(rows.map(({label}) => label)).toEqual(["local/host", "sge: 2 nodes"]);
  expect(rows[1].density?.levels[300], "a job on three nodes has its cpus on each").toBeCloseTo(8 * 3 + 2);
  expect(rowsOf(found, undefined, {"sge:nodes": true}).rows.map(({label}) => label)).toEqual(["local/host", "sge/n1", "sge/n3"]);
  expect(rowsOf(found, undefined, {"local:machines": false}).rows.map(({label}) => label)).toEqual(["local: 1 machine", "sge: 2 nodes"]);
});

test("a site of many machines is folded", () => {
  const machines = Array.from({length: 300}, (_, index) => ({...machine, key: `ec2/m${index}`, site: "ec2"}));
  const {rows, groups} = rowsOf(merged(null, answer(NOW, [], [machine, ...machines]), HOUR));
  expect(rows.map(({label}) => label)).toEqual(["ec2: 300 machines", "local/host"]);
  expect(groups[0]).toMatchObject({site: "ec2", size: 300, isOpen: false});
  expect(rows[0].density?.up[300], "what idles is seen against what is up").toBeCloseTo(300 * 16);
  expect(rows[0].density?.most).toBeCloseTo(300 * 16);
});

test("a run's own machines come first, also those of a folded site", () => {
  const jobs = [job("a", 0, 4, 1, NOW - 1800), job("b", 3, 8, 1, NOW - 3600, null, 1), job("c", 1, 2, 1, NOW - 3600)];
  const {rows} = rowsOf(merged(null, answer(NOW, jobs, [machine]), HOUR), ({runId}) => runId === "mine");
  expect(rows.map(({label}) => label)).toEqual(["sge/n3", "sge: 2 nodes", "local/host"]);
  expect(rows[1].density?.mine[300]).toBeCloseTo(8);
  for (let at = 1; at < rows.length; at++) expect(rows[at].top, "rows do not overlap").toBeGreaterThanOrEqual(rows[at - 1].top + rows[at - 1].cpus);
});

test("the mean of all moments is what was added", () => {
  const levels = new Levels(0, 6000);
  levels.add(-50, 12, 3);
  levels.add(100.5, 4321.25, 2);
  levels.add(5990, null, 1);
  const sum = levels.means().reduce((all, mean) => all + mean * (6000 / MOMENTS), 0);
  expect(sum).toBeCloseTo(3 * 12 + 2 * (4321.25 - 100.5) + 10);
});
