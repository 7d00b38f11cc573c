// The overview: tiles, sites, shares, teams, recent failures and requests.
import * as React from "react";
import {address, ask} from "../api";
import type {BillPage as Bill, OperatorRequest, ShareState, SiteLimit, SiteState, Summary, TeamState} from "../api_types";
import {ago, amountOf, cost, count, cpusText, date, fraction, inUse, iso, machinesText, memory, percent, tasksText, usd} from "../format";
import {pagePath} from "../paths";
import {useAnswer} from "../polling";
import {AnswerSection, Badge, Clamp, Confirmed, Link, MemoryUse, Muted, Name, Section, SiteLink, Tile, Tiles, UseBar} from "../ui/parts";
import {Table, type Column} from "../ui/table";
import {WAITING} from "../ui/tries";
import {billSpan} from "./bill_span";
import {DAY, Failures} from "./failures";
import {Dags} from "./groups";
import type {PageProps} from "./page";

export type Action = readonly [kind: string, label: string, target: string, question: string];
/** A column of buttons, for users who are allowed to send requests.
 *
 * @param why: why a row lacks a button
 */
export function actions<Row>(may: boolean, cells: (row: Row) => readonly Action[], why: (row: Row) => string | null = () => null): Column<Row>[] {
  if (!may) return [];
  const cell = (row: Row) => <div><div className="row nowrap">{cells(row).map(([kind, label, target, question]) => (
    <Confirmed key={kind} label={label} name={`${label} ${target}`} question={question} onYes={() => ask(kind, target)} />
  ))}</div>{why(row) === null ? null : <Muted>{why(row)}</Muted>}</div>;
  return [{title: "Actions", text: false, has: (row) => cells(row).length || why(row), cell}];
}
const ofSite = ({name, state}: SiteState): Action[] =>
  state === "paused" ? [["resume", "Resume", name, `Resume ${name}?`]] : [["pause", "Pause", name, `Pause ${name}? It gets no more jobs.`]];

/** Sites that need attention come first, in this order, then those without a free node or at a limit; the others keep the
 * order of the sites file. */
const RANKS = ["down", "degraded", "full", "paused"];
export const conditionOf = ({state, full_because: why}: Pick<SiteState, "state" | "full_because">): string => (state === "up" && why !== null ? "full" : state);
export function ranked(sites: readonly SiteState[]): SiteState[] {
  const isUsedUp = ({idle_nodes: idle, limits}: SiteState) => idle === 0 || limits.some(({is_reached: isReached}) => isReached);
  const rank = (site: SiteState) => { const found = RANKS.indexOf(conditionOf(site)); return found < 0 ? RANKS.length + Number(!isUsedUp(site)) : found; };
  return [...sites].sort((one, other) => rank(one) - rank(other));
}

/** A limit, and how much of it is in use if that is counted. */
export function limitLine({name, text, used, most, coming, is_reached: isReached}: SiteLimit): string {
  if (used === null || most === null) return `${name} = ${text}`;
  const amount = name.includes("usd") ? usd : count;
  return `${name}: ${amount(used)} of ${amount(most)}${coming ? `, ${count(coming)} of them ordered or booting` : ""}${isReached && used < most ? ", too little is left" : ""}`;
}
function Limits({site}: {site: SiteState}) {
  const nodes = site.nodes !== null && site.idle_nodes !== null ? {used: site.nodes - site.idle_nodes, most: site.nodes} : null;
  const bar = (used: number, most: number, title: string, isReached: boolean) => <UseBar title={title} used={used} most={most} color={isReached ? "var(--l-queue)" : "var(--l-used)"} />;
  return (
    <>
      {nodes ? <div><div className="line">{count(nodes.used)} of {count(nodes.most)} nodes busy</div>{bar(nodes.used, nodes.most, "nodes busy", nodes.used >= nodes.most)}</div> : null}
      {site.limits.map((limit) => <div key={limit.name}><div className="line">{limitLine(limit)}</div>{limit.used !== null && limit.most ? bar(limit.used, limit.most, limit.name, limit.is_reached) : null}</div>)}
    </>
  );
}

/** The cost of today so far, including running jobs. As in the bill, days are in UTC. */
export function useToday(): {text: string; help: string | null} {
  const [bill, trouble] = useAnswer<Bill>("bill", {by: "day", split: "site"}, 60, () => billSpan(0, Date.now() / 1000), "0");
  if (!bill) return {text: trouble ? "–" : "…", help: trouble};
  const {usd: spent, usd_idle: idle, cpu_hours: hours} = bill.total;
  return {text: cost(spent, hours), help: idle ? `${usd(idle)} of this for idle cpus` : null};
}

// Sites are polled every few seconds; after this many seconds without contact the page shows the last contact.
const SILENT = 120;
const isSilent = ({contact_at: at}: SiteState, now: number) => at === null || now - at > SILENT;
const contact = ({contact_at: at}: SiteState, now: number) => (at === null ? "never seen" : `seen ${ago(now - at)}`);

function Sites({sites, now, may}: {sites: SiteState[]; now: number; may: boolean}) {
  const columns: Column<SiteState>[] = [
    {title: "Site", cell: (site) => <div><SiteLink site={site} /><div><Muted>{site.host === null ? site.kind : <>{site.kind}, on <Name>{site.host}</Name></>}</Muted></div></div>, text: (site) => site.name},
    {title: "Kind", hidden: true, text: (site) => site.kind},
    {title: "Host", hidden: true, text: (site) => site.host},
    {title: "State", cell: (site) => (
      <div><Badge word={conditionOf(site)} />
        {conditionOf(site) === "full" ? <div><Muted>{site.full_because}</Muted></div> : null}
        {site.machines_silent && site.state !== "down" ? <div className="line"><Muted>{count(site.machines_silent)} unreachable</Muted></div> : null}
        {site.machines_idle && site.waiting ? <div className="line"><Muted><Link to={pagePath({view: "machines", site: site.name, sort: "state"})} label={`Idle machines of ${site.name}`}>{count(site.machines_idle)} of {count(site.machines)} machines idle</Link></Muted></div> : null}
        {isSilent(site, now) ? <div className="line"><Muted>{contact(site, now)}</Muted></div> : null}</div>
    ), text: conditionOf},
    {title: "Full because", hidden: true, text: (site) => site.full_because},
    {title: "Unreachable machines", hidden: true, text: (site) => site.machines_silent},
    {title: "Idle machines", hidden: true, text: (site) => site.machines_idle},
    {title: "Running", cell: (site) => <Link to={pagePath({view: "jobs", site: site.name, state: "running"})} label={`${count(site.running)} running at ${site.name}`}>{count(site.running)}</Link>, text: (site) => site.running, number: true},
    {title: "Waiting", cell: (site) => <Link to={pagePath({view: "waits", site: site.name})} label={`${count(site.waiting)} waiting for ${site.name}`}>{count(site.waiting)}</Link>, text: (site) => site.waiting, number: true},
    {title: "cpus, memory requested / up", help: "Upper bar: the cpus that running jobs requested, out of all cpus of the machines that are up. Lower bar: the same for memory, with the peaks of jobs that have run for a minute", cell: (site) => <div><Link to={pagePath({view: "machines", site: site.name})} label={`Machines of ${site.name}`}>{count(site.cpus_used)} / {count(site.cpus_up)}</Link><UseBar title="cpus requested" used={site.cpus_used} most={site.cpus_up} />{site.memory_up ? <MemoryUse promised={site.memory_promised} used={site.memory_used} up={site.memory_up} /> : null}{site.cpus_batch > 0 ? <div><Muted>{count(site.cpus_batch)} in batch jobs</Muted></div> : null}</div>, csvTitle: "cpus requested", text: (site) => site.cpus_used, has: (site) => site.cpus_up !== null || site.cpus_batch > 0, number: true},
    {title: "Memory requested, MiB", hidden: true, text: (site) => site.memory_promised},
    {title: "Memory at peak, MiB", hidden: true, text: (site) => site.memory_used},
    {title: "Memory up, MiB", hidden: true, text: (site) => site.memory_up},
    {title: "cpus up", hidden: true, text: (site) => site.cpus_up},
    {title: "cpus in batch jobs", hidden: true, text: (site) => site.cpus_batch},
    {title: "USD/h", csvTitle: "USD per hour", help: "Machines that are up or booting, and batch jobs. Limits also count ordered machines", cell: (site) => <div>{site.usd_per_hour === null ? usd(null) : <Link to={pagePath({view: "cost", split: "site"})} label={`What ${site.name} costs`}>{usd(site.usd_per_hour)}</Link>}{site.usd_ordered ? <div className="line"><Muted>+ {usd(site.usd_ordered)} ordered</Muted></div> : null}</div>, text: (site) => site.usd_per_hour, has: (site) => site.usd_per_hour !== null || site.usd_ordered, number: true},
    {title: "USD per hour, ordered", hidden: true, text: (site) => site.usd_ordered},
    {title: "Last contact", hidden: true, text: (site) => iso(site.contact_at)},
    {title: "Limits", cell: (site) => <Limits site={site} />, text: (site) => site.limits.map(limitLine).join(", "), has: (site) => site.limits.length || site.nodes !== null},
    {title: "Note", cell: (site) => <div className="note"><Clamp text={site.note ?? ""} /></div>, text: (site) => site.note ?? "", has: (site) => site.note},
    ...actions(may, ofSite),
  ];
  return <Table name="Sites" rows={ranked(sites)} columns={columns} keyOf={({name}) => name} empty="No controller has run yet: start Airflow's scheduler with Lading as its executor." />;
}

const UNITS: Record<string, (value: number) => string> = {cpus: cpusText, memory, gpus: (value) => amountOf(value, "GPU"), machines: machinesText, usd_per_hour: (value) => `${usd(value)} per hour`};
type Guarantee = ShareState["guarantees"][number];
/** An amount reserved for a share, and how much of it is used. */
export function guaranteeLine({site, what, kept, used}: Guarantee): string {
  const text = UNITS[what] ?? count;
  return `${text(used)} of ${text(kept)}${site === null ? "" : ` at ${site}`}`;
}
/** Shares that use more than is reserved for them come first, then those that exceed their part by weight the most. */
export const rankedShares = (shares: readonly ShareState[]): ShareState[] =>
  [...shares].sort((one, other) => Number(other.is_over) - Number(one.is_over) || (other.used - other.entitled) - (one.used - one.entitled));
/** Whether a share uses more than its weight entitles it to, which is allowed while other shares leave room. */
const isOverWeight = ({used, entitled}: ShareState): boolean => used > entitled + 0.005;
const reservedText = (share: ShareState): string => (share.guarantees.length ? share.guarantees.map(guaranteeLine).join(", ") : "nothing");
const rules = ({lends, borrows, guarantees}: ShareState): string =>
  [
    lends ? null : "other shares cannot use what is reserved for it",
    borrows ? null : guarantees.length ? "cannot use more than is reserved for it" : "cannot use more than its part by weight",
  ].filter(Boolean).join("; ");
const OVER = {reserved: "over what is reserved", weight: "over its part by weight"};
export const SHARES: Column<ShareState>[] = [
  {title: "Share", cell: (share) => <div><Name>{share.name}</Name>{share.who === share.name ? null : <div><Muted>{share.who}</Muted></div>}</div>, text: (share) => share.name},
  {title: "Whose jobs", hidden: true, text: (share) => share.who},
  {title: "Dags", help: "Dags with unfinished jobs of the share, and how many", cell: (share) => <Dags group={share} to={(dag) => pagePath({view: "jobs", dag, state: [...WAITING, "running"]})} />, text: ({dags}) => dags.map(({dag_id, jobs}) => `${dag_id} ${jobs}`).join("; "), has: ({dags_total: dags, hidden}) => dags || hidden},
  {title: "Use of what is reserved", help: "Reserved amounts are guaranteed to the share, whatever its weight", cell: (share) => (share.guarantees.length ? <>{share.is_over ? <Badge word={OVER.reserved} /> : null}{share.guarantees.map((each) => <div key={`${each.site} ${each.what}`}><div className="line">{guaranteeLine(each)}</div><UseBar title={each.what} used={each.used} most={each.kept} color={each.used > each.kept ? "var(--l-queue)" : "var(--l-used)"} /></div>)}</> : <Muted>nothing is reserved</Muted>), csvTitle: "Reserved", text: reservedText, has: ({guarantees}) => guarantees.length},
  {title: "Over what is reserved", hidden: true, text: ({is_over: isOver}) => Number(isOver)},
  {title: "Use of its part by weight", csvTitle: "Uses", help: "The largest fraction that the share uses of all cpus, all memory or all GPUs, and the fraction that its weight entitles it to. It can use more while other shares leave room", cell: (share) => <>{isOverWeight(share) ? <Badge word={OVER.weight} /> : null}<div className="line">{percent(share.used, 1)} of {percent(share.entitled, 1)}<UseBar title="used of its part" used={share.used} most={share.entitled} color={isOverWeight(share) ? "var(--l-queue)" : "var(--l-used)"} /></div></>, text: (share) => fraction(share.used, 1), number: true},
  {title: "Its part by weight", hidden: true, text: (share) => fraction(share.entitled, 1)},
  {title: "Recent use", help: "Mean fraction that the share used; recent use counts more", cell: ({lately}) => (lately === null ? "" : percent(lately, 1)), text: ({lately}) => fraction(lately, 1), has: ({lately}) => lately !== null, number: true},
  {title: "Rules", cell: (share) => <Muted>{rules(share)}</Muted>, text: rules, has: ({lends, borrows}) => !lends || !borrows},
  {title: "Counted at", hidden: true, text: ({at}) => iso(at)},
];

const TEAMS: Column<TeamState>[] = [
  {title: "Team", cell: ({name}) => (name === null ? <Muted>no team</Muted> : <Link to={pagePath({view: "jobs", team: name})} label={`Jobs of team ${name}`}><Name>{name}</Name></Link>), text: ({name}) => name ?? "no team"},
  {title: "Running", cell: (team) => count(team.running), text: (team) => team.running, number: true},
  {title: "Waiting", cell: (team) => count(team.waiting), text: (team) => team.waiting, number: true},
  {title: "cpus requested", help: "By running jobs", cell: (team) => count(team.cpus_used), text: (team) => team.cpus_used, number: true},
];

export function Asked() {
  const asked = useAnswer<OperatorRequest[]>("requests", {}, 5);
  if (!asked[0]?.length && !asked[1]) return null;
  const outcome = (row: OperatorRequest) => (row.done_at === null ? "the controller has not processed it yet" : row.outcome ?? "");
  const columns: Column<OperatorRequest>[] = [
    {title: "Requested", cell: (row) => date(row.at), text: (row) => iso(row.at)},
    {title: "By", cell: (row) => <Name>{row.by}</Name>, text: (row) => row.by},
    {title: "What", cell: (row) => `${row.kind} ${row.target}`},
    {title: "Outcome", cell: (row) => <div><Clamp text={outcome(row)} />{row.done_at === null ? null : <Muted>{date(row.done_at)}</Muted>}</div>, text: outcome},
  ];
  return <AnswerSection title="Requests" asked={asked}>{(found) => <Table name="Requests" rows={found} columns={columns} few={5} empty="" keyOf={({id}) => String(id)} />}</AnswerSection>;
}

/** Highlighted if tasks gave up, not if Airflow retried all failed tries. */
export function FailedTile({summary: {failed, failed_tasks: tasks}}: {summary: Pick<Summary, "failed" | "failed_tasks">}) {
  const gaveUp = tasks == null ? "how many tasks gave up is unknown" : `${tasksText(tasks)} gave up`;
  return <Tile label="Failed tries, 24 h" value={count(failed)} help={gaveUp} to={pagePath({view: "jobs", state: "failed", within: DAY})} isBad={(tasks ?? failed) > 0} />;
}

export function NowPage({summary, trouble, now}: PageProps) {
  const today = useToday(), asked = [summary, trouble] as const;
  return (
    <>
      <AnswerSection title="Overview" asked={asked}>{(found) => (
        <Tiles>
          <Tile label="Running" value={count(found.running)} help="see when their runs end" to={pagePath({view: "jobs", state: "running"})} />
          <Tile label="Waiting" value={count(found.waiting)} to={pagePath({view: "waits"})} />
          <FailedTile summary={found} />
          <Tile label="Machines up" value={count(found.machines)} to={pagePath({view: "machines"})} />
          <Tile label="cpus requested" value={count(found.cpus_used)} help={inUse(found)} to={pagePath({view: "machines"})} />
          {found.usd_per_hour === null ? null : <Tile label="USD per hour" value={usd(found.usd_per_hour)} to={pagePath({view: "cost"})} />}
          <Tile label="Today" value={today.text} help={today.help} to={pagePath({view: "cost", days: "0"})} />
        </Tiles>
      )}</AnswerSection>
      <AnswerSection title="Sites" asked={asked}>{(found) => {
        const homeless = found.waiting - found.sites.reduce((sum, site) => sum + site.waiting, 0);
        return (
          <>
            <Sites sites={found.sites} now={now} may={found.may_act} />
            {homeless > 0 && found.sites.length ? <p><Muted>{homeless === 1 ? "1 more waiting job names no site and is" : `${count(homeless)} more waiting jobs name no site and are`} not assigned to one yet. <Link to={pagePath({view: "jobs", state: WAITING})}>All waiting jobs</Link></Muted></p> : null}
          </>
        );
      }}</AnswerSection>
      {summary?.shares?.length ? <Section title="Shares" more={<Muted>counted {ago(now - Math.max(...summary.shares.map(({at}) => at)))}</Muted>}><Table name="Shares" rows={rankedShares(summary.shares)} columns={SHARES} empty="" keyOf={({name}) => name} /></Section> : null}
      <Failures within={DAY} few={5} />
      {summary?.teams.length ? <Section title="Teams"><Table name="Teams" rows={summary.teams} columns={TEAMS} empty="" keyOf={({name}) => name ?? ""} /></Section> : null}
      <Asked />
      <Section title="Alerts">
        <p>For Grafana, based on Lading's metrics: <a className="link" href={address("static/grafana.json").href} download="lading_dashboard.json">the dashboard</a>, and <a className="link" href={address("static/grafana_alerts.yaml").href} download="lading_alerts.yaml">alert rules</a>, for example when no controller is running, a site does not answer or a budget is spent.</p>
      </Section>
    </>
  );
}
