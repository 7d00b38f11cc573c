// What the API answers of a small house, by route, as its types have it.
import type {
  Advice, BillAmounts, BillPage, DagStarts, FailureGroups, JobPage, LiveRunList, OperatorRequest, PackingChart, RunGantt, RunPage, RunSummary, Savings, StartAccuracy, Summary, Totals, TryPage, TrySummary, WaitGroups, WaitsBySize,
} from "../src/api_types";

export const NOW = 1_796_000_000;
const amounts: BillAmounts = {jobs: 4, failed: 1, usd: 10, usd_used: 4, usd_unused: 3, usd_idle: 2, usd_boot: 1, cpu_hours: 100, cpu_hours_used: 70, cpu_hours_unused: 20, cpu_hours_idle: 10, cpu_hours_boot: 0};
const summary: Summary = {
  now: NOW, controller_lives: true, running: 3, waiting: 5, machines: 2, cpus_used: 12, cpus_batch: 0, cpus_up: 32, usd_per_hour: 1.6, failed: 1, failed_tasks: 1, may_act: true,
  sites: [{name: "hpc", kind: "slurm", state: "up", full_because: "2 of 2 allocations; 5 jobs wait", host: null, usd_ordered: 0, machines_idle: 1, machines_silent: 0, note: null, contact_at: NOW, nodes: 40, idle_nodes: 3, limits: [{name: "max_allocations", text: "2", used: 2, most: 2, coming: 0, is_reached: true}], machines: 2, waiting: 5, running: 3, cpus_used: 12, cpus_batch: 0, cpus_up: 32, memory_promised: 16_384, memory_used: 9_000, memory_up: 65_536, usd_per_hour: 1.6}],
  teams: [{name: "genomics", running: 1, waiting: 2, cpus_used: 4}],
  budgets: [{name: "all", who: "Dags *", spent: 40, most: 100, unit: "usd", per: "month", since: NOW - 20 * 86400, until: NOW + 86400, at: NOW - 20, per_hour: 4, hours: 2.7, is_near: false, lifted_by: null, spent_at: NOW + 3600, expected: 120}],
  shares: [{name: "genomics", who: "team genomics", entitled: 0.5, used: 0.75, lately: 0.4, guarantees: [{site: "hpc", what: "cpus", kept: 8, used: 12}], dags: [{dag_id: "etl", jobs: 3}], dags_total: 1, hidden: false, is_over: true, lends: true, borrows: true, at: NOW - 10}],
};
const bill: BillPage = {
  now: NOW, by: "day", split: "dag", periods: [{since: NOW - 86400, until: NOW, is_whole: true}], total: amounts, totals: [amounts], running: {...amounts, jobs: 1, usd: 2, usd_used: 2, usd_unused: 0, usd_idle: 0, usd_boot: 0}, is_partial: false, idle_since: NOW - 86400, idle_sites: [{site: "hpc", usd: 5, usd_site: 10, cpu_hours_site: 100, cpu_hours: 100, usd_machines: 3, cpu_hours_machines: 60, idle_seconds: 300, machines: 4}], idle_advice: {cost: 5, changes: [{site: "hpc", now: 300, then: 150, saved: 2.6}], saved: 2.6, is_halved: true, rest: []},
  expected: {until: NOW + 5 * 86400, usd: 1234.5, cpu_hours: 600, since: NOW - 7 * 86400, usd_per_day: 100, cpu_hours_per_day: 80, hours: 0, usd_per_hour: 16.25, cpus: 40},
  rows: [{kind: "named", dag_id: "etl", task_id: null, run_id: null, site: null, team: null, total: amounts, usd: [10], cpu_hours: [100]}],
};
export const job: TrySummary = {
  id: "0123456789abcdef", hidden: false, dag_id: "etl", team: null, run_id: "r1", task_id: "load", map_index: 3, try_number: 1, state: "queued", cause: null, cause_title: null, reason: "waits: no room", reason_code: "machine_full", remedy: null, actors: [],
  site: "hpc", location: "L1", node: "n1", native_id: "4711", placed_because: null, queue: null, cpus: 2, nodes: 1, memory: 2048, gpus: 0, memory_limit: null, time_limit: null, peak_memory: null, cpu_seconds: null, exit_code: null, usd: null,
  queued_at: NOW - 60, started_at: null, ended_at: null, phases: [{key: "airflow", title: "waits for a place", since: NOW - 60, until: null}],
};
const jobs: JobPage = {now: NOW, jobs: [job], machines: [], tasks: [], map_indexes: [], after: null, matching: 1, is_more: false, is_partial: false};
const waits: WaitGroups = {
  now: NOW, jobs: 5, groups: [{
    key: "machine_full", kind: "room", title: "All machines are busy", remedy: "Wait", actors: [], site: "hpc", limit: null, params: {}, jobs: 5, share: 1, start: {since: NOW + 300, at: NOW + 500, until: NOW + 900, source: "backlog", text: "5 jobs ahead of it at site hpc; about one start every 1 min"}, cpus: 20, oldest: NOW - 600, sentences: ["waits: no room"],
    dags: [{dag_id: "etl", jobs: 5}], dags_total: 1, hidden: false, held: [],
  }],
};
const dagStarts: DagStarts[] = [
  {dag_id: "etl", jobs: 3, first: {since: NOW, at: NOW + 60, until: NOW + 90, source: "backlog", text: ""}, last: {since: NOW + 100, at: NOW + 3000, until: NOW + 4000, source: "backlog", text: ""}},
  {dag_id: "nightly", jobs: 2, first: {since: NOW, at: NOW + 600, until: NOW + 900, source: "backlog", text: ""}, last: null},
];
const failures: FailureGroups = {
  now: NOW, since: NOW - 86400, jobs: 1, groups_left_out: 0, jobs_left_out: 0, groups: [{
    cause: "error", title: "The task raised an error", remedy: "Look at its log", actors: ["author"], site: null, node: null, jobs: 1, tasks: 1, first: NOW - 500, last: NOW - 500, sentences: ["exit code 1"], dags: [{dag_id: "etl", jobs: 1}], dags_total: 1,
    failed_tasks: [{dag_id: "etl", task_id: "load", jobs: 1, advice: null, line: null, run_id: "r1", map_index: -1, try_number: 1, since_then: {state: "succeeded", try_number: 2, at: NOW - 300}}], hidden: false, since_then: {succeeded: 1},
  }],
};
const packing: PackingChart = {
  now: NOW, cursor: NOW, since: NOW - 3600, until: NOW, truncated: false, origin: NOW - 3600, places: ["hpc/L1"], names: [["etl", "r1", "load"]], states: ["running"], queues: {},
  jobs: {id: ["0123456789abc"], place: [0], name: [0], map_index: [3], try_number: [1], lane: [0], cpus: [2], memory: [2048], peak: [1500], nodes: [1], started: [600], ended: [null], state: [0]},
  machines: [{key: "hpc/L1", site: "hpc", name: "L1", sort: "instance", state: "up", cpus: 16, memory: 65536, usd_per_hour: 0.8, usd: 0, usd_since: NOW - 3000, spans: [[NOW - 3000, null, 16]]}],
};
const queueWaits: WaitsBySize = {read: 4000, waits: [{what: "allocations", site: "hpc", queue: null, more_cpus_than: 0, most_cpus: 1, count: 9, median: 60, most: 600}]};
const starts: StartAccuracy[] = [{source: "forecast", said: 10, within: 9}];
const requests: OperatorRequest[] = [{id: 1, kind: "pause", target: "hpc", by: "carol", at: NOW - 60, done_at: null, outcome: null}];
const savings: Savings = {usd: 5, cpu_hours: 6, gib_hours: 7, tasks_left_out: 0, freed: {cpus: 0, gib: 0, cpu_hours: 0, gib_hours: 0}, tasks: [{dag_id: "etl", task_id: "load", usd: 5, cpu_hours: 6, gib_hours: 7, cpus_asked: 4, memory_asked: 8192, cpus: {most: 1, nearly_all: 1}, memory: {most: 1024, nearly_all: 2048}, line: "resources(cpus=1)"}]};
const totals: Totals = {
  jobs: 4, live: 1, failed: 0, began_at: NOW - 900, ended_at: null, wait_seconds: 100, cpu_hours: 2, cpu_hours_measured: 1, cpu_hours_used: 0.5, memory_used: 0.5, time_used: null, usd: 4,
};
const run: RunSummary = {now: NOW, totals, states: {running: 1, succeeded: 3}, may_edit: true, most_at_once: 2, bound_seconds: 60, seconds: 900, billed: amounts, median_wait: 60, longest_wait: 600, waits: [job]};
const liveRuns: LiveRunList = {now: NOW, runs_left_out: 0, runs: [{...totals, dag_id: "etl", run_id: "r1", billed: amounts, running: 1, waiting: 0, expected_end: NOW + 600, expected_end_span: {since: NOW + 350, until: NOW + 1040}, expected_end_basis: "Lading's plan", end_unknown: null}]};
const runs: RunPage = {now: NOW, runs: [{...totals, run_id: "r1", billed: amounts}]};
const size = {most: 2000, nearly_all: 4000};
const advice: Advice = {fewest: 5, tasks: [{
  task_id: "load", tries: 1200, short_of: ["memory"], short: 3, cpus_asked: 4, memory_asked: 8192, memory: size, cpus: size, time: size, waited: 700, by_input: [], saved_cpu_hours: 1200, saved_gib_hours: 3, line: "resources(cpus=1)", wasted: 12, wasted_by_line: 1,
}]};
const tries: TryPage = {now: NOW, jobs: [job], after: null};
const gantt: RunGantt = {now: NOW, began_at: NOW - 900, ended_at: null, expected_end: NOW + 600, expected_end_span: {since: NOW + 350, until: NOW + 1040}, expected_end_basis: "Lading's plan", end_unknown: null, critical: ["load"], last_run: {run_id: "r0", seconds: 800}, tasks: [{
  task_id: "load", upstream: [], jobs: 1200, live: 1, failed: 1, ready_at: NOW - 900, since: NOW - 900, started_at: NOW - 800, until: null, expected: {since: NOW - 900, until: NOW + 600}, is_critical: true, is_cut: true,
  tries: [{id: job.id, map_index: 3, try_number: 1, state: "running", phases: [{key: "airflow", title: "waits for a place", since: NOW - 900, until: NOW - 800}, {key: "runs", title: "runs", since: NOW - 800, until: null}]}],
  median_wait: 600, longest_wait: 1e5, cpu_hours: 1200, usd: 1234.5, cpus_used: 0.5, memory_used: 0.25, time_used: null, last_seconds: 700,
}]};

/** By the path below the application. */
export const ANSWERS: Record<string, unknown> = {
  summary, bill, jobs, waits, failures, packing, requests, savings, starts, "queue-waits": queueWaits, "waits/dags": dagStarts, "live-runs": liveRuns,
  "dags/etl/runs": runs, "dags/etl/advice": advice, "dags/etl/runs/r1": run, "dags/etl/runs/r1/gantt": gantt, "dags/etl/runs/r1/tasks/load": tries,
};
