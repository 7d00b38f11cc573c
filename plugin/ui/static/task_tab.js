// The tab of a task instance: each try, where it was and why, and what it used of what it asked for.
import {allJobs, useAnswer} from "./data.js";
import {Facts, Phases, TryTable} from "./tries.js";
import {Frame, Muted, Section, Spinner, Trouble, h} from "./ui.js";

export function TaskTab({dagId, runId, taskId, mapIndex}) {
  const path = ["dags", dagId, "runs", runId, "tasks", taskId].map(encodeURIComponent).join("/");
  const parameters = {map_index: mapIndex === undefined || mapIndex === null ? undefined : mapIndex}, [found, trouble, now] = useAnswer(path, parameters);
  if (!found) return h(Frame, null, h(Trouble, {words: trouble}), trouble ? null : h(Spinner));
  const indexes = new Set(found.jobs.map((job) => job.map_index));
  const none = found.jobs.length ? null : h(Muted, null, "Lading has no record of this task: it was not run by Lading, or its records have been forgotten (job_retention_days).");
  const one = (job) => h(Section, {key: job.id, title: `Try ${job.try_number}`}, h(Phases, {job, now, whole: true}), h("div", {style: {marginTop: 12}}, h(Facts, {job, now})));
  return h(Frame, null, h(Trouble, {words: trouble}), none, indexes.size > 1 ? h(Section, {title: "Its mapped instances"}, h(TryTable, {name: "Tries", jobs: found.jobs, now, empty: "", load: () => allJobs(path, parameters)})) : found.jobs.map(one));
}
