// The packing chart as a component; without ECharts the tables beside it say the same.
import {COLORS, HIDDEN, PackingChart, loadECharts, rowsOf} from "./chart.js";
import {Muted, Spinner, Swatch, h, memo, useDark, useEffect, useNavigate, useRef, useState} from "./ui.js";
import {taskPath} from "./words.js";

// What the colours of the jobs that are there mean.
function Key({jobs}) {
  const there = new Set();
  for (const job of jobs.values()) there.add(job.hidden ? null : job.state);
  const known = Object.entries(COLORS).filter(([state]) => there.has(state));
  return h("div", {"data-testid": "key", style: {display: "flex", flexWrap: "wrap", gap: 12, fontSize: "0.8em"}},
    [...known, ...(there.has(null) ? [["another Dag's", HIDDEN]] : [])].map(([words, color]) => h("span", {key: words}, h(Swatch, {color}), words)));
}

// `look`: from when to when is shown first; null: until now. What is beside it is drawn anew more often.
export const Packing = memo(function Packing({packing, mine, look}) {
  const element = useRef(null), chart = useRef(null), dark = useDark(), navigate = useNavigate(), [failed, setFailed] = useState(null), [ready, setReady] = useState(false);
  useEffect(() => {
    let gone = false;
    loadECharts().then((echarts) => {
      if (gone) return;
      chart.current = new PackingChart(echarts, element.current, (job) => { const path = taskPath(job); if (path) navigate(path); });
      setReady(true);
    }).catch((error) => setFailed(error.message));
    const observer = new ResizeObserver(() => chart.current?.resize());
    observer.observe(element.current);
    return () => { gone = true; observer.disconnect(); chart.current?.dispose(); chart.current = null; };
  }, []);
  useEffect(() => {
    if (!ready) return;
    if (!packing) { chart.current.clear(); delete element.current.dataset.redrawMs; return; } // another window is loaded: what was in the last one is not in it
    const began = performance.now();
    chart.current.update(packing, dark, mine, look);
    element.current.dataset.redrawMs = (performance.now() - began).toFixed(1);
  }, [ready, packing, dark, mine, look]);
  const all = packing ? rowsOf(packing).rows : [], rows = packing ? Math.min(24, all.length) : 4;
  return h("div", null,
    packing ? h(Key, {jobs: packing.jobs}) : h(Spinner),
    h("div", {ref: element, role: "img", "data-testid": "packing-chart", "aria-label": "What ran where", style: {height: Math.max(320, 170 + rows * 26), width: "100%"}}),
    failed ? h("p", {role: "alert"}, `The chart could not be drawn: ${failed}`) : null,
    all.some((row) => row.below) ? h(Muted, null, "What is drawn below the grey of its machine had no room there in one piece. ") : null,
    packing?.truncated ? h(Muted, null, "There are more jobs than can be shown: only the youngest are. Choose a shorter time.") : null);
});
