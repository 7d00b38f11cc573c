import assert from "node:assert/strict";
import {test} from "node:test";
import {Mounted} from "./host.mjs";

globalThis.localStorage = {getItem: () => null};
const {Outlook} = await import("./static/run_tab.js");
const NOTHING = {hurry: null, finish_by: null, ends_at: null, trouble: null, asked_hurry: null, asked_finish_by: null, asked_by: null, asked_at: null, is_planned: true};

// The parts of a tree of which this property is what is asked for.
function parts(tree, name, value) {
  if (Array.isArray(tree)) return tree.flatMap((each) => parts(each, name, value));
  if (!tree?.props) return [];
  return [...(tree.props[name] === value ? [tree] : []), ...parts(tree.children, name, value)];
}

function mounted(outlook, mayEdit = true) {
  const part = new Mounted(Outlook), sent = [];
  globalThis.fetch = async (url, {body}) => { sent.push([decodeURIComponent(url.pathname.split("/lading/").at(-1)), JSON.parse(body)]); return {status: 200, ok: true, json: async () => ({})}; };
  part.use({dagId: "d", runId: "manual__1+2", outlook: {...NOTHING, ...outlook}, mayEdit});
  return {one: (name, value) => parts(part.value(), name, value)[0], sent};
}

test("a run is hurried by what was chosen and typed, once something was", async () => {
  const {one, sent} = mounted({});
  assert.equal(one("label", "Ask"), undefined);
  assert.equal(one("label", "Take back"), undefined, "nothing was asked");
  one("label", "Hurry").props.onChange("fast");
  await one("label", "Ask").props.onYes();
  one("label", "Finish by").props.onChange(" 06:00 ");
  one("label", "Hurry").props.onChange("");
  await one("label", "Ask").props.onYes();
  assert.deepEqual(sent.map(([, body]) => body), [{hurry: "fast", finish_by: null}, {hurry: null, finish_by: "06:00"}]);
  assert.ok(sent[0][0].endsWith("dags/d/runs/manual__1+2/hurry"), sent[0][0]);
});

test("what was asked is taken back", async () => {
  const {one, sent} = mounted({asked_by: "alice", asked_hurry: 0, asked_at: 0});
  await one("label", "Take back").props.onYes();
  assert.deepEqual(sent[0][1], {hurry: null, finish_by: null});
});

test("who may not change the run sees when it ends, and no form", () => {
  const {one} = mounted({finish_by: 0, ends_at: 60, trouble: "cannot end by 1970-01-01 00:00:00 UTC: about 1970-01-01 00:01:00 UTC at the earliest"}, false);
  assert.equal(one("label", "Hurry"), undefined);
  assert.match(one("role", "alert").children[0], /cannot end by/);
});
