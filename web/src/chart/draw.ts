// The packing chart: a row per machine whose height is its cpus, and a rectangle of time × cpus per job.
import type {ChartMachine} from "../api_types";
import {bought, count, cpusText, date, day, duration, machineState, memory, moment, spoken, tickLabel} from "../format";
import {keyOf, taskName} from "../paths";
import {DARK, LIGHT, SLANTS, shownState, type Palette} from "./colors";
import type {ChartJob, Packing} from "./packing";
import {MOMENTS, beginning, reachedSpans, rowsOf, seriesOf, siteOf, wasUp, type Layout, type Measure, type Row} from "./rows";

type ECharts = typeof import("./echarts");
type Chart = ReturnType<ECharts["init"]>;
interface Zoom {dataZoomId?: string; start: number; end: number}
/** The argument that ECharts passes to a function that draws one item. */
interface Parameters {dataIndex: number; coordSys: {x: number; y: number; width: number; height: number}}
interface Api {value: (dimension: number) => number; coord: (point: [number, number]) => [number, number]}

const ROWS_AT_ONCE = 24, ROWS = "rows", RIGHT = 56;
const BOX = {dimensions: ["from", "to", "top", "bottom"], encode: {x: [0, 1], y: [2, 3]}};
let loading: Promise<ECharts> | undefined;
export const loadECharts = (): Promise<ECharts> =>
  (loading ??= import("./echarts").catch((error: unknown) => {
    loading = undefined; // let the next chart try again
    throw error;
  }));

const escaped = (text: unknown) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const lines = (parts: (string | null | undefined | false)[]) => parts.filter(Boolean).join("<br>");

function jobTip(job: ChartJob, now: number): string {
  return lines([
    `<b>${escaped(taskName(keyOf(job)))}</b>`,
    !job.hidden && `${escaped(job.runId ?? "")} · try ${job.tryNumber} · ${escaped(job.state)}`,
    `${cpusText(job.cpus)}, ${memory(job.memory)}${job.peak === null ? "" : ` (at most ${memory(job.peak)} used)`}, ${duration((job.end ?? now) - job.start)}, from ${moment(job.start, now)}`,
    escaped(job.place),
  ]);
}

/** @param isBatch: whether its native id is that of a batch job, as for allocations */
export function machineTip(machine: ChartMachine, isBatch: boolean): string {
  const price = machine.usd_per_hour === null ? "" : `, $${count(machine.usd_per_hour)}/h`;
  return lines([
    `<b>${escaped(machine.key)}</b>`,
    `${escaped(machineState(machine).filter(Boolean).join(" "))} · ${count(machine.cpus)} cpus, ${memory(machine.memory)}${price}`,
    escaped(bought(machine)),
    machine.node && escaped(machine.node),
    machine.native_id && `${isBatch ? "batch job " : ""}${escaped(machine.native_id)}`,
    machine.reason && escaped(spoken(machine.reason)),
  ]);
}

// A colour with hatching, for users who cannot tell colours apart.
const patterns = new Map<string, unknown>();
function fill(color: string, slant: number | null): unknown {
  if (slant === null) return color;
  const key = `${color} ${slant}`;
  if (!patterns.has(key)) {
    const canvas = document.createElement("canvas"), size = 8;
    canvas.width = canvas.height = size;
    const context = canvas.getContext("2d");
    if (!context) return color;
    context.fillStyle = color;
    context.fillRect(0, 0, size, size);
    context.strokeStyle = "rgba(255, 255, 255, 0.45)";
    context.lineWidth = 1.5;
    const [from, to] = slant === 0 ? [[-1, 4], [9, 4]] : slant === 45 ? [[-1, 9], [9, -1]] : [[-1, -1], [9, 9]];
    context.beginPath();
    context.moveTo(from[0], from[1]);
    context.lineTo(to[0], to[1]);
    context.stroke();
    patterns.set(key, {image: canvas, repeat: "repeat"});
  }
  return patterns.get(key);
}

const EVERY = () => true;
/** The names of the lines in the lower chart. */
const MEASURES: Record<Measure, {unit: string; requested: string; up: string; batch: string}> = {
  cpus: {unit: "cpus", requested: "cpus requested", up: "cpus up", batch: "cpus in batch jobs"},
  memory: {unit: "GiB", requested: "GiB requested", up: "GiB up", batch: "GiB of batch jobs"},
};
const PEAKS = "GiB at peak";
interface Drawn {packing: Packing; dark: boolean; mine: (job: ChartJob) => boolean; look: [number, number | null] | null; layout: Layout; measure: Measure}
interface Cell {row: Row; from: number; until: number; top: number; level: number}

/** Also set as `packingChart` on its element, for tests and the browser's console. */
export class PackingChart {
  chart: Chart | null = null;
  shown: {jobs: ChartJob[]; spans: {machine: ChartMachine; isSilent: boolean; from: number; until: number | null; y: number; cpus: number}[]; cells: Cell[]; mine: (job: ChartJob) => boolean; now: number; queues: Packing["queues"]} | null = null;
  private dark: boolean | null = null;
  private zoomed: number | null = null;
  private look: [number, number] = [0, 100];
  private drawn: Drawn | null = null;
  private came = 0;
  private frame: number | null = null;
  private size = "";

  constructor(private readonly echarts: ECharts, private readonly element: HTMLElement, private readonly onClick: (job: ChartJob) => void) {
    (element as HTMLElement & {packingChart?: PackingChart}).packingChart = this;
    // ECharts keeps each turn of the wheel from scrolling the page, whether it zooms or not.
    for (const name of ["wheel", "mousewheel"]) element.addEventListener(name, (event) => { if (!(event as WheelEvent).ctrlKey) event.stopPropagation(); }, {capture: true});
  }
  /** Redraws the chart if the size of its element has changed. The observer also fires for the initial layout. */
  resize(): void {
    if (!this.chart || !this.drawn || this.size === this.sizeNow()) return;
    this.draw(this.drawn, true);
    this.chart.resize(); // also applies the lazy update
  }
  private sizeNow(): string { return `${this.element.clientWidth} ${this.element.clientHeight}`; }
  clear(): void { this.chart?.clear(); this.zoomed = null; }
  dispose(): void { this.chart?.dispose(); this.chart = null; if (this.frame !== null) cancelAnimationFrame(this.frame); this.frame = null; }
  private get palette(): Palette { return this.dark ? DARK : LIGHT; }

  /** `mine` selects the jobs to highlight, the others are pale; `look` is the time range to show first. */
  update(packing: Packing, dark: boolean, mine: Drawn["mine"] = EVERY, look: Drawn["look"] = null, layout: Layout = rowsOf(packing), measure: Measure = "cpus"): void {
    if (!this.chart || this.dark !== dark) {
      this.dispose();
      this.chart = this.echarts.init(this.element, dark ? "dark" : null, {renderer: "canvas"});
      this.chart.on("click", (event) => {
        if (event.seriesId === "jobs" && this.shown) this.onClick(this.shown.jobs[event.dataIndex]);
      });
      this.chart.on("datazoom", (event) => this.scrolled(((event as {batch?: Zoom[]}).batch ?? [event]) as Zoom[]));
      this.dark = dark;
      this.zoomed = null;
    }
    if (packing !== this.drawn?.packing) this.came = Date.now();
    this.draw((this.drawn = {packing, dark, mine, look, layout, measure}), false);
  }

  private draw(drawn: Drawn, lazyUpdate: boolean): void {
    this.size = this.sizeNow();
    this.chart?.setOption(this.option(drawn) as never, {replaceMerge: ["series"], lazyUpdate});
  }

  // Only the jobs of visible rows, and of some above and below, are drawn: thousands of them would take too long.
  private scrolled(zooms: Zoom[]): void {
    const rows = zooms.find((each) => each.dataZoomId === ROWS);
    if (!rows) return;
    this.look = [rows.start, rows.end];
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      const drawn = this.drawn;
      if (this.chart && drawn) this.update(drawn.packing, drawn.dark, drawn.mine, drawn.look, drawn.layout, drawn.measure);
    });
  }

  /** The seconds that are visible at the current zoom; null: nothing is drawn yet. */
  seconds(left: number): number | null {
    const [from, to] = [left, this.element.clientWidth - RIGHT].map((at) => this.chart?.convertFromPixel({xAxisIndex: 1}, at) as unknown as number);
    return to > from ? (to - from) / 1000 : null;
  }

  private near({rows, height}: Layout): Row[] {
    const [from, to] = this.look.map((share) => (share / 100) * height), margin = (to - from) / 4;
    return rows.filter((row) => row.top + row.cpus >= from - margin && row.top <= to + margin);
  }

  // One typed array, which ECharts uses as it is; it would copy thousands of objects for each drawing.
  private boxes(id: string, z: number, minimum: number, values: Float64Array, styleOf: (index: number) => unknown) {
    return {...BOX, id, type: "custom", z, data: values, renderItem: (parameters: Parameters, api: Api) => {
      const [left, top] = api.coord([api.value(0), api.value(2)]), [right, bottom] = api.coord([api.value(1), api.value(3)]);
      // A gap separates consecutive jobs if there is room for one.
      const gap = id === "jobs" && right - left > 4 ? 1 : id === "cells" || id === "own" || id === "up" ? -0.6 : 0, width = Math.max(minimum, right - left - gap), height = Math.max(1, bottom - top - 0.5);
      const shape = this.echarts.graphic.clipRectByRect({x: left, y: top, width, height}, parameters.coordSys);
      return shape && {type: "rect", shape, style: styleOf(parameters.dataIndex)};
    }};
  }

  /** The colour of a job without hatching. */
  color(job: ChartJob): string { return this.palette[shownState(job.state, job.hidden)]; }
  private style(job: ChartJob) {
    return {fill: fill(this.color(job), SLANTS[shownState(job.state, job.hidden)]), opacity: this.shown?.mine(job) ? 0.95 : 0.25};
  }

  tip(seriesId: string | undefined, index: number): string {
    if (!this.shown) return "";
    const {jobs, spans, cells, now, queues} = this.shown;
    if (seriesId === "jobs") return jobTip(jobs[index], now + (Date.now() - this.came) / 1000);
    if (seriesId === "machines") return machineTip(spans[index].machine, spans[index].machine.site in queues);
    if (seriesId !== "cells") return "";
    const {row, from, level} = cells[index];
    return lines([`<b>${escaped(row.label)}</b>`, `${count(level)} cpus busy at ${date(from)}`]);
  }

  // Converts a density row to rectangles, one for each time range with a nearly constant level.
  private cellsOf(row: Row, since: number, until: number, levels: number[], most: number): Cell[] {
    const width = (until - since) / MOMENTS, cells: Cell[] = [];
    for (let moment = 0; moment < MOMENTS; moment++) {
      const level = levels[moment], last = cells.at(-1);
      if (last && Math.abs(last.level - level) < most / 200) last.until = since + (moment + 1) * width;
      else cells.push({row, from: since + moment * width, until: since + (moment + 1) * width, level, top: row.top + row.cpus * (1 - level / most)});
    }
    return cells.filter(({level}) => level > 0);
  }

  private option({packing, dark, mine, look, layout, measure}: Drawn) {
    const {rows, height} = layout, since = beginning(packing), series = seriesOf(packing, since, measure), names = MEASURES[measure], palette = this.palette;
    const ms = (at: number) => at * 1000, ends = (end: number | null) => ms(end ?? packing.until);
    const few = Math.min(100, (100 * ROWS_AT_ONCE) / Math.max(1, rows.length));
    const below = Math.max(56, 0.17 * this.element.clientHeight); // the height of the lower chart; the names of its axes need another line above it
    const narrow = this.element.clientWidth < 600, left = narrow ? 96 : 170;
    const requested = narrow ? names.requested : `${names.requested} by running jobs`;
    const label = (at: number) => tickLabel(at / 1000, this.seconds(left) ?? packing.until - since);
    const days = [...new Set([day(since), day(packing.until)])].join(" – ");
    const x = (grid: number) => ({gridIndex: grid, type: "time", ...(grid === 1 ? {name: days, nameLocation: "middle", nameGap: 20, nameTextStyle: {fontSize: 11}} : {}), min: ms(since), max: ms(packing.until), axisLabel: {show: grid === 1, hideOverlap: true, formatter: label}, axisTick: {show: grid === 1}, axisLine: {show: grid === 1}, splitLine: {show: true, lineStyle: {opacity: 0.25}}});
    const line = (name: string, data: [number, number][], color: string, axis: number, dash: string) => ({id: name, name, type: "line", step: "end", symbol: "none", xAxisIndex: 1, yAxisIndex: axis, color, lineStyle: {type: dash}, areaStyle: axis === 1 ? {opacity: 0.15} : undefined, data, z: 2});
    // Only the first drawing sets the visible range, so that the user's zoom is kept.
    const first = look ? {startValue: ms(Math.max(since, look[0])), ...(look[1] === null ? {end: 100} : {endValue: ms(Math.min(packing.until, look[1]))})} : {};
    const zooms = this.zoomed === rows.length ? {} : {dataZoom: [
      {type: "slider", xAxisIndex: [0, 1], ...first, height: 16, bottom: 6, filterMode: "none", showDetail: false},
      {type: "inside", xAxisIndex: [0, 1], ...first, filterMode: "none", zoomOnMouseWheel: "ctrl"},
      {id: ROWS, type: "slider", yAxisIndex: 0, width: 14, right: 4, filterMode: "none", showDetail: false, show: rows.length > ROWS_AT_ONCE, start: 0, end: few},
    ]};
    if (this.zoomed !== rows.length) this.look = [0, few];
    this.zoomed = rows.length;
    const shown = this.near(layout), top = new Map(shown.filter(({density}) => !density).map((row) => [row.key, row.top]));
    const spans = shown.flatMap(({machine, top: y}) => {
      if (!machine) return [];
      const {reached, silent} = reachedSpans(machine);
      return [...reached, ...silent].map(([from, until, cpus], index) => ({machine, isSilent: index >= reached.length, from, until, y, cpus}));
    });
    const jobs = [...packing.jobs.values()].filter((job) => top.has(job.place));
    const dense = shown.flatMap((row) => (row.density ? [{row, ...row.density}] : []));
    const cells = dense.flatMap(({row, levels, most}) => this.cellsOf(row, since, packing.until, levels, most));
    const up = dense.flatMap(({row, up: levels, most}) => this.cellsOf(row, since, packing.until, levels, most));
    const own = dense.flatMap(({row, mine: levels, most}) => this.cellsOf(row, since, packing.until, levels, most));
    this.shown = {jobs, spans, cells, mine, now: packing.now, queues: packing.queues};
    const values = <Each>(all: Each[], box: (each: Each) => number[]) => {
      const found = new Float64Array(4 * all.length);
      all.forEach((each, index) => found.set(box(each), 4 * index));
      return found;
    };
    const topOf = (place: string) => top.get(place) ?? 0;
    const ofCell = (cell: Cell) => [ms(cell.from), ms(cell.until), cell.top, cell.row.top + cell.row.cpus];
    const [cellStyle, ownStyle, machineStyle] = [{fill: mine === EVERY ? palette.running : palette.pale}, {fill: palette.running}, {fill: palette.machine}];
    const bootStyle = {fill: "none", stroke: palette.hidden, lineDash: [3, 3]}, silentStyle = {...bootStyle, stroke: palette.failed};
    const spanStyle = ({machine, isSilent}: (typeof spans)[number]) => (isSilent ? silentStyle : wasUp(machine) ? machineStyle : bootStyle);
    return {
      backgroundColor: "transparent", animation: false, ...zooms,
      aria: {enabled: true, label: {description: `${packing.jobs.size} jobs on ${packing.machines.size} machines; the tables contain the same data as text.`}},
      legend: {top: 0, type: narrow ? "scroll" : "plain", data: [requested, ...(series.peaks ? [PEAKS] : []), names.up, ...(series.batch ? [names.batch] : []), ...(series.usd ? ["USD per hour"] : [])]},
      tooltip: {trigger: "item", confine: true, formatter: (item: {seriesId?: string; dataIndex: number}) => this.tip(item.seriesId, item.dataIndex)},
      axisPointer: {link: [{xAxisIndex: "all"}]},
      grid: [{left, right: RIGHT, top: 28, bottom: 60 + below + 34}, {left, right: RIGHT, bottom: 60, height: below}],
      xAxis: [x(0), x(1)],
      yAxis: [
        {gridIndex: 0, min: 0, max: height || 1, inverse: true, axisLabel: {show: false}, axisLine: {show: false}, axisTick: {show: false}, splitLine: {show: false}},
        {gridIndex: 1, min: 0, splitNumber: 2, name: names.unit, nameTextStyle: {fontSize: 10}},
        {gridIndex: 1, min: 0, splitNumber: 2, splitLine: {show: false}, show: series.usd !== null, name: "USD/h", nameTextStyle: {fontSize: 10}},
      ],
      series: [
        this.boxes("machines", 1, 1, values(spans, ({from, until, y, cpus}) => [ms(Math.max(from, since)), ends(until), y, y + cpus]), (index) => spanStyle(spans[index])),
        this.boxes("up", 1, 1, values(up, ofCell), () => machineStyle),
        this.boxes("cells", 1, 1, values(cells, ofCell), () => cellStyle),
        this.boxes("own", 2, 1, values(own, ofCell), () => ownStyle),
        this.boxes("jobs", 2, 1.5, values(jobs, ({place, start, end, lane, cpus}) => [ms(start), ends(end), topOf(place) + lane, topOf(place) + lane + cpus]), (index) => this.style(jobs[index])),
        {id: "names", type: "custom", z: 3, silent: true, clip: false, data: shown.map((row) => ({value: [ms(since), row.top + row.cpus / 2]})), renderItem: (parameters: Parameters, api: Api) => {
          const [, y] = api.coord([api.value(0), api.value(1)]), area = parameters.coordSys, row = shown[parameters.dataIndex];
          if (!row || y < area.y || y > area.y + area.height) return null;
          return {type: "text", x: area.x - 8, y, style: {text: narrow && row.machine ? row.label.slice(siteOf(row.label).length + 1) : row.label, width: left - 16, overflow: "truncate", align: "right", verticalAlign: "middle", fontSize: 11, fontWeight: row.density ? "bold" : "normal", fill: dark ? "#d4d4d8" : "#3f3f46"}};
        }},
        line(names.up, series.up, palette.hidden, 1, "dashed"),
        line(requested, series.used, palette.running, 1, "solid"),
        ...(series.peaks ? [line(PEAKS, series.peaks, palette.shares.used, 1, "solid")] : []),
        ...(series.batch ? [line(names.batch, series.batch, palette.phases.boot, 1, "solid")] : []),
        ...(series.usd ? [line("USD per hour", series.usd, palette.phases.queue, 2, "dotted")] : []),
      ],
    };
  }
}
