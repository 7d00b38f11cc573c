import type {TrySummary as Try0, WaitGroup as W0, Summary as S0, WaitingDag, TryPhase} from "./api_types";
export type Summary = S0 & {failed: number};
export interface StartEstimate {since: number; until: number; source: string; text: string}
export type TrySummary = Try0 & {start?: StartEstimate | null};
export interface JobPage {now: number; jobs: TrySummary[]; after: string | null; matching: number; is_more: boolean; is_partial: boolean}
export type WaitGroup = W0 & {actors: string[]; params: Record<string, unknown>; share: number; jobs_per_hour: number | null; seconds: number | null; dags_total: number};
export interface WaitGroups {now: number; jobs: number; groups: WaitGroup[]}
export interface FailedTask {dag_id: string; task_id: string; jobs: number; advice: string | null; line: string | null}
export interface FailureGroup {cause: string; title: string; remedy: string; actors: string[]; site: string | null; node: string | null; jobs: number; tasks: number; first: number; last: number; sentences: string[]; dags: WaitingDag[]; dags_total: number; failed_tasks: FailedTask[]; hidden: boolean}
export interface FailureGroups {now: number; since: number; jobs: number; groups: FailureGroup[]}
export interface BillAmounts {jobs: number; failed: number; usd: number | null; usd_used: number | null; usd_unused: number | null; usd_idle: number | null; usd_boot: number | null; cpu_hours: number; cpu_hours_used: number; cpu_hours_unused: number; cpu_hours_idle: number; cpu_hours_boot: number}
export interface BillPeriod {since: number; until: number; is_whole: boolean}
export interface BillRow {kind: "named" | "machines" | "hidden" | "others"; dag_id: string | null; task_id: string | null; site: string | null; total: BillAmounts; periods: BillAmounts[]}
export interface Bill {now: number; by: string; split: string; periods: BillPeriod[]; total: BillAmounts; totals: BillAmounts[]; rows: BillRow[]; running: BillAmounts}
export interface Saving {dag_id: string; task_id: string; usd: number | null; cpu_hours: number; gib_hours: number; line: string}
export interface Savings {usd: number | null; cpu_hours: number; gib_hours: number; tasks: Saving[]; dags_left_out: number}
export interface QueueWait {site: string; queue: string | null; more_cpus_than: number; most_cpus: number; jobs: number; median: number; most: number}
export interface GanttTry {id: string; map_index: number; try_number: number; state: string; phases: TryPhase[]}
export interface GanttTask {task_id: string; upstream: string[]; jobs: number; live: number; failed: number; ready_at: number | null; since: number | null; started_at: number | null; until: number | null; expected: {since: number; until: number} | null; is_critical: boolean; tries: GanttTry[]; is_cut: boolean; wait_seconds: number; cpu_hours: number; usd: number | null; cpus_used: number | null; memory_used: number | null; time_used: number | null; last_seconds: number | null}
export interface RunGantt {now: number; began_at: number | null; ended_at: number | null; expected_end: number | null; critical: string[]; last_run: {run_id: string; seconds: number} | null; tasks: GanttTask[]}
