// The parts that pages are made of: Chakra's where the host has it, else plain HTML with the same words and tables.
import {csv} from "./csv.js";

const React = globalThis.React, C = globalThis.ChakraUI, RR = globalThis.ReactRouterDOM;

export const {createElement: h, memo, useEffect, useMemo, useRef, useState} = React;

const LINE = "1px solid color-mix(in srgb, currentColor 22%, transparent)";

// What is wrong in one component must not take Airflow's page down.
export class Guarded extends React.Component {
  constructor(props) { super(props); this.state = {error: null}; }
  static getDerivedStateFromError(error) { return {error}; }
  render() { return this.state.error ? h("p", {role: "alert"}, `Lading's page has failed: ${this.state.error.message}`) : this.props.children; }
}

export const Frame = ({children}) => h("div", {style: {padding: 16, overflowY: "auto", height: "100%", display: "flex", flexDirection: "column", gap: 20}, "data-testid": "lading"}, children);
export const Swatch = ({color}) => h("span", {style: {display: "inline-block", width: 9, height: 9, borderRadius: 2, marginInlineEnd: 4, background: color}});
export const Row = ({children}) => h("div", {style: {display: "flex", flexWrap: "wrap", gap: 8, alignItems: "center"}}, children);
export const Muted = ({children}) => h("span", {style: {opacity: 0.7, fontSize: "0.875em"}}, children);
export const Spinner = () => (C?.Spinner ? h(C.Spinner, {size: "sm"}) : h("p", null, "loading …"));
export const Trouble = ({words}) => (words ? h("p", {role: "alert", style: {color: "var(--chakra-colors-fg-error, #b91c1c)"}}, `Could not be loaded: ${words}`) : null);

export function Section({title, more, children}) {
  const heading = C?.Heading ? h(C.Heading, {as: "h2", size: "md"}, title) : h("h2", {style: {fontWeight: 600, fontSize: "1.1em"}}, title);
  return h("section", {"aria-label": title}, h("div", {style: {display: "flex", flexWrap: "wrap", justifyContent: "space-between", gap: 8, marginBottom: 8}}, heading, more), children);
}

export const Tiles = ({children}) => h("div", {style: {display: "grid", gridTemplateColumns: "repeat(auto-fit, minmax(130px, 1fr))", gap: 12}}, children);

export function Tile({label, value, help}) {
  if (!C?.Stat) return h("div", {style: {border: LINE, borderRadius: 6, padding: 12}, "data-tile": label}, h("div", null, label), h("strong", null, value), h("div", null, help));
  return h(C.Stat.Root, {borderWidth: 1, borderRadius: "md", p: 3, "data-tile": label}, h(C.Stat.Label, null, label), h(C.Stat.ValueText, null, value), help ? h(C.Stat.HelpText, {mb: 0}, help) : null);
}

const COLORS = {up: "green", paused: "orange", running: "cyan", succeeded: "green", failed: "red", down: "red", unreachable: "red", cancelled: "orange", booting: "yellow", ordered: "yellow", draining: "orange"};
export function Badge({word}) {
  if (!word) return null;
  return C?.Badge ? h(C.Badge, {colorPalette: COLORS[word] ?? "gray"}, word) : h("b", null, word);
}

export function Button({onClick, children, ...more}) {
  return C?.Button ? h(C.Button, {size: "xs", variant: "outline", onClick, ...more}, children) : h("button", {type: "button", onClick, style: {border: LINE, borderRadius: 4, padding: "0 6px"}, ...more}, children);
}

// A button that asks once more before it does something; what went wrong is said beside it.
export function Confirmed({label, question, onYes}) {
  const [asks, setAsks] = useState(false), [said, setSaid] = useState(null), [refused, setRefused] = useState(false);
  const no = () => { setAsks(false); setRefused(true); }; // whoever works by keyboard is where he was
  const yes = async () => {
    setAsks(false);
    try { await onYes(); setSaid("asked"); } catch (error) { setSaid(error.message); }
  };
  if (!asks) return h("span", null, h(Button, {autoFocus: refused, onClick: () => { setSaid(null); setAsks(true); }}, label), said ? h("span", {role: "status"}, ` ${said}`) : null);
  return h("span", {role: "alertdialog", "aria-label": question, onKeyDown: (event) => event.key === "Escape" && no()}, `${question} `, h(Button, {onClick: yes}, "Yes"), " ", h(Button, {onClick: no, autoFocus: true}, "No"));
}

// Within Airflow's own router, so that the page is not loaded anew.
export function Link({to, children}) {
  if (!to) return children;
  if (RR?.Link) return h(RR.Link, {to, style: {textDecoration: "underline"}}, children);
  return h("a", {href: to}, children);
}
export const useNavigate = () => (RR?.useNavigate ? RR.useNavigate() : (to) => { window.location.assign(to); });

export function Select({label, value, options, onChange}) {
  const props = {value, "aria-label": label, onChange: (event) => onChange(event.target.value)};
  const choices = options.map(([key, words]) => h("option", {key, value: key}, words));
  return C?.NativeSelect ? h(C.NativeSelect.Root, {size: "xs", width: "auto"}, h(C.NativeSelect.Field, props, choices), h(C.NativeSelect.Indicator)) : h("select", props, choices);
}

export function Input({label, value, placeholder, onChange}) {
  const props = {value, placeholder, "aria-label": label, onChange: (event) => onChange(event.target.value)};
  return C?.Input ? h(C.Input, {size: "xs", width: "14em", ...props}) : h("input", {type: "text", style: {border: LINE, borderRadius: 4, padding: "0 6px"}, ...props});
}

// So many rows are shown until all are asked for: more would make each redraw slow.
const ROWS_AT_ONCE = 50;

// A table, which can be had as CSV. A column: {title, cell(row), text(row) for CSV, false: not in it, number: right-aligned,
// shown false: only in CSV, has(row) whether a row has anything there: it is shown where some row has}. `load` gets what
// the CSV has, where that is more than the rows.
export function Table({name, columns: known, rows: all, empty, few = ROWS_AT_ONCE, load}) {
  const columns = known.filter(({shown, has}) => shown !== false && (!has || all.some(has)));
  const [whole, setWhole] = useState(false), rows = whole ? all : all.slice(0, few);
  if (!rows.length) return h("p", null, h(Muted, null, empty));
  const cells = (row) => columns.map(({title, cell, number}) => [title, cell(row), number ? {textAlign: "end", fontVariantNumeric: "tabular-nums", whiteSpace: "nowrap"} : {}]);
  const table = C?.Table
    ? h(C.Table.Root, {size: "sm", "aria-label": name},
        h(C.Table.Header, null, h(C.Table.Row, null, columns.map(({title, number}) => h(C.Table.ColumnHeader, {key: title, textAlign: number ? "end" : "start"}, title)))),
        h(C.Table.Body, null, rows.map((row, index) => h(C.Table.Row, {key: row.key ?? index}, cells(row).map(([title, value, style]) => h(C.Table.Cell, {key: title, style}, value))))))
    : h("table", {"aria-label": name, style: {borderCollapse: "collapse", width: "100%"}},
        h("thead", null, h("tr", null, columns.map(({title, number}) => h("th", {key: title, scope: "col", style: {textAlign: number ? "end" : "start", borderBottom: LINE, padding: 4}}, title)))),
        h("tbody", null, rows.map((row, index) => h("tr", {key: row.key ?? index}, cells(row).map(([title, value, style]) => h("td", {key: title, style: {...style, borderBottom: LINE, padding: 4, verticalAlign: "top"}}, value))))));
  return h("div", null,
    h("div", {style: {overflowX: "auto"}, tabIndex: 0, role: "region", "aria-label": `${name}, table`}, table),
    h("div", {style: {marginTop: 4, display: "flex", justifyContent: "flex-end", gap: 8}},
      all.length > few ? h(Button, {onClick: () => setWhole(!whole)}, whole ? `First ${few}` : `All ${all.length} rows`) : null,
      h(Csv, {name, columns: known, load: load ?? (async () => all)})));
}

function Csv({name, columns, load}) {
  const [said, setSaid] = useState(null);
  const onClick = async () => {
    setSaid("loading …");
    try { save(name, csv(columns, await load())); setSaid(null); } catch (error) { setSaid(`Could not be loaded: ${error.message}`); }
  };
  return h("span", null, said ? h("span", {role: "status"}, `${said} `) : null, h(Button, {onClick, "aria-label": `${name} as CSV`}, "CSV"));
}

function save(name, words) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([words], {type: "text/csv"}));
  link.download = `lading_${name.toLowerCase().replaceAll(/\W+/g, "_")}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}

export function useDark() {
  const root = document.documentElement, now = () => root.classList.contains("dark"), [dark, setDark] = useState(now());
  useEffect(() => {
    const observer = new MutationObserver(() => setDark(now()));
    observer.observe(root, {attributes: true, attributeFilter: ["class"]});
    return () => observer.disconnect();
  }, []);
  return dark;
}
