// The tab of a run: what it took, how long beside the least it could take, its packing and its longest waits.
import {hurry, useAnswer, usePacking} from "./data.js";
import {windowOfRun} from "./packing.js";
import {Packing} from "./packing_chart.js";
import {TryTable} from "./tries.js";
import {Confirmed, Frame, Input, Muted, Row, Section, Select, Spinner, Tile, Tiles, Trouble, h, useMemo, useState} from "./ui.js";
import {cost, count, duration, outlookLines, percent, took, usd} from "./words.js";

// Its own time is what is looked at; what was shortly before and after is where the slider is.
function RunPacking({dagId, runId, began, ended, now}) {
  const [packing, trouble] = usePacking(windowOfRun(began, ended));
  const mine = useMemo(() => (job) => job.dagId === dagId && job.runId === runId, [dagId, runId]);
  const look = useMemo(() => { const margin = Math.max(5, 0.03 * ((ended ?? now) - began)); return [began - margin, ended === null ? null : ended + margin]; }, [began, ended]);
  return h(Section, {title: "What ran where", more: h(Muted, null, "other runs are pale")}, h(Trouble, {words: trouble}), h(Packing, {packing, mine, look}));
}

const HURRIES = [["", "hurry: as its Dag says"], ["cheap", "cheap"], ["balanced", "balanced"], ["fast", "fast"]];

// What the end of a live run is worth; who may change the run can ask for something else.
export function Outlook({dagId, runId, outlook, mayEdit}) {
  const [worth, setWorth] = useState(""), [end, setEnd] = useState("");
  const ask = (asked) => () => hurry(dagId, runId, asked), isAsked = outlook.asked_by !== null;
  return h(Section, {title: "When it shall end"},
    outlookLines(outlook).map((words) => h("p", {key: words, role: outlook.trouble && words.includes("cannot end by") ? "alert" : undefined}, words)),
    mayEdit ? h(Row, null,
      h(Select, {label: "Hurry", value: worth, options: HURRIES, onChange: setWorth}),
      h(Input, {label: "Finish by", value: end, placeholder: "finish by: 2h, 06:00 …", onChange: setEnd}),
      worth || end.trim() ? h(Confirmed, {label: "Ask", question: "Let the run go by that?", onYes: ask({hurry: worth || null, finish_by: end.trim() || null})}) : null,
      isAsked ? h(Confirmed, {label: "Take back", question: "Let the run go by its Dag?", onYes: ask({hurry: null, finish_by: null})}) : null) : null);
}

export function RunTab({dagId, runId}) {
  const [found, trouble, now] = useAnswer(["dags", dagId, "runs", runId].map(encodeURIComponent).join("/"));
  if (!found) return h(Frame, null, h(Trouble, {words: trouble}), trouble ? null : h(Spinner));
  const {totals, states} = found;
  if (!totals.jobs) return h(Frame, null, h(Muted, null, "Lading has no record of this run: it was not run by Lading, or its records have been forgotten (job_retention_days)."));
  const waiting = (states.queued ?? 0) + (states.attempted ?? 0) + (states.placed ?? 0);
  return h(Frame, null, h(Trouble, {words: trouble}),
    h(Section, {title: "What it took"}, h(Tiles, null,
      h(Tile, {label: "Jobs", value: count(totals.jobs), help: `${count(states.running ?? 0)} running, ${count(waiting)} waiting, ${count(totals.failed)} failed`}),
      h(Tile, {label: "Cost", value: cost(totals.usd, totals.cpu_hours), help: found.usd_idle ? `and ${usd(found.usd_idle)} while its machines idled` : null}),
      h(Tile, {label: "cpus used", value: percent(totals.cpu_hours_used, totals.cpu_hours_measured), help: "of those asked for"}),
      h(Tile, {label: "Memory used", value: totals.memory_used === null ? "–" : percent(totals.memory_used, 1), help: "of that asked for, by the peaks that are known"}),
      h(Tile, {label: "Time used", value: totals.time_used === null ? "–" : percent(totals.time_used, 1), help: totals.time_used === null ? "no try had a limit" : "of the limits"}),
      h(Tile, {label: "Took", value: duration(took(totals, now)), help: found.bound_seconds === null ? null : `at least ${duration(found.bound_seconds)} with these cpus`}),
      h(Tile, {label: "Most at once", value: count(found.most_at_once)}),
      h(Tile, {label: "Waited, all jobs together", value: duration(totals.wait_seconds)}))),
    found.outlook ? h(Outlook, {dagId, runId, outlook: found.outlook, mayEdit: found.may_edit}) : null,
    h(RunPacking, {dagId, runId, began: totals.began_at, ended: totals.live ? null : totals.ended_at, now: found.now}),
    h(Section, {title: "Longest waits"}, h(TryTable, {name: "Longest waits", jobs: found.waits, now, empty: "No job has waited."})));
}
