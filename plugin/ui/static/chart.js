// The packing chart: a row for each machine, as high as it has cpus; a rectangle for each job, time by cpus.
import {bought, clock, count, duration, spoken, taskName, tickLabel} from "./words.js";

export const COLORS = {running: "#0891b2", succeeded: "#16a34a", failed: "#dc2626", cancelled: "#d97706"};
export const HIDDEN = "#9ca3af";
const GAP = 0.25, ROWS_AT_ONCE = 24, ROWS = "rows", MOMENTS = 600, RIGHT = 56;
const DIMENSIONS = ["from", "to", "top", "bottom"], BOX = {dimensions: DIMENSIONS, encode: {x: [0, 1], y: [2, 3]}};
let loading;

export const loadECharts = () => (loading ??= import(new URL("vendor/echarts.min.js", import.meta.url)).then(() => globalThis.echarts));

// Machines from top to bottom, and the nodes of batch systems of which only the jobs are known.
export function rowsOf(packing) {
  const needed = new Map();
  for (const job of packing.jobs.values()) needed.set(job.place, Math.max(needed.get(job.place) ?? 0, job.lane + job.cpus));
  const rows = [...packing.machines.values()].map((machine) => {
    const its = Math.max(...machine.spans.map(([, , cpus]) => cpus)), cpus = Math.max(its, needed.get(machine.key) ?? 0);
    return {key: machine.key, machine, cpus, below: cpus > its + 0.001}; // below: a job is drawn below its machine
  });
  for (const [key, cpus] of needed) if (!packing.machines.has(key)) rows.push({key, machine: null, cpus});
  rows.sort((one, other) => one.key.localeCompare(other.key));
  const gap = GAP * Math.max(1, Math.min(...rows.map((row) => row.cpus)));
  let top = 0;
  for (const row of rows) { row.top = top; top += row.cpus + gap; }
  return {rows, height: top};
}

// From when on there is something to see: a house that has just been made fills its chart.
const SHORTEST = 60;
export function beginning({since, until, jobs, machines}) {
  let first = until - SHORTEST;
  for (const {start} of jobs.values()) first = Math.min(first, start);
  for (const {spans} of machines.values()) first = Math.min(first, spans[0][0]);
  return Math.max(since, first);
}

// Whether a job is a batch job of its own: then it is on a node of which only its jobs are known.
const siteOf = (place) => place.slice(0, place.indexOf("/"));
const isBatch = (job, {machines, queues}) => !machines.has(job.place) && siteOf(job.place) in queues;

// Of cpus used, cpus up, cpus in batch jobs and USD per hour the mean of each moment, of which there are as many as a
// screen can show. null: there are no batch jobs, no prices.
export function seriesOf(packing, since) {
  const {until, jobs, machines, queues} = packing, width = (until - since) / MOMENTS;
  const gathered = () => ({within: new Float64Array(MOMENTS), onwards: new Float64Array(MOMENTS + 1)});
  // O(1) for each job, however long: its first and last moment by their share, and one step up and one down between.
  const add = ({within, onwards}, from, to, amount) => {
    const begin = Math.max(0, (from - since) / width), end = Math.min(MOMENTS, ((to ?? until) - since) / width);
    if (!(end > begin)) return;
    const first = Math.floor(begin), last = Math.min(MOMENTS - 1, Math.floor(end));
    if (first === last) { within[first] += amount * (end - begin); return; }
    within[first] += amount * (first + 1 - begin);
    within[last] += amount * (end - last);
    onwards[first + 1] += amount;
    onwards[last] -= amount;
  };
  const points = ({within, onwards}) => {
    const found = [];
    let level = 0;
    for (let moment = 0; moment < MOMENTS; moment++) {
      level += onwards[moment];
      found.push([(since + moment * width) * 1000, Math.max(0, level + within[moment])]);
    }
    return [...found, [until * 1000, found.at(-1)[1]]];
  };
  const used = gathered(), up = gathered(), batch = gathered(), usd = gathered();
  let priced = false, hasBatch = false;
  for (const job of jobs.values()) {
    if (!isBatch(job, packing)) { add(used, job.start, job.end, job.cpus); continue; }
    const cpus = job.cpus * job.nodes, rate = queues[siteOf(job.place)];
    hasBatch = true;
    priced ||= rate !== null;
    add(batch, job.start, job.end, cpus);
    add(usd, job.start, job.end, cpus * (rate ?? 0));
  }
  for (const {spans, usd_per_hour} of machines.values()) for (const [from, to, cpus] of spans) {
    priced ||= usd_per_hour !== null;
    add(up, from, to, cpus);
    add(usd, from, to, usd_per_hour ?? 0);
  }
  return {used: points(used), up: points(up), batch: hasBatch ? points(batch) : null, usd: priced ? points(usd) : null};
}

// Of each machine its cpu-seconds that were up, and those that jobs had. What ran in queues, whose nodes are not known, is not counted.
export function sharesOf({since, until, jobs, machines}) {
  const within = (from, to) => Math.max(0, Math.min(to ?? until, until) - Math.max(from, since)), shares = new Map();
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
  return [`<b>${escaped(machine.key)}</b>`, `${escaped(machine.state)} · ${count(machine.cpus)} cpus${price}`, escaped(bought(machine)), machine.node && escaped(machine.node), machine.native_id && `${machine.instance_type === null ? "batch job " : ""}${escaped(machine.native_id)}`, machine.reason && escaped(spoken(machine.reason))].filter(Boolean).join("<br>");
}

// Its element knows it: so can a test, and who looks from the browser's console.
export class PackingChart {
  constructor(echarts, element, onClick) { Object.assign(this, {echarts, element, onClick, chart: null, dark: null, zoomed: null, look: [0, 100], drawn: null, shown: null}); element.packingChart = this; }
  resize() { this.chart?.resize(); }
  clear() { this.chart?.clear(); this.zoomed = null; }
  dispose() { this.chart?.dispose(); this.chart = null; }

  // `mine` says which jobs stand out, the others are pale; `look` from when to when is looked at first.
  update(packing, dark, mine = () => true, look = null) {
    if (!this.chart || this.dark !== dark) {
      this.dispose();
      this.chart = this.echarts.init(this.element, dark ? "dark" : null, {renderer: "canvas"});
      this.chart.on("click", ({seriesId, dataIndex}) => seriesId === "jobs" && this.onClick(this.shown.jobs[dataIndex]));
      this.chart.on("datazoom", (event) => this.scrolled(event.batch ?? [event]));
      this.dark = dark;
      this.zoomed = null;
    }
    if (packing !== this.drawn?.[0]) this.came = Date.now();
    this.drawn = [packing, dark, mine, look];
    this.chart.setOption(this.option(packing, dark, mine, look), {replaceMerge: ["series"]});
  }

  // Only the rows that are looked at, and some above and below, have their jobs drawn: thousands would take too long.
  scrolled(zooms) {
    const rows = zooms.find((each) => each.dataZoomId === ROWS);
    if (!rows) return;
    this.look = [rows.start, rows.end];
    this.frame ??= requestAnimationFrame(() => { this.frame = null; if (this.chart) this.update(...this.drawn); });
  }

  // How many seconds are looked at, which the zoom decides; null: nothing is drawn yet.
  seconds(left) {
    const [from, to] = [left, this.element.clientWidth - RIGHT].map((at) => this.chart.convertFromPixel({xAxisIndex: 1}, at));
    return to > from ? (to - from) / 1000 : null;
  }

  near({rows, height}) {
    const [from, to] = this.look.map((share) => (share / 100) * height), margin = (to - from) / 4;
    return rows.filter((row) => row.top + row.cpus >= from - margin && row.top <= to + margin);
  }

  // The amounts are one array of numbers, which ECharts takes as it is; objects it would copy, thousands at each drawing.
  boxes(id, z, minimum, values, styleOf) {
    return {...BOX, id, type: "custom", z, data: values, renderItem: (parameters, api) => {
      const [left, top] = api.coord([api.value(0), api.value(2)]), [right, bottom] = api.coord([api.value(1), api.value(3)]);
      // A gap, where there is room for one, tells a job from the next one.
      const gap = id === "jobs" && right - left > 4 ? 1 : 0, width = Math.max(minimum, right - left - gap), height = Math.max(1, bottom - top - 0.5);
      const shape = this.echarts.graphic.clipRectByRect({x: left, y: top, width, height}, parameters.coordSys);
      return shape && {type: "rect", shape, style: styleOf(parameters.dataIndex)};
    }};
  }

  style(job) {
    return {fill: job.hidden ? HIDDEN : COLORS[job.state] ?? HIDDEN, opacity: this.shown.mine(job) ? 0.92 : 0.2};
  }

  tip(seriesId, index) {
    const {jobs, spans, now} = this.shown;
    return seriesId === "jobs" ? jobTip(jobs[index], now + (Date.now() - this.came) / 1000) : seriesId === "machines" ? machineTip(spans[index].machine) : "";
  }

  option(packing, dark, mine, look) {
    const {rows, height} = rowsOf(packing), since = beginning(packing), series = seriesOf(packing, since);
    const ms = (at) => at * 1000, ends = (end) => ms(end ?? packing.until), few = Math.min(100, (100 * ROWS_AT_ONCE) / Math.max(1, rows.length));
    const below = Math.max(56, 0.17 * this.element.clientHeight); // of the lower chart, and above it a line for what its axes are called
    const narrow = this.element.clientWidth < 600, left = narrow ? 84 : 170;
    const x = (grid) => ({gridIndex: grid, type: "time", min: ms(since), max: ms(packing.until), axisLabel: {show: grid === 1, hideOverlap: true, formatter: (at) => tickLabel(at / 1000, this.seconds(left) ?? packing.until - since)}, axisTick: {show: grid === 1}, splitLine: {show: true, lineStyle: {opacity: 0.25}}});
    const line = (name, data, color, axis) => ({id: name, name, type: "line", step: "end", symbol: "none", xAxisIndex: 1, yAxisIndex: axis, color, areaStyle: axis === 1 ? {opacity: 0.2} : undefined, data, z: 2});
    // A zoom that the user has made stays: only the first drawing says where to look.
    const first = look ? {startValue: ms(Math.max(since, look[0])), ...(look[1] === null ? {end: 100} : {endValue: ms(Math.min(packing.until, look[1]))})} : {};
    const zooms = this.zoomed === rows.length ? {} : {dataZoom: [
      {type: "slider", xAxisIndex: [0, 1], ...first, height: 16, bottom: 6, filterMode: "none", showDetail: false},
      {type: "inside", xAxisIndex: [0, 1], ...first, filterMode: "none", zoomOnMouseWheel: "ctrl"},
      {id: ROWS, type: "slider", yAxisIndex: 0, width: 14, right: 4, filterMode: "none", showDetail: false, show: rows.length > ROWS_AT_ONCE, start: 0, end: few},
    ]};
    if (this.zoomed !== rows.length) this.look = [0, few];
    this.zoomed = rows.length;
    const shown = this.near({rows, height}), top = new Map(shown.map((row) => [row.key, row.top]));
    const spans = shown.filter((row) => row.machine).flatMap(({machine, top: y}) => machine.spans.map(([from, until, cpus]) => ({machine, from, until, y, cpus})));
    const jobs = [...packing.jobs.values()].filter((job) => top.has(job.place));
    this.shown = {jobs, spans, mine, now: packing.now};
    const values = (all, box) => { const found = new Float64Array(4 * all.length); all.forEach((each, index) => found.set(box(each), 4 * index)); return found; };
    const ofSpan = ({from, until, y, cpus}) => [ms(Math.max(from, since)), ends(until), y, y + cpus];
    const ofJob = ({place, start, end, lane, cpus}) => [ms(start), ends(end), top.get(place) + lane, top.get(place) + lane + cpus];
    const machineStyle = {fill: dark ? "#27303b" : "#e7ecf2"};
    return {
      backgroundColor: "transparent", animation: false, ...zooms,
      aria: {enabled: true, label: {description: `${packing.jobs.size} jobs on ${rows.length} machines; the tables have the same in words.`}},
      legend: {top: 0, data: ["cpus used", "cpus up", ...(series.batch ? ["cpus in batch jobs"] : []), ...(series.usd ? ["USD per hour"] : [])]},
      tooltip: {trigger: "item", confine: true, formatter: ({seriesId, dataIndex}) => this.tip(seriesId, dataIndex)},
      axisPointer: {link: [{xAxisIndex: "all"}]},
      grid: [{left, right: RIGHT, top: 28, bottom: 52 + below + 34}, {left, right: RIGHT, bottom: 52, height: below}],
      xAxis: [x(0), x(1)],
      yAxis: [
        {gridIndex: 0, min: 0, max: height || 1, inverse: true, axisLabel: {show: false}, axisLine: {show: false}, axisTick: {show: false}, splitLine: {show: false}},
        {gridIndex: 1, min: 0, splitNumber: 2, name: "cpus", nameTextStyle: {fontSize: 10}},
        {gridIndex: 1, min: 0, splitNumber: 2, splitLine: {show: false}, show: series.usd !== null, name: "USD/h", nameTextStyle: {fontSize: 10}},
      ],
      series: [
        this.boxes("machines", 1, 1, values(spans, ofSpan), () => machineStyle),
        this.boxes("jobs", 2, 1.5, values(jobs, ofJob), (index) => this.style(jobs[index])),
        {id: "names", type: "custom", z: 3, silent: true, clip: false, data: shown.map((row) => ({value: [ms(since), row.top + row.cpus / 2]})), renderItem: (parameters, api) => {
          const [, y] = api.coord([api.value(0), api.value(1)]), area = parameters.coordSys, row = shown[parameters.dataIndex];
          if (!row || y < area.y || y > area.y + area.height) return null;
          return {type: "text", x: area.x - 8, y, style: {text: row.key, width: left - 16, overflow: "truncate", align: "right", verticalAlign: "middle", fontSize: 11, fill: dark ? "#d4d4d8" : "#3f3f46"}};
        }},
        line("cpus up", series.up, "#94a3b8", 1),
        line("cpus used", series.used, "#0891b2", 1),
        ...(series.batch ? [line("cpus in batch jobs", series.batch, "#8b5cf6", 1)] : []),
        ...(series.usd ? [line("USD per hour", series.usd, "#f59e0b", 2)] : []),
      ],
    };
  }
}
