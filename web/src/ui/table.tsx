// Tables with an export as CSV.
import * as React from "react";
import {useEffect, useRef, useState, type KeyboardEvent, type ReactNode, type RefObject} from "react";
import {csv, type CsvColumn} from "../csv";
import {Button, InHead, Muted} from "./parts";

export interface Column<Row> extends CsvColumn<Row> {
  cell?: (row: Row) => ReactNode;
  /** The content of the heading if it differs from the title. */
  head?: ReactNode;
  /** An explanation of the heading. */
  help?: string;
  /** Right-aligned. */
  number?: boolean;
  /** Only included in the CSV, where times are ISO 8601 in UTC and amounts are numbers without a unit. */
  hidden?: boolean;
  /** Whether a row has a value; the column is shown if any row has one. */
  has?: (row: Row) => unknown;
  /** The key to sort rows by; without it the column is not sortable. */
  sort?: string;
  /** Whether the first click sorts smallest first, although the column has numbers. */
  smallestFirst?: boolean;
}

interface Sorting {by: string; descending: boolean; onSort: (by: string, descending: boolean) => void}
interface Props<Row> {
  name: string;
  columns: readonly Column<Row>[];
  rows: readonly Row[];
  empty: ReactNode;
  /** The rows shown until the user requests all, so that redraws stay fast. */
  few?: number;
  /** Loads the rows of the CSV if it contains more than the table. */
  load?: () => Promise<readonly Row[]>;
  /** The URL of the CSV if the server writes it. */
  href?: string;
  sorting?: Sorting;
  more?: ReactNode;
  keyOf?: (row: Row) => string;
  /** The key of a row that is shown, even if it is not among the first few. */
  wanted?: string | null;
}

const ROWS_AT_ONCE = 50;
/** On a phone, where each row takes many lines. The width is that of the style sheet. */
const ROWS_ON_A_PHONE = 5;
const isPhone = () => typeof window !== "undefined" && window.matchMedia("(max-width: 640px)").matches;
/** The column headings stay this far above the end of their table, pixels. */
const ROOM_BELOW = 80;

// A table is a single tab stop, and arrow keys move between rows; otherwise content after a long table would be out of reach.
function useRows(count: number) {
  const table = useRef<HTMLDivElement>(null), active = useRef(0);
  const rows = () => [...(table.current?.querySelectorAll<HTMLTableRowElement>("tbody > tr") ?? [])];
  const controls = (row: HTMLElement) => [...row.querySelectorAll<HTMLElement>("a[href], button, input, select")];
  const mark = () => {
    const all = rows();
    const withControls = all.filter((row) => controls(row).length);
    if (!withControls.includes(all[active.current])) active.current = Math.max(0, all.indexOf(withControls[0]));
    all.forEach((row, index) => { for (const control of controls(row)) control.tabIndex = index === active.current ? 0 : -1; });
  };
  useEffect(mark);
  const onKeyDown = (event: KeyboardEvent) => {
    const step = {ArrowDown: 1, ArrowUp: -1, Home: -count, End: count}[event.key];
    const target = event.target as HTMLElement;
    if (!step || target instanceof HTMLSelectElement || (target instanceof HTMLInputElement && target.type !== "checkbox")) return;
    const all = rows(), here = all.findIndex((row) => row.contains(target));
    if (here < 0) return;
    event.preventDefault();
    const column = controls(all[here]).indexOf(target);
    for (let next = Math.min(all.length - 1, Math.max(0, here + step)); next >= 0 && next < all.length; next += Math.sign(step)) {
      const found = controls(all[next]);
      if (!found.length) continue;
      active.current = next;
      mark();
      found[Math.min(Math.max(column, 0), found.length - 1)].focus();
      return;
    }
  };
  const onFocus = (event: {target: EventTarget}) => {
    const here = rows().findIndex((row) => row.contains(event.target as Node));
    if (here >= 0 && here !== active.current) { active.current = here; mark(); }
  };
  return {ref: table, onKeyDown, onFocus};
}

/** Keeps a table's column headings below the heading of its section, under which they would scroll with the page. */
function useHeadings(table: RefObject<HTMLDivElement | null>): void {
  useEffect(() => {
    const place = () => {
      const box = table.current, heading = box?.closest("section")?.querySelector(":scope > .head");
      if (!box || !heading) return;
      const {top, height} = box.getBoundingClientRect(), hidden = heading.getBoundingClientRect().bottom - top - box.clientTop;
      box.style.setProperty("--l-under", `${Math.floor(Math.min(Math.max(0, hidden), Math.max(0, height - ROOM_BELOW)))}px`);
    };
    place();
    document.addEventListener("scroll", place, {capture: true, passive: true});
    return () => document.removeEventListener("scroll", place, {capture: true});
  }, []);
}

function Head<Row>({column: {title, head, help, number, sort, smallestFirst}, sorting}: {column: Column<Row>; sorting?: Sorting}) {
  const className = number ? "number" : undefined;
  if (!sort || !sorting) return <th role="columnheader" scope="col" className={className} aria-label={head ? title : undefined}>{help ? <abbr title={help}>{title}</abbr> : head ?? title}</th>;
  const isBy = sorting.by === sort, next = isBy ? !sorting.descending : Boolean(number) && !smallestFirst;
  return (
    <th role="columnheader" scope="col" className={className} aria-sort={isBy ? (sorting.descending ? "descending" : "ascending") : undefined}>
      <button type="button" title={help} onClick={() => sorting.onSort(sort, next)}>{title}{isBy ? (sorting.descending ? " ▾" : " ▴") : ""}</button>
    </th>
  );
}

export function Table<Row>({name, columns: known, rows: all, empty, few: most = ROWS_AT_ONCE, load, href, sorting, more, keyOf, wanted = null}: Props<Row>) {
  const columns = known.filter(({hidden, has, sort}) => !hidden && (!has || all.some(has) || (sort !== undefined && sort === sorting?.by)));
  const few = isPhone() ? Math.min(most, ROWS_ON_A_PHONE) : most;
  const [whole, setWhole] = useState(() => wanted !== null && all.findIndex((row) => keyOf?.(row) === wanted) >= few);
  const rows = whole ? all : all.slice(0, few), stop = useRows(rows.length);
  useHeadings(stop.ref);
  if (!rows.length) return <div>{more ? <InHead>{more}</InHead> : null}<p><Muted>{empty}</Muted></p></div>;
  return (
    <div>
      <InHead>
        {more}
        {all.length > few ? <Button onClick={() => setWhole(!whole)}>{whole ? `First ${few}` : `All ${all.length} rows`}</Button> : null}
        <Csv name={name} columns={known} load={load ?? (async () => all)} href={href} />
      </InHead>
      <div className="scroll" role="region" aria-label={`${name}, table: arrow keys move between its rows`} tabIndex={0} {...stop}>
        <table aria-label={name} role="table">
          <thead role="rowgroup"><tr role="row">{columns.map((column) => <Head key={column.title} column={column as Column<unknown>} sorting={sorting} />)}</tr></thead>
          <tbody role="rowgroup">{rows.map((row, index) => (
            <tr key={keyOf?.(row) ?? index} role="row" data-row={keyOf?.(row)}>{columns.map(({title, cell, number}) => <td key={title} role="cell" data-title={title} className={number ? "number" : undefined}>{cell?.(row)}</td>)}</tr>
          ))}</tbody>
        </table>
      </div>
    </div>
  );
}

function Csv<Row>({name, columns, load, href}: {name: string; columns: readonly Column<Row>[]; load: () => Promise<readonly Row[]>; href?: string}) {
  const [said, setSaid] = useState<string | null>(null);
  const onClick = async () => {
    if (href) { download(href, fileName(name)); return; }
    setSaid("loading …");
    try { save(name, csv(columns, await load())); setSaid(null); } catch (error) { setSaid(`Could not be loaded: ${(error as Error).message}`); }
  };
  return <span>{said ? <span role="status">{said} </span> : null}<Button onClick={() => void onClick()} aria-label={`${name} as CSV`}>CSV</Button></span>;
}

const fileName = (name: string) => `lading_${name.toLowerCase().replaceAll(/\W+/g, "_")}.csv`;
function download(href: string, file: string): void {
  const link = document.createElement("a");
  link.href = href;
  link.download = file;
  link.click();
}
function save(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], {type: "text/csv"}));
  download(url, fileName(name));
  URL.revokeObjectURL(url);
}
