import assert from "node:assert/strict";
import {test} from "node:test";

globalThis.localStorage = {getItem: () => '"Asia/Kathmandu"'};
const {inUse, iso, machineState, outlookLines, spoken, tickLabel, took} = await import("./static/words.js");

test("times in reasons are read in the zone of the page", () => {
  const words = "waits: attempt 1 of 5 has found no room (no match); the next is at 2026-11-23 12:00:30 UTC, or when it is woken";
  assert.match(spoken(words), /the next is at .*Nov 23.* 17:45:30, or when it is woken$/);
  assert.ok(!spoken(words).includes("UTC"));
  assert.equal(spoken("no time at all"), "no time at all");
  assert.equal(spoken(null), null);
});

test("of several days each label has its day", () => {
  const days = Array.from({length: 7}, (_, day) => Date.UTC(2026, 10, 17 + day, 18, 15) / 1000); // midnight there
  const labels = days.map((at) => tickLabel(at, 7 * 86400));
  assert.equal(new Set(labels).size, 7);
  assert.match(labels[0], /Nov 18.*00:00/);
  assert.equal(tickLabel(days[0] + 5, 900), "00:00:05");
});

test("batch jobs are apart from the cpus that are up", () => {
  assert.equal(inUse({cpus_used: 200, cpus_up: 256, cpus_batch: 1654}), "of 256 that are up, 78 %; 1,654 more in batch jobs");
  assert.equal(inUse({cpus_used: 1, cpus_up: 4, cpus_batch: 0}), "of 4 that are up, 25 %");
  assert.equal(inUse({cpus_used: 0, cpus_up: 0, cpus_batch: 0}), null);
});

test("a machine that does not answer is not up", () => {
  const [word, since] = machineState({state: "up", unreachable_since: Date.UTC(2026, 10, 23, 12) / 1000});
  assert.equal(word, "unreachable");
  assert.match(since, /^since .*Nov 23.* 17:45/);
  assert.deepEqual(machineState({state: "up", unreachable_since: null}), ["up", null]);
  assert.deepEqual(machineState({state: "draining"}), ["draining", null]);
});

test("a run of which jobs have not ended has taken until now", () => {
  assert.equal(took({live: 0, began_at: 100, ended_at: 160}, 5000), 60);
  assert.equal(took({live: 224, began_at: 100, ended_at: 115}, 3700), 3600);
  assert.equal(took({live: 1, began_at: 100, ended_at: null}, 130), 30);
});

test("times for programs", () => {
  assert.equal(iso(1800000000), "2027-01-15T08:00:00.000Z");
  assert.equal(iso(null), "");
});

test("what a run goes by, and when it ends", () => {
  const nothing = {hurry: null, finish_by: null, ends_at: null, trouble: null, asked_hurry: null, asked_finish_by: null, asked_by: null, asked_at: null, is_planned: true};
  const at = Date.UTC(2026, 10, 27, 0, 15) / 1000;
  assert.deepEqual(outlookLines(nothing), ["The hurry is that of its sites"]);
  const [none] = outlookLines({...nothing, is_planned: false});
  assert.match(none, /^Nothing is planned for it/);
  const [asked, end, ...more] = outlookLines({...nothing, hurry: 10, asked_hurry: 10, asked_finish_by: "06:00", asked_by: "alice", asked_at: at, finish_by: at, ends_at: at - 600});
  assert.match(asked, /^alice has asked for hurry 10 \(fast\), finish_by 06:00, .*Nov 27.* 06:00$/);
  assert.match(end, /^Planned to end at about .*Nov 27.* 05:50, and shall by .*Nov 27.* 06:00$/);
  assert.deepEqual(more, []);
  const [byDag, trouble] = outlookLines({...nothing, hurry: 2.5, finish_by: at, ends_at: at + 2400, trouble: "cannot end by 2026-11-27 00:15:00 UTC: about 2026-11-27 00:55:00 UTC at the earliest"});
  assert.equal(byDag, "hurry 2.5, as its Dag says");
  assert.match(trouble, /^It cannot end by .*Nov 27.* 06:00:00: about .*Nov 27.* 06:40:00 at the earliest$/);
});
