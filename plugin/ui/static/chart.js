// The packing chart: a row for each machine, as high as it has cpus; a rectangle for each job, time by cpus.
import {clock, count, duration, taskName} from "./words.js";

const COLORS = {running: "#0891b2", succeeded: "#16a34a", failed: "#dc2626", cancelled: "#d97706"};
const HIDDEN = "#9ca3af", GAP = 0.25, ROWS_AT_ONCE = 24, ROWS = "rows";
let loading;

export const loadECharts = () => (loading ??= import(new URL("vendor/echarts.min.js", import.meta.url)).then(() => globalThis.echarts));

// Machines from top to bottom, and the nodes of batch systems of which only the jobs are known.
export function rowsOf(packing) {
  const needed = new Map();
  for (const job of packing.jobs.values()) needed.set(job.place, Math.max(needed.get(job.place) ?? 0, job.lane + job.cpus));
  const rows = [...packing.machines.values()].map((machine) => ({key: machine.key, machine, cpus: Math.max(...machine.spans.map(([, , cpus]) => cpus), needed.get(machine.key) ?? 0)}));
  for (const [key, cpus] of needed) if (!packing.machines.has(key)) rows.push({key, machine: null, cpus});
  rows.sort((one, other) => one.key.localeCompare(other.key));
  const gap = GAP * Math.max(1, Math.min(...rows.map((row) => row.cpus)));
  let top = 0;
  for (const row of rows) { row.top = top; top += row.cpus + gap; }
  return {rows, height: top};
}

// Steps of cpus used, cpus up and USD per hour, from the rectangles and the machines.
export function seriesOf(packing) {
  const steps = [];
  const add = (since, until, used, up, usd) => {
    if (until !== null && until <= packing.since) return;
    steps.push([Math.max(since, packing.since), used, up, usd]);
    if (until !== null) steps.push([until, -used, -up, -usd]);
  };
  for (const job of packing.jobs.values()) add(job.start, job.end, job.cpus, 0, 0);
  let priced = false;
  for (const machine of packing.machines.values()) for (const [since, until, cpus] of machine.spans) {
    priced ||= machine.usd_per_hour !== null;
    add(since, until, 0, cpus, machine.usd_per_hour ?? 0);
  }
  steps.sort((one, other) => one[0] - other[0]);
  const found = {used: [], up: [], usd: priced ? [] : null};
  let used = 0, up = 0, usd = 0;
  const note = (at) => { found.used.push([at * 1000, Math.max(0, used)]); found.up.push([at * 1000, Math.max(0, up)]); found.usd?.push([at * 1000, Math.max(0, usd)]); };
  steps.forEach(([at, more, room, money], index) => {
    used += more; up += room; usd += money;
    if (steps[index + 1]?.[0] !== at) note(Math.min(at, packing.now));
  });
  note(packing.now);
  return found;
}

// Of each machine its cpu-seconds that were up, and those that jobs had. What ran in queues, whose nodes are not known, is not counted.
export function sharesOf({since, now, jobs, machines}) {
  const within = (from, to) => Math.max(0, Math.min(to ?? now, now) - Math.max(from, since)), shares = new Map();
  for (const {key, spans} of machines.values()) shares.set(key, {used: 0, up: spans.reduce((sum, [from, to, cpus]) => sum + within(from, to) * cpus, 0)});
  for (const job of jobs.values()) if (shares.has(job.place)) shares.get(job.place).used += within(job.start, job.end) * job.cpus;
  return shares;
}

// Of the cpus that were up, which share no job had; null: none were up.
export function idleShare(shares) {
  let up = 0, used = 0;
  for (const each of shares.values()) { up += each.up; used += each.used; }
  return up ? Math.max(0, 1 - used / up) : null;
}

const escaped = (words) => String(words).replaceAll("&", "&amp;").replaceAll("<", "&lt;");

function jobTip(job, now) {
  const lines = [`<b>${escaped(taskName(job))}</b>`, `${count(job.cpus)} cpus, ${duration((job.end ?? now) - job.start)}, from ${clock(job.start)}`, escaped(job.place)];
  if (!job.hidden) lines.splice(1, 0, `${escaped(job.runId ?? "")} · try ${job.tryNumber} · ${escaped(job.state)}`);
  return lines.join("<br>");
}

function machineTip(machine) {
  const price = machine.usd_per_hour === null ? "" : `, $${count(machine.usd_per_hour)}/h`;
  return [`<b>${escaped(machine.key)}</b>`, `${escaped(machine.state)} · ${count(machine.cpus)} cpus${price}`, machine.node && escaped(machine.node), machine.native_id && `batch job ${escaped(machine.native_id)}`, machine.reason && escaped(machine.reason)].filter(Boolean).join("<br>");
}

export class PackingChart {
  constructor(echarts, element, onClick) { Object.assign(this, {echarts, element, onClick, chart: null, dark: null, zoomed: null, look: [0, 100], drawn: null}); }
  resize() { this.chart?.resize(); }
  dispose() { this.chart?.dispose(); this.chart = null; }

  // `mine` says which jobs stand out; the others are pale.
  update(packing, dark, mine = () => true) {
    if (!this.chart || this.dark !== dark) {
      this.dispose();
      this.chart = this.echarts.init(this.element, dark ? "dark" : null, {renderer: "canvas"});
      this.chart.on("click", ({data}) => data?.job && this.onClick(data.job));
      this.chart.on("datazoom", (event) => this.scrolled(event.batch ?? [event]));
      this.dark = dark;
      this.zoomed = null;
    }
    this.drawn = [packing, dark, mine];
    this.chart.setOption(this.option(packing, dark, mine), {replaceMerge: ["series"]});
  }

  // Only the rows that are looked at, and as many above and below, have their jobs drawn: thousands would take too long.
  scrolled(zooms) {
    const rows = zooms.find((each) => each.dataZoomId === ROWS);
    if (!rows) return;
    this.look = [rows.start, rows.end];
    this.frame ??= requestAnimationFrame(() => { this.frame = null; if (this.chart) this.update(...this.drawn); });
  }

  near({rows, height}) {
    const [from, to] = this.look.map((share) => (share / 100) * height), margin = to - from;
    return rows.filter((row) => row.top + row.cpus >= from - margin && row.top <= to + margin);
  }

  rectangle(minimum) {
    return (parameters, api) => {
      const [left, top] = api.coord([api.value(0), api.value(2)]), [right, bottom] = api.coord([api.value(1), api.value(3)]);
      const shape = this.echarts.graphic.clipRectByRect({x: left, y: top, width: Math.max(minimum, right - left), height: Math.max(1, bottom - top - 0.5)}, parameters.coordSys);
      return shape && {type: "rect", shape, style: api.style()};
    };
  }

  option(packing, dark, mine) {
    const {rows, height} = rowsOf(packing), series = seriesOf(packing);
    const ms = (at) => at * 1000, ends = (end) => ms(end ?? packing.now), few = Math.min(100, (100 * ROWS_AT_ONCE) / Math.max(1, rows.length));
    const narrow = this.element.clientWidth < 600, left = narrow ? 84 : 170;
    const x = (grid) => ({gridIndex: grid, type: "time", min: ms(packing.since), max: ms(packing.now), axisLabel: {show: grid === 1, hideOverlap: true, formatter: (at) => clock(at / 1000)}, axisTick: {show: grid === 1}, splitLine: {show: true, lineStyle: {opacity: 0.25}}});
    const line = (name, data, color, axis) => ({name, type: "line", step: "end", symbol: "none", xAxisIndex: 1, yAxisIndex: axis, color, sampling: "minmax", areaStyle: axis === 1 ? {opacity: 0.2} : undefined, data, z: 2});
    // A zoom that the user has made stays: only the first drawing says where to look.
    const zooms = this.zoomed === rows.length ? {} : {dataZoom: [
      {type: "slider", xAxisIndex: [0, 1], height: 16, bottom: 6, filterMode: "none", showDetail: false},
      {type: "inside", xAxisIndex: [0, 1], filterMode: "none", zoomOnMouseWheel: "ctrl"},
      {id: ROWS, type: "slider", yAxisIndex: 0, width: 14, right: 4, filterMode: "none", showDetail: false, show: rows.length > ROWS_AT_ONCE, start: 0, end: few},
    ]};
    if (this.zoomed !== rows.length) this.look = [0, few];
    this.zoomed = rows.length;
    const shown = this.near({rows, height}), top = new Map(shown.map((row) => [row.key, row.top]));
    return {
      backgroundColor: "transparent", animation: false, ...zooms,
      aria: {enabled: true, label: {description: `${packing.jobs.size} jobs on ${rows.length} machines; the tables have the same in words.`}},
      legend: {top: 0, data: ["cpus used", "cpus up", ...(series.usd ? ["USD per hour"] : [])]},
      tooltip: {trigger: "item", confine: true, formatter: ({data}) => data?.tip?.() ?? ""},
      axisPointer: {link: [{xAxisIndex: "all"}]},
      grid: [{left, right: 56, top: 28, height: "60%"}, {left, right: 56, bottom: 52, height: "17%"}],
      xAxis: [x(0), x(1)],
      yAxis: [
        {gridIndex: 0, min: 0, max: height || 1, inverse: true, axisLabel: {show: false}, axisLine: {show: false}, axisTick: {show: false}, splitLine: {show: false}},
        {gridIndex: 1, min: 0, splitNumber: 2, name: "cpus", nameTextStyle: {fontSize: 10}},
        {gridIndex: 1, min: 0, splitNumber: 2, splitLine: {show: false}, show: series.usd !== null, name: "USD/h", nameTextStyle: {fontSize: 10}},
      ],
      series: [
        {type: "custom", renderItem: this.rectangle(1), z: 1, encode: {x: [0, 1], y: [2, 3]}, data: shown.filter((row) => row.machine).flatMap(({machine, top: y}) => machine.spans.map(([since, until, cpus]) => ({
          value: [ms(Math.max(since, packing.since)), ends(until), y, y + cpus], itemStyle: {color: dark ? "#27303b" : "#e7ecf2"}, tip: () => machineTip(machine)})))},
        {type: "custom", renderItem: this.rectangle(1.5), z: 2, progressive: 4000, encode: {x: [0, 1], y: [2, 3]}, data: [...packing.jobs.values()].filter((job) => top.has(job.place)).map((job) => ({
          job, value: [ms(job.start), ends(job.end), top.get(job.place) + job.lane, top.get(job.place) + job.lane + job.cpus],
          itemStyle: {color: job.hidden ? HIDDEN : COLORS[job.state] ?? HIDDEN, opacity: mine(job) ? 0.92 : 0.2}, tip: () => jobTip(job, packing.now)}))},
        {type: "custom", z: 3, silent: true, clip: false, data: shown.map((row) => ({value: [ms(packing.since), row.top + row.cpus / 2]})), renderItem: (parameters, api) => {
          const [, y] = api.coord([api.value(0), api.value(1)]), area = parameters.coordSys, row = shown[parameters.dataIndex];
          if (!row || y < area.y || y > area.y + area.height) return null;
          return {type: "text", x: area.x - 8, y, style: {text: row.key, width: left - 16, overflow: "truncate", align: "right", verticalAlign: "middle", fontSize: 11, fill: dark ? "#d4d4d8" : "#3f3f46"}};
        }},
        line("cpus up", series.up, "#94a3b8", 1),
        line("cpus used", series.used, "#0891b2", 1),
        ...(series.usd ? [line("USD per hour", series.usd, "#f59e0b", 2)] : []),
      ],
    };
  }
}
