// The packing chart as a component. If ECharts fails to load, the tables show the same data.
import * as React from "react";
import {memo, useEffect, useLayoutEffect, useMemo, useRef, useState} from "react";
import {SLANTS, hatched, shownState, type ShownState} from "../chart/colors";
import {PackingChart, loadECharts} from "../chart/draw";
import type {ChartJob, Packing as Data} from "../chart/packing";
import {reachedSpans, rowsOf, sizeText, wasUp, type Group, type Measure} from "../chart/rows";
import {keyOf, taskPath} from "../paths";
import {useNavigate} from "./choices";
import {Button, Muted, Spinner, Legend, useDark} from "./parts";

/** The legend for the states of jobs and machines that occur. */
function Key({jobs, machines}: Pick<Data, "jobs" | "machines">) {
  const there = new Set<ShownState | "hidden">();
  for (const job of jobs.values()) there.add(shownState(job.state, job.hidden));
  const parts = [...there].sort().map((state) => ({key: state, title: state === "hidden" ? "jobs of Dags you cannot read" : state, color: hatched(`var(--l-${state})`, SLANTS[state])}));
  const all = [...machines.values()];
  return <div data-testid="key"><Legend parts={[
    ...parts,
    ...(all.some(wasUp) ? [{key: "up", title: "machine up", color: "var(--l-machine)"}] : []),
    ...(all.every(wasUp) ? [] : [{key: "coming", title: "machine ordered or booting", color: "none", dashes: "var(--l-hidden)"}]),
    ...(all.some((machine) => reachedSpans(machine).silent.length) ? [{key: "silent", title: "machine unreachable", color: "none", dashes: "var(--l-failed)"}] : []),
  ]} /></div>;
}

function Fold({groups, onFold}: {groups: readonly Group[]; onFold: (group: Group) => void}) {
  const foldable = groups.filter(({size}) => size > 1);
  if (!foldable.length) return null;
  return (
    <div className="chips" role="group" aria-label="Rows of sites">{foldable.map((group) => (
      <Button key={group.key} aria-expanded={group.isOpen} onClick={() => onFold(group)}>{group.isOpen ? "▾" : "▸"} {group.site}: {sizeText(group.size, group.sort)} in this period</Button>
    ))}</div>
  );
}

interface Props {
  packing: Data | null;
  mine?: (job: ChartJob) => boolean;
  /** The time range to show first; null: until now. */
  look?: [number, number | null];
  /** The groups that the user has opened or folded, by key, and the callback for changes. */
  opened?: Record<string, boolean>;
  onOpened?: (opened: Record<string, boolean>) => void;
  /** The unit of the lower chart. */
  measure?: Measure;
}

export const Packing = memo(function Packing({packing, mine, look, opened: given, onOpened, measure = "cpus"}: Props) {
  const element = useRef<HTMLDivElement>(null), chart = useRef<PackingChart | null>(null);
  const dark = useDark(), navigate = useNavigate();
  const [failed, setFailed] = useState<string | null>(null), [ready, setReady] = useState(false);
  const [own, setOwn] = useState<Record<string, boolean>>({});
  const opened = given ?? own;
  const go = useRef(navigate);
  go.current = navigate;
  useEffect(() => {
    let isGone = false;
    const box = element.current;
    if (!box) return undefined;
    loadECharts().then((echarts) => {
      if (isGone) return;
      chart.current = new PackingChart(echarts, box, (job) => { const path = taskPath(keyOf(job)); if (path) go.current(path); });
      setReady(true);
    }).catch((error: Error) => setFailed(error.message));
    const observer = new ResizeObserver(() => chart.current?.resize());
    observer.observe(box);
    return () => { isGone = true; observer.disconnect(); chart.current?.dispose(); chart.current = null; };
  }, []);
  const layout = useMemo(() => (packing ? rowsOf(packing, mine, opened) : null), [packing, mine, opened]);
  // Draw before the browser paints the rest: the chart is what the user waits for.
  useLayoutEffect(() => {
    if (!ready || !chart.current || !element.current) return;
    // Another window is being loaded: remove the content of the previous one.
    if (!packing || !layout) { chart.current.clear(); delete element.current.dataset.redrawMs; return; }
    const began = performance.now();
    chart.current.update(packing, dark, mine, look ?? null, layout, measure);
    element.current.dataset.redrawMs = (performance.now() - began).toFixed(1);
  }, [ready, packing, layout, dark, mine, look, measure]);
  const rows = layout ? Math.min(24, layout.rows.length) : 4;
  const fold = ({key, isOpen}: Group) => (onOpened ?? setOwn)({...opened, [key]: !isOpen});
  return (
    <div>
      {packing && layout ? <div className="row" style={{justifyContent: "space-between"}}><Key jobs={packing.jobs} machines={packing.machines} /><Fold groups={layout.groups} onFold={fold} /></div> : <Spinner />}
      <div ref={element} role="img" data-testid="packing-chart" aria-label="What ran where" style={{height: Math.max(320, 190 + rows * 26), width: "100%"}} />
      {failed ? <p role="alert">The chart could not be drawn: {failed}</p> : null}
      {layout?.rows.some((row) => row.density) ? <Muted>Rows in bold add up machines or nodes: the filled height is their busy cpus, whether the jobs are running or have finished. </Muted> : null}
      {layout?.rows.some((row) => row.below) ? <Muted>If a job is drawn below the grey area of its machine, no contiguous cpus were free for it there. </Muted> : null}
      {packing?.truncated ? <Muted>There are too many jobs to draw: only the newest are shown. Choose a shorter time range.</Muted> : null}
    </div>
  );
});
