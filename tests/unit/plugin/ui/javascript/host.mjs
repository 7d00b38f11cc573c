// Stand-ins for what Airflow's UI and a browser give to the page: enough of React to run hooks, a clock, and answers.
export const document = {hidden: false, addEventListener() {}, removeEventListener() {}, documentElement: {classList: {contains: () => false}}};

// What runs in the place of time: nothing happens until `pass` says so.
export class Clock {
  constructor(now) { this.now = now; this.timers = new Map(); this.last = 0; }
  install() {
    globalThis.setTimeout = (call, wait = 0) => this.add(call, wait, null);
    globalThis.setInterval = (call, wait) => this.add(call, wait, wait);
    globalThis.clearTimeout = globalThis.clearInterval = (id) => this.timers.delete(id);
    Date.now = () => this.now;
  }
  add(call, wait, every) { this.timers.set(++this.last, {call, at: this.now + wait, every}); return this.last; }
  async pass(milliseconds) {
    for (const end = this.now + milliseconds; ;) {
      const [next] = [...this.timers].filter(([, {at}]) => at <= end).sort(([, one], [, other]) => one.at - other.at);
      if (!next) { this.now = end; break; }
      const [id, timer] = next;
      this.now = timer.at;
      if (timer.every === null) this.timers.delete(id); else timer.at += timer.every;
      timer.call();
      await settled();
    }
    await settled();
  }
}

// Until all that waits for nothing but promises has gone on.
export const settled = () => new Promise((resolve) => setImmediate(resolve));

let component = null;
const hook = (make) => { const {cells} = component, at = component.at++; return (cells[at] ??= make()); };
const changed = (before, keys) => !before || keys === undefined || keys.some((key, index) => !Object.is(key, before[index]));
export const React = {
  Component: class { constructor(props) { this.props = props; } },
  createElement: (type, props, ...children) => ({type, props: {...props}, children}),
  memo: (part) => part,
  useState(first) {
    const owner = component, cell = hook(() => ({value: first}));
    const set = (next) => {
      const value = typeof next === "function" ? next(cell.value) : next;
      owner.stale ||= !Object.is(value, cell.value);
      cell.value = value;
    };
    return [cell.value, set];
  },
  useRef(first) { return hook(() => ({current: first})); },
  useMemo(make, keys) { const cell = hook(() => ({})); if (changed(cell.keys, keys)) Object.assign(cell, {value: make(), keys}); return cell.value; },
  useEffect(effect, keys) {
    const cell = hook(() => ({}));
    if (changed(cell.keys, keys)) component.effects.push(() => { cell.end?.(); cell.end = effect(); });
    cell.keys = keys;
  },
};

// A component that is nothing but a hook: `use(...)` renders it, `value()` is what it says when it is drawn anew.
export class Mounted {
  constructor(hookOf) { Object.assign(this, {hookOf, cells: [], effects: [], at: 0, stale: false, drawn: 0}); }
  use(...given) {
    this.given = given;
    this.render();
    return this.result;
  }
  render() {
    Object.assign(this, {at: 0, stale: false, drawn: this.drawn + 1});
    component = this;
    this.result = this.hookOf(...this.given);
    component = null;
    for (const effect of this.effects.splice(0)) effect();
  }
  value() { while (this.stale) this.render(); return this.result; }
  end() { for (const {end} of this.cells) end?.(); }
}

// What the application answers, by path; each asked address is noted.
export class Answers {
  constructor(answers) { Object.assign(this, {answers, asked: [], away: false}); }
  install() {
    globalThis.fetch = async (url, {signal} = {}) => {
      this.asked.push(`${url.pathname.split("/").at(-1)}${url.search}`);
      if (this.away) throw new Error("Failed to fetch");
      const answer = await this.answers(url.pathname.split("/").at(-1), url.searchParams);
      if (signal?.aborted) throw new Error("aborted");
      return {status: 200, ok: true, json: async () => answer};
    };
  }
}

Object.assign(globalThis, {React, document});
