import assert from "node:assert/strict";
import {test} from "node:test";
import {Answers, Clock, Mounted, settled} from "./host.mjs";

const {allJobs, useAnswer, usePacking} = await import("./static/data.js");
const NOW = 1_800_000_000;

async function mounted(hook, answers, ...given) {
  const clock = new Clock(NOW * 1000), asked = new Answers(answers), part = new Mounted(hook);
  clock.install();
  asked.install();
  part.use(...given);
  await settled();
  return {clock, asked, part};
}

test("an answer to another choice is not shown while that loads", async () => {
  const waiting = [], answers = (_, parameters) => new Promise((resolve) => waiting.push(() => resolve({now: NOW, jobs: [parameters.get("state")]})));
  const {part} = await mounted(useAnswer, answers, "jobs", {state: ["running"]});
  waiting.shift()();
  await settled();
  assert.deepEqual(part.value()[0].jobs, ["running"]);
  part.use("jobs", {state: ["failed"]});
  assert.equal(part.value()[0], null);
  waiting.shift()();
  await settled();
  assert.deepEqual(part.value()[0].jobs, ["failed"]);
  part.end();
});

test("ages go on while no answer comes", async () => {
  const {clock, asked, part} = await mounted(useAnswer, () => ({now: NOW}), "summary");
  assert.deepEqual(part.value(), [{now: NOW}, null, NOW]);
  asked.away = true;
  await clock.pass(60_000);
  const [, trouble, now] = part.value();
  assert.equal(trouble, "Failed to fetch");
  assert.ok(now >= NOW + 55 && now <= NOW + 60, `${now - NOW}`);
  part.end();
});

test("ages go on while an answer is awaited", async () => {
  let number = 0;
  const {clock, part} = await mounted(useAnswer, () => (number++ ? new Promise(() => {}) : {now: NOW}), "summary");
  part.value();
  await clock.pass(15_000);
  assert.equal(part.value()[1], null);
  await clock.pass(45_000);
  assert.ok(part.value()[2] >= NOW + 55);
  assert.match(part.value()[1], /no answer for 20 s/);
  part.end();
});

test("the chart is given the same as long as nothing has come", async () => {
  const found = (more) => ({now: NOW, cursor: NOW, truncated: false, places: [], names: [], jobs: [], machines: [], queues: {}, ...more});
  let number = 0;
  const {clock, asked, part} = await mounted(usePacking, () => found({now: NOW + 3 * number, cursor: NOW + 3 * number++}), {seconds: 3600});
  const first = part.value()[0];
  for (let turn = 0; turn < 8; turn++) { await clock.pass(3000); assert.equal(part.value()[0], first); }
  assert.equal(asked.asked.length, 9);
  assert.match(asked.asked.at(-1), new RegExp(`cursor=${NOW + 21}`), "it asks for what has come since the last answer");
  const [same, , now] = part.value();
  assert.equal(same, first, "nothing is drawn anew");
  assert.ok(now >= NOW + 20, "but time goes on, and with it what machines have cost");
  part.use({seconds: 900});
  assert.equal(part.value()[0], null, "nor is the old window shown under the new choice");
  part.end();
});

test("a table has all pages", async () => {
  const {asked} = await mounted(() => null, (_, parameters) => (parameters.get("after") === null ? {jobs: [1, 2], after: "x"} : {jobs: [3], after: null}));
  assert.deepEqual(await allJobs("jobs", {state: ["failed"]}), [1, 2, 3]);
  assert.deepEqual(asked.asked, ["jobs?state=failed&limit=500", "jobs?state=failed&limit=500&after=x"]);
});
