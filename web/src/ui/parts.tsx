// The components that pages are made of: Chakra's if the host has it, otherwise plain HTML with the same text.
import * as React from "react";
import {Component, createContext, useContext, useEffect, useLayoutEffect, useRef, useState, type KeyboardEvent, type ReactNode} from "react";
import {chakra, portal, router} from "../host/globals";
import {FORBIDDEN} from "../api";
import type {SiteState, Summary} from "../api_types";
import {date, memory, middle, moment, percent, spoken} from "../format";
import {pagePath, taskName, type TaskKey} from "../paths";
import {poller, useAnswer, useConnection} from "../polling";
import {addStyle} from "./style";

/** Keeps an error in a component from breaking Airflow's page. */
export class Guarded extends Component<{children: ReactNode}, {error: Error | null}> {
  state: {error: Error | null} = {error: null};
  static getDerivedStateFromError(error: Error) { return {error}; }
  render() { return this.state.error ? <p role="alert">Lading&apos;s page has failed: {this.state.error.message}</p> : this.props.children; }
}

function Banner() {
  const {trouble, isLoggedOut, lastAt} = useConnection();
  if (!trouble) return null;
  const since = lastAt === null ? "Nothing could be loaded" : `Not updated since ${moment(lastAt / 1000)}`;
  const login = new URL(`api/v2/auth/login?next=${encodeURIComponent(location.href)}`, document.baseURI).href;
  return (
    <div className="banner" role="alert" data-testid="stale">
      {since}: {trouble}. {isLoggedOut ? <a className="link" href={login}>Log in</a> : <Button onClick={() => poller.try()}>Try now</Button>}
    </div>
  );
}

/** What the user has to know while no controller is running: which contents are outdated, and since when; null: one is. */
export function awayText({controller_lives: lives, sites}: Pick<Summary, "controller_lives" | "sites">, now: number): string | null {
  if (lives) return null;
  const seen = Math.max(0, ...sites.map(({contact_at: at}) => at ?? 0));
  const outdated = seen ? ` The states of sites and machines and the reasons for waits are as of ${date(seen, now)}. Expected starts assume that a controller runs again now.` : "";
  return `No controller is running: no jobs are started.${outdated}`;
}
/** Says on each view and tab that no controller is running; to users who cannot see the page, nothing. */
function Away({isTab}: {isTab: boolean}) {
  const [summary, trouble, now] = useAnswer<Summary>("summary", {}, isTab ? 15 : 3);
  const text = summary && awayText(summary, now);
  return (
    <>
      {text ? <div className="banner" role="alert" data-testid="no-controller"><Badge word="down" /> {text}</div> : null}
      {isTab && trouble !== null && !trouble.includes(FORBIDDEN) ? <Trouble text={`Whether a controller is running: ${trouble}`} /> : null}
    </>
  );
}

/** Announces the result of a button to screen readers. */
let announce: (text: string) => void = () => undefined;
function Live() {
  const [text, setText] = useState("");
  useEffect(() => { announce = setText; return () => { announce = () => undefined; }; }, []);
  return <div className="hidden" aria-live="polite">{text}</div>;
}
export const say = (text: string): void => announce(text);

export function Frame({children, head, isTab = false}: {children: ReactNode; head?: ReactNode; isTab?: boolean}) {
  addStyle();
  const header = useRef<HTMLElement>(null);
  // What sticks below the header has to know its height, which grows with a banner.
  useLayoutEffect(() => {
    const element = header.current;
    if (!element || isTab) return undefined;
    const observer = new ResizeObserver(() => element.parentElement?.style.setProperty("--l-top", `${element.offsetHeight}px`));
    observer.observe(element);
    return () => observer.disconnect();
  }, [isTab]);
  return (
    <div className={isTab ? "lading tab" : "lading"} data-testid="lading">
      <header ref={header} style={isTab ? {position: "static", border: 0, padding: 0} : undefined}>
        {isTab ? null : <a className="skip" href="#lading-content" onClick={(event) => { event.preventDefault(); document.getElementById("lading-content")?.focus(); }}>Skip to the content</a>}
        {head}
        <Banner />
        <Away isTab={isTab} />
      </header>
      <div id="lading-content" tabIndex={-1} style={{display: "flex", flexDirection: "column", gap: 20, outline: "none"}}>{children}</div>
      <Live />
    </div>
  );
}

export const Swatch = ({color, dashes}: {color: string; dashes?: string}) => <span className="swatch" style={{background: color, border: dashes ? `1px dashed ${dashes}` : undefined}} />;
export const Row = ({children}: {children: ReactNode}) => <div className="row">{children}</div>;
export const Muted = ({children}: {children: ReactNode}) => <span className="muted">{children}</span>;
export const Spinner = () => (chakra.Spinner ? <chakra.Spinner size="sm" aria-label="loading" /> : <p>loading …</p>);
/** Why a part of the page is missing or outdated. */
export const Trouble = ({text}: {text: string | null}) =>
  text ? <p role="alert" className="trouble">{text}. <Button onClick={() => poller.try()}>Try now</Button></p> : null;
/** Shown until there is an answer: the trouble, or a spinner. */
export const Awaited = ({trouble}: {trouble: string | null}) => (trouble ? <Trouble text={trouble} /> : <Spinner />);

export function Section({title, more, children}: {title: string; more?: ReactNode; children: ReactNode}) {
  const heading = chakra.Heading ? <chakra.Heading as="h2" size="md">{title}</chakra.Heading> : <h2>{title}</h2>;
  const [slot, setSlot] = useState<HTMLElement | null>(null);
  return (
    <section aria-label={title}>
      <div className="head">{heading}<div className="row">{more}<div ref={setSlot} className="slot" /></div></div>
      <div className="body"><HeadSlot.Provider value={slot}>{children}</HeadSlot.Provider></div>
    </section>
  );
}
/** A section for one answer. Without an answer it shows why; with an outdated one, since when. */
export function AnswerSection<Answer>({title, more, asked: [found, trouble], children}: {title: string; more?: ReactNode; asked: readonly [Answer | null, string | null, ...unknown[]]; children: (found: Answer) => ReactNode}) {
  return <Section title={title} more={more}>{found === null ? <Awaited trouble={trouble} /> : <><Trouble text={trouble} />{children(found)}</>}</Section>;
}
const HeadSlot = createContext<HTMLElement | null>(null);
/** Shows its children next to the section's heading, which stays visible; on their own line if the host lacks portals. */
export function InHead({children}: {children: ReactNode}) {
  const slot = useContext(HeadSlot);
  return slot && portal ? <>{portal(children, slot)}</> : <div className="tools">{children}</div>;
}

/** Scrolls to a section, or to a row of its table, and focuses it, so that the Tab key continues there.
 *
 * @param row: the key of a row; it is marked. A row that the table does not show is that of the section
 */
export function goTo(title: string, row?: string): void {
  const section = document.querySelector<HTMLElement>(`:is(section, [role=region])[aria-label="${title}"]`);
  const rows = [...(section?.querySelectorAll<HTMLElement>("tr[data-row]") ?? [])];
  const marked = row === undefined ? undefined : rows.find((each) => each.dataset.row === row), target = marked ?? section;
  if (!target) return;
  for (const each of rows) each.classList.toggle("marked", each === marked);
  target.tabIndex = -1;
  target.focus({preventScroll: true});
  target.scrollIntoView(marked ? {block: "center"} : undefined);
}
export const Tiles = ({children}: {children: ReactNode}) => <div className="tiles">{children}</div>;
/** Rows of a section's table, by key, that a tile shows as links. */
export interface TileRow {key: string; text: ReactNode}
/**
 * @param section: the title of the section of this page that a click scrolls to
 * @param rows: of that section's table
 */
export function Tile({label, value, help, to, section, rows = [], isBad = false}: {label: string; value: ReactNode; help?: ReactNode; to?: string; section?: string; rows?: readonly TileRow[]; isBad?: boolean}) {
  const className = isBad ? "tile bad" : "tile";
  const inner = <><div className="label">{label}</div><div className="value">{value}</div>{help ? <div className="muted">{help}</div> : null}</>;
  if (section && rows.length) {
    return (
      <div data-tile={label}><div className={className}>
        <button type="button" className="whole" onClick={() => goTo(section)}>{inner}</button>
        {rows.map(({key, text}) => <button key={key} type="button" className="to" onClick={() => goTo(section, key)}>{text}</button>)}
      </div></div>
    );
  }
  return <div data-tile={label}>{to ? <Anchor to={to} className={className}>{inner}</Anchor> : section ? <button type="button" className={className} onClick={() => goTo(section)}>{inner}</button> : <div className={className}>{inner}</div>}</div>;
}

const BADGES: Record<string, string> = {
  up: "green", degraded: "red", full: "orange", paused: "orange", running: "cyan", succeeded: "green", failed: "red", down: "red", unreachable: "red",
  cancelled: "orange", idle: "orange", booting: "yellow", ordered: "yellow", draining: "orange", "over what is reserved": "orange", "over its part by weight": "yellow",
};
export function Badge({word}: {word: string | null | undefined}) {
  if (!word) return null;
  return chakra.Badge ? <chakra.Badge colorPalette={BADGES[word] ?? "gray"}>{word}</chakra.Badge> : <b>{word}</b>;
}

interface ButtonProps {onClick: () => void; children: ReactNode; autoFocus?: boolean; disabled?: boolean; "aria-label"?: string; "aria-pressed"?: boolean; "aria-expanded"?: boolean}
export function Button({children, ...more}: ButtonProps) {
  if (chakra.Button) return <chakra.Button size="xs" variant="outline" {...more}>{children}</chakra.Button>;
  return <button type="button" className="plain" {...more}>{children}</button>;
}

/** Without HTTPS, browsers have no clipboard and only copy what is selected. */
function copySelected(text: string): void {
  const field = document.body.appendChild(document.createElement("textarea"));
  field.value = text;
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  if (!isCopied) throw new Error("the browser refused");
}
/** A line to paste, with a button that copies it.
 *
 * @param name: what the line is for, for the accessible name of the button
 */
export function Line({text, name}: {text: string; name: string}) {
  const [said, setSaid] = useState<string | null>(null);
  const copy = async () => {
    try { if (navigator.clipboard) await navigator.clipboard.writeText(text); else copySelected(text); setSaid("copied"); } catch (error) { setSaid(`Could not be copied: ${(error as Error).message}`); }
  };
  return <div className="row"><code style={{userSelect: "all"}}>{text}</code><Button aria-label={`Copy the line for ${name}`} onClick={() => void copy()}>Copy</Button>{said ? <span role="status">{said}</span> : null}</div>;
}

/** A button that asks for confirmation and shows the result next to it.
 *
 * @param label: the visible text
 * @param name: the accessible name, with the target, if several buttons have the same label
 */
/** A button that asks before it acts; `verb`: the answer that acts. */
export function Confirmed({label, name, question, verb = label, onYes}: {label: string; name?: string; question: string; verb?: string; onYes: () => Promise<unknown>}) {
  const [asks, setAsks] = useState(false), [said, setSaid] = useState<string | null>(null), [refused, setRefused] = useState(false);
  const no = () => { setAsks(false); setRefused(true); }; // the focus returns to where it was
  const yes = async () => {
    setAsks(false);
    try { await onYes(); setSaid("requested"); say(`${name ?? label}: requested`); poller.again("requests"); poller.again("summary"); } catch (error) { setSaid((error as Error).message); }
  };
  if (!asks) return <span><Button autoFocus={refused} aria-label={name} onClick={() => { setSaid(null); setAsks(true); }}>{label}</Button>{said ? <span role="status"> {said}</span> : null}</span>;
  const escape = (event: KeyboardEvent) => { if (event.key === "Escape") no(); };
  return <span role="alertdialog" aria-label={question} onKeyDown={escape}>{question} <span className="line"><Button onClick={() => void yes()}>{verb}</Button> <Button onClick={no} autoFocus>Cancel</Button></span></span>;
}

/** A link through Airflow's own router, which does not reload the page. */
export function Anchor({to, className, children, ...more}: {to: string; className?: string; children: ReactNode; "aria-current"?: "page"; title?: string; "aria-label"?: string}) {
  if (router.Link) return <router.Link to={to} className={className} {...more}>{children}</router.Link>;
  return <a href={new URL(to.replace(/^\//, ""), document.baseURI).href} className={className} {...more}>{children}</a>;
}
export const Link = ({to, children, label}: {to: string | null; children: ReactNode; label?: string}) =>
  to ? <Anchor to={to} className="link" aria-label={label}>{children}</Anchor> : <>{children}</>;

/** A site, linked to its machines, or to its jobs if it has none. */
export const SiteLink = ({site: {name, machines}}: {site: Pick<SiteState, "name" | "machines">}) => (
  <Link to={pagePath({view: machines ? "machines" : "jobs", site: name})} label={`${machines ? "Machines" : "Jobs"} of ${name}`}><Name>{name}</Name></Link>
);

/** A name chosen by users, which can be written right to left or be too long for a table.
 *
 * @param breaks: whether a line can end after a dot, an underscore, a hyphen or a slash, for narrow tiles
 */
export function Name({children, breaks = false}: {children: ReactNode; breaks?: boolean}) {
  const short = typeof children === "string" ? middle(children) : children;
  const words = breaks && typeof short === "string" ? short.split(/(?<=[._/-])/).map((word, index) => <React.Fragment key={index}>{index ? <wbr /> : null}{word}</React.Fragment>) : short;
  return <bdi title={short === children ? undefined : children as string}>{words}</bdi>;
}
/** A Dag and one of its tasks, in this order even if one of them is written right to left. */
export const TaskName = ({job}: {job: TaskKey & {hidden?: boolean}}) => {
  const {dag_id: dag, task_id: task} = job;
  return job.hidden || !task || !dag ? <Name>{taskName(job)}</Name> : <span dir="ltr"><Name>{dag}</Name>.<Name>{taskName({...job, dag_id: null})}</Name></span>;
};

export function Select({label, value, options, onChange}: {label: string; value: string; options: readonly (readonly [string, string])[]; onChange: (value: string) => void}) {
  const choices = options.map(([key, text]) => <option key={key} value={key}>{text}</option>);
  const props = {value, "aria-label": label, onChange: (event: {target: {value: string}}) => onChange(event.target.value)};
  const Native = chakra.NativeSelect;
  if (Native?.Root && Native.Field) return <Native.Root size="xs" width="auto"><Native.Field {...props}>{choices}</Native.Field>{Native.Indicator ? <Native.Indicator /> : null}</Native.Root>;
  return <select className="plain" {...props}>{choices}</select>;
}

export function Input({label, value, placeholder, onChange, onEnter, type = "text", width = "14em"}: {label: string; value: string; placeholder?: string; onChange: (value: string) => void; onEnter?: () => void; type?: string; width?: string}) {
  const props = {
    value, placeholder, type, "aria-label": label, onChange: (event: {target: {value: string}}) => onChange(event.target.value),
    onKeyDown: (event: KeyboardEvent) => { if (event.key === "Enter") onEnter?.(); },
  };
  return chakra.Input ? <chakra.Input size="xs" width={width} {...props} /> : <input className="plain" style={{width}} {...props} />;
}

/** Text up to this length fits into three lines of even the narrowest column. */
const SHORT = 40;
/** Text clamped to a few lines, with a button that shows the rest. */
export function Clamp({text: raw, lines = 3}: {text: string; lines?: number}) {
  const text = spoken(raw) ?? "";
  const [whole, setWhole] = useState(false), [isCut, setCut] = useState(false), box = useRef<HTMLDivElement>(null);
  const isShort = text.length <= SHORT;
  // Before the text is painted, so that the button moves nothing.
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || isShort || whole) return undefined;
    const measure = () => setCut(element.scrollHeight > element.clientHeight + 1);
    measure();
    const observer = new ResizeObserver(measure); // a column becomes narrower with the window
    observer.observe(element);
    return () => observer.disconnect();
  }, [text, isShort, whole]);
  if (isShort) return <div className="long">{text}</div>;
  return (
    <div className="text">
      <div ref={box} className={whole ? "long" : "clamp"} style={{WebkitLineClamp: lines}}>{text}</div>
      {isCut ? <button type="button" className="more" aria-expanded={whole} onClick={() => setWhole(!whole)}>{whole ? "less" : "more"}</button> : null}
    </div>
  );
}

/** `short`: the title next to an amount in a table. */
export interface Part {key: string; title: string; short?: string; value: number; text: string; color: string}
/** Parts of a whole as a stacked bar, with its accessible name as text. */
export function Bar({parts, name, whole, height}: {parts: readonly Part[]; name?: string; whole?: number; height?: number}) {
  const sum = parts.reduce((all, {value}) => all + value, 0), rest = Math.max(0, (whole ?? sum) - sum);
  // In percent, because flex items whose flex-grow adds up to less than 1, such as small USD amounts, do not fill the box.
  const part = (value: number) => (100 * value) / (sum + rest);
  const label = `${name ? `${name}: ` : ""}${parts.map(({title, text}) => `${title} ${text}`).join(", ")}`;
  return (
    <div className="bar" role="img" aria-label={label} style={height ? {height} : undefined}>
      {parts.filter(({value}) => value > 0).map(({key, title, text, value, color}) => <span key={key} title={`${title}: ${text}`} style={{flexGrow: part(value), flexBasis: 0, background: color}} />)}
      {rest > 0 ? <i style={{flexGrow: part(rest), flexBasis: 0}} /> : null}
    </div>
  );
}
/** The amounts of a bar's parts as text, with the colour of each, because a phone cannot hover over the bar. */
export const PartAmounts = ({parts}: {parts: readonly Part[]}) => (
  <div className="split">{parts.filter(({value}) => value > 0).map(({key, title, short, text, color}) => <span key={key} className="line"><Swatch color={color} />{short ?? title.toLowerCase()} {text}</span>)}</div>
);
/** A thin bar for how much of something is used, to go below the numbers. */
export function UseBar({title, used, most, color = "var(--l-running)"}: {title: string; used: number; most: number | null | undefined; color?: string}) {
  if (!most) return null;
  return <Bar whole={Math.max(most, used)} height={6} parts={[{key: "used", title, value: used, text: percent(used, most), color}]} />;
}
/** The memory that running jobs requested out of all memory that is up, and the sum of their peaks, MiB. */
export function MemoryUse({promised, used, up}: {promised: number; used: number; up: number | null | undefined}) {
  if (!up) return null;
  const rest = Math.max(0, promised - used);
  return (
    <>
      <div className="line">{memory(promised)} / {memory(up)}</div>
      <Bar whole={Math.max(up, promised, used)} height={6} name="memory" parts={[
        {key: "used", title: "used at peak", value: used, text: memory(used), color: "var(--l-used)"},
        {key: "promised", title: "requested", value: rest, text: memory(promised), color: "var(--l-running)"},
      ]} />
      {used > 0 ? <div className="line"><Muted>{memory(used)} used</Muted></div> : null}
    </>
  );
}
/** `dashes`: the colour of a dashed border. */
export const Legend = ({parts}: {parts: readonly {key: string; title: string; color: string; text?: string; dashes?: string}[]}) => (
  <div className="legend">{parts.map(({key, title, color, text, dashes}) => <span key={key}><Swatch color={color} dashes={dashes} />{title}{text ? ` ${text}` : ""}</span>)}</div>
);

export function useDark(): boolean {
  const root = document.documentElement, now = () => root.classList.contains("dark");
  const [dark, setDark] = useState(now());
  useEffect(() => {
    const observer = new MutationObserver(() => setDark(now()));
    observer.observe(root, {attributes: true, attributeFilter: ["class"]});
    return () => observer.disconnect();
  }, []);
  return dark;
}
