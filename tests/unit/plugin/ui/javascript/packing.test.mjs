import assert from "node:assert/strict";
import {test} from "node:test";

const {asked, merged, windowOfRun} = await import("./static/packing.js");
const {beginning, rowsOf, seriesOf, sharesOf} = await import("./static/chart.js");

const DAY = 86400, NOW = 1_800_000_000, HOUR = {seconds: 3600};
const machine = {key: "local/host", site: "local", state: "up", usd_per_hour: 2, spans: [[NOW - 3600, null, 16]]};
const job = (id, place, cpus, nodes, start, end = null) => [id, place, 0, -1, 1, 0, cpus, nodes, start, end, end === null ? "running" : "succeeded"];
const answer = (now, jobs = [], machines = [], more = {}) => ({now, cursor: now, truncated: false, places: ["local/host", "sge/n1", "free/n2"], names: [["d", "r", "t"]], jobs, machines, queues: {sge: 0.5, free: null}, ...more});

test("the window of a run is its own time, however old it is", () => {
  const began = NOW - 20 * DAY, window = windowOfRun(began, began + 3600), {since, until} = asked(window, NOW);
  assert.ok(since < began && began + 3600 < until && until < NOW - 19 * DAY);
  assert.deepEqual(asked(windowOfRun(NOW - 10 * DAY, null), NOW), {since: NOW - 10 * DAY - 60, until: NOW + 60});
  const long = asked(windowOfRun(NOW - 90 * DAY, null), NOW);
  assert.equal(long.until - long.since, 31 * DAY);
  assert.deepEqual(asked(HOUR, NOW), {since: NOW - 3600, until: NOW + 60});
});

test("what is drawn of an old window ends with it", () => {
  const began = NOW - 20 * DAY, found = merged(null, answer(NOW, [job("a", 0, 2, 1, began, began + 60)], [{...machine, spans: [[began - DAY, null, 16]]}]), windowOfRun(began, began + 60));
  assert.equal(found.until, began + 120);
  assert.equal(found.jobs.size, 1);
  const shares = sharesOf(found).get("local/host");
  assert.deepEqual([shares.used, shares.up], [120, 180 * 16]);
  assert.equal(beginning(found), began - 60);
  assert.equal(merged(found, answer(NOW + DAY), windowOfRun(began, began + 60)), found, "time does not move it");
});

test("it is drawn anew where something has come, and else in steps of time", () => {
  const first = merged(null, answer(NOW, [job("a", 0, 1, 1, NOW - 60)], [machine]), HOUR);
  const told = [job("a", 0, 1, 1, NOW - 60)];
  assert.equal(merged(first, answer(NOW + 3, told, [{...machine}]), HOUR), first, "what is told again is nothing new");
  assert.equal(merged(first, answer(NOW + 30), HOUR), first);
  const moved = merged(first, answer(NOW + 40), HOUR);
  assert.notEqual(moved, first);
  assert.equal(moved.until, NOW + 40);
  const ended = merged(moved, answer(NOW + 41, [job("a", 0, 1, 1, NOW - 60, NOW + 41)]), HOUR);
  assert.notEqual(ended, moved);
  assert.equal(ended.jobs.get("a").state, "succeeded");
  assert.notEqual(merged(ended, answer(NOW + 42, [], [{...machine, state: "gone"}]), HOUR), ended);
  assert.equal(merged(ended, answer(NOW + 4000), HOUR).jobs.size, 0, "what has left the window is forgotten");
});

test("batch jobs have a line of their own, and cost", () => {
  const jobs = [job("a", 0, 4, 1, NOW - 3600), job("b", 1, 8, 3, NOW - 3600), job("c", 2, 100, 1, NOW - 3600)];
  const found = merged(null, answer(NOW, jobs, [machine]), HOUR), series = seriesOf(found, found.since);
  const middle = (points) => Math.round(points[300][1] * 1000) / 1000;
  assert.deepEqual([series.used, series.up, series.batch, series.usd].map(middle), [4, 16, 124, 2 + 24 * 0.5]);
  assert.equal(rowsOf(found).rows.length, 3);
  const without = merged(null, answer(NOW, [jobs[0]], [{...machine, usd_per_hour: null}]), HOUR);
  assert.deepEqual([seriesOf(without, without.since).batch, seriesOf(without, without.since).usd], [null, null]);
});
