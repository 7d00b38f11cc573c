// The packing chart as a component; without ECharts the tables beside it say the same.
import {PackingChart, loadECharts, rowsOf} from "./chart.js";
import {Muted, h, useDark, useEffect, useNavigate, useRef, useState} from "./ui.js";
import {taskPath} from "./words.js";

export function Packing({packing, mine}) {
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
    if (!ready || !packing) return;
    const began = performance.now();
    chart.current.update(packing, dark, mine);
    element.current.dataset.redrawMs = (performance.now() - began).toFixed(1);
  }, [ready, packing, dark, mine]);
  const rows = packing ? Math.min(24, rowsOf(packing).rows.length) : 4;
  return h("div", null,
    h("div", {ref: element, role: "img", "data-testid": "packing-chart", "aria-label": "What ran where", style: {height: Math.max(320, 170 + rows * 26), width: "100%"}}),
    failed ? h("p", {role: "alert"}, `The chart could not be drawn: ${failed}`) : null,
    packing?.truncated ? h(Muted, null, "There are more jobs than can be shown: only the youngest are. Choose a shorter time.") : null);
}
