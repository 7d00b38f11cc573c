// URLs within Airflow's UI, and the filters and views that the page keeps in its own URL.
import type {ChartJob} from "./chart/packing";

const join = (...parts: string[]) => parts.map(encodeURIComponent).join("/");

export const PAGE = "/plugin/lading";
/** The tab of a Dag: the cost of its runs, and what its tasks should request. */
export const dagPath = (dagId: string) => `/dags/${encodeURIComponent(dagId)}/plugin/lading-dag`;
/** The right size of one of a Dag's tasks, on the tab of the Dag. */
export const sizePath = (dagId: string, taskId: string) => `${dagPath(dagId)}${search({task: taskId})}`;
export const runPath = (dagId: string, runId: string) => `/dags/${encodeURIComponent(dagId)}/runs/${encodeURIComponent(runId)}/plugin/lading-run`;
export const runData = (dagId: string, runId: string) => join("dags", dagId, "runs", runId);
export const taskData = (dagId: string, runId: string, taskId: string) => join("dags", dagId, "runs", runId, "tasks", taskId);

export interface TaskKey {
  dag_id?: string | null;
  run_id?: string | null;
  task_id?: string | null;
  map_index?: number;
}
/** A task instance in Airflow, or a tab of it; null: it is hidden from the user or belongs to no Dag. */
function instancePath({dag_id: dag, run_id: run, task_id: task, map_index: index = -1}: TaskKey, tab: string, tried?: number): string | null {
  if (!dag || !run || !task) return null;
  const mapped = index >= 0 ? `/mapped/${index}` : "";
  return `/dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}/tasks/${encodeURIComponent(task)}${mapped}${tab}${tried ? `?try_number=${tried}` : ""}`;
}
/** The tab with the tries of a task instance, with the given try first; null as above. */
export const taskPath = ({try_number: tried, ...task}: TaskKey & {try_number?: number}) => instancePath(task, "/plugin/lading-task", tried);
/** The log of a try in Airflow, or of the newest one; null as above. */
export const logPath = ({try_number: tried, ...task}: TaskKey & {try_number?: number}) => instancePath(task, "", tried);

export function taskName({dag_id: dag, task_id: task, map_index: index = -1, hidden}: TaskKey & {hidden?: boolean}): string {
  if (hidden || !task) return "another Dag's task";
  return `${dag ? `${dag}.` : ""}${task}${index >= 0 ? `[${index}]` : ""}`;
}
export const keyOf = (job: ChartJob): TaskKey & {hidden: boolean} => ({
  dag_id: job.dagId, run_id: job.runId, task_id: job.taskId, map_index: job.mapIndex, hidden: job.hidden,
});

export type Choices = Record<string, string | readonly string[] | null | undefined>;
/** A query string of choices in the given order; empty ones are left out. */
export function search(choices: Choices): string {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(choices)) {
    for (const each of [value].flat()) if (each !== null && each !== undefined && each !== "") found.append(name, each as string);
  }
  const text = found.toString();
  return text ? `?${text}` : "";
}
/** The page with these choices made. */
export const pagePath = (choices: Choices) => `${PAGE}${search(choices)}`;

/** The time ranges of the chart: seconds and label. */
export const RANGES: readonly (readonly [string, string])[] = [["900", "15 minutes"], ["3600", "1 hour"], ["21600", "6 hours"], ["86400", "24 hours"], ["604800", "7 days"]];
export const rangeOf = (chosen: string | null): string => RANGES.find(([seconds]) => seconds === chosen)?.[0] ?? "3600";

/** The time ranges of the job list: seconds and label. */
export const WITHIN: readonly (readonly [string, string])[] = [["3600", "last hour"], ["86400", "last 24 hours"], ["604800", "last 7 days"], ["2592000", "last 30 days"]];
export const withinText = (seconds: string): string => WITHIN.find(([key]) => key === seconds)?.[1] ?? `last ${seconds} s`;
