import assert from "node:assert/strict";
import {test} from "node:test";
import "./host.mjs";

const {csv} = await import("./static/csv.js");
const {tryColumns} = await import("./static/tries.js");

test("cells are quoted, and none is a formula", () => {
  const columns = [{title: "a", cell: (row) => row[0]}, {title: "b", text: (row) => row[1]}, {title: "c", text: false}];
  assert.equal(csv(columns, [['say "x"', -1], ["=1+1", null]]), '"a","b"\r\n"say ""x""","-1"\r\n"\'=1+1",""');
});

test("the table of jobs has run, cause, times and cost for programs", () => {
  const job = {
    hidden: false, dag_id: "d", run_id: "r", task_id: "t", map_index: 3, try_number: 2, state: "failed", cause: "time_limit", reason: "it ran for too long", site: "s", location: "m", node: null, native_id: "7",
    held: null, cpus: 2, nodes: 3, cpu_seconds: 3600, memory: 100, peak_memory: 50, queued_at: 1800000000, started_at: 1800000060, ended_at: 1800003660, usd: 0.5, phases: [],
  };
  const [titles, cells] = csv(tryColumns(1800003660), [job]).split("\r\n").map((line) => line.slice(1, -1).split('","'));
  const found = Object.fromEntries(titles.map((title, index) => [title, cells[index]]));
  assert.deepEqual(
    ["Task", "Run", "Cause", "Reason", "Queued at", "Started at", "Ended at", "Waited", "Ran", "cpu-hours", "USD"].map((title) => found[title]),
    ["d.t[3]", "r", "time_limit", "it ran for too long", "2027-01-15T08:00:00.000Z", "2027-01-15T08:01:00.000Z", "2027-01-15T09:01:00.000Z", "60", "3600", "6", "0.5"],
  );
});
