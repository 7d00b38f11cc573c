// How things are now: tiles, sites, and why jobs have failed lately.
import * as React from "react";
import {ask} from "../api";
import type {Costs, OperatorRequest, SiteState, TeamState} from "../api_types";
import {cost, count, cpuHours, date, duration, inUse, midnight, spoken, usd} from "../format";
import {pagePath} from "../paths";
import {useAnswer} from "../polling";
import {Awaited, Badge, Clamp, Confirmed, Link, Muted, Name, Row, Section, Tile, Tiles} from "../ui/parts";
import {Table, type Column} from "../ui/table";
import {DAY, Failures} from "./failures";
import {WAITING} from "./jobs";
import type {PageProps} from "./page";

export type Action = readonly [kind: string, label: string, target: string, question: string];
/** A column of buttons, for those who may ask something of sites. */
export function actions<Row>(may: boolean, cells: (row: Row) => readonly Action[]): Column<Row>[] {
  if (!may) return [];
  const cell = (row: Row) => <div className="row nowrap">{cells(row).map(([kind, label, target, question]) => (
    <Confirmed key={kind} label={label} name={`${label} ${target}`} question={question} onYes={() => ask(kind, target)} />
  ))}</div>;
  return [{title: "Actions", text: false, has: (row) => cells(row).length, cell}];
}
const ofSite = ({name, state}: SiteState): Action[] =>
  state === "paused" ? [["resume", "Resume", name, `Give ${name} jobs again?`]] : [["pause", "Pause", name, `Give ${name} no more jobs?`]];

function Sites({sites, now, may}: {sites: SiteState[]; now: number; may: boolean}) {
  const limits = (site: SiteState) => [
    ...(site.nodes === null || site.idle_nodes === null ? [] : [`${site.idle_nodes} of ${site.nodes} nodes idle`]),
    ...Object.entries(site.limits).map(([name, value]) => `${name} = ${value}`),
  ].join(", ");
  const columns: Column<SiteState>[] = [
    {title: "Site", cell: (site) => <Link to={pagePath({view: "jobs", site: site.name})} label={`Jobs at ${site.name}`}><Name>{site.name}</Name></Link>, text: (site) => site.name},
    {title: "Kind", cell: (site) => site.kind},
    {title: "State", cell: (site) => <Badge word={site.state} />, text: (site) => site.state},
    {title: "Running", cell: (site) => <Link to={pagePath({view: "jobs", site: site.name, state: "running"})} label={`${count(site.running)} running at ${site.name}`}>{count(site.running)}</Link>, text: (site) => site.running, number: true},
    {title: "Waiting", cell: (site) => <Link to={pagePath({view: "waits", site: site.name})} label={`${count(site.waiting)} waiting for ${site.name}`}>{count(site.waiting)}</Link>, text: (site) => site.waiting, number: true},
    {title: "cpus used / up", cell: (site) => <Link to={pagePath({view: "machines", site: site.name})} label={`Machines of ${site.name}`}>{count(site.cpus_used)} / {count(site.cpus_up)}</Link>, text: (site) => `${count(site.cpus_used)} / ${count(site.cpus_up)}`, has: (site) => site.cpus_up !== null, number: true},
    {title: "cpus in batch jobs", cell: (site) => count(site.cpus_batch), has: (site) => site.cpus_batch > 0, number: true},
    {title: "USD per hour", cell: (site) => <Link to={pagePath({view: "cost", split: "site"})} label={`What ${site.name} costs`}>{usd(site.usd_per_hour)}</Link>, text: (site) => site.usd_per_hour, has: (site) => site.usd_per_hour !== null, number: true},
    {title: "Last contact", cell: (site) => (site.contact_at === null ? "never" : `${duration(Math.max(0, now - site.contact_at))} ago`)},
    {title: "Limits", cell: (site) => <Clamp text={limits(site)} />, text: limits, has: limits},
    {title: "Note", cell: (site) => <Clamp text={spoken(site.note) ?? ""} />, text: (site) => spoken(site.note) ?? "", has: (site) => site.note},
    ...actions(may, ofSite),
  ];
  return <Table name="Sites" rows={sites} columns={columns} keyOf={({name}) => name} empty="No controller has run yet: start Airflow's scheduler with Lading as its executor." />;
}

const TEAMS: Column<TeamState>[] = [
  {title: "Team", cell: (team) => <Link to={pagePath({view: "jobs", team: team.name})} label={`Jobs of team ${team.name}`}><Name>{team.name}</Name></Link>, text: (team) => team.name},
  {title: "Running", cell: (team) => count(team.running), number: true},
  {title: "Waiting", cell: (team) => count(team.waiting), number: true},
  {title: "cpus used", cell: (team) => count(team.cpus_used), number: true},
];

export function Asked() {
  const [found] = useAnswer<OperatorRequest[]>("requests", {}, 5);
  if (!found?.length) return null;
  const outcome = (row: OperatorRequest) => (row.done_at === null ? "the controller has not done it yet" : spoken(row.outcome) ?? "");
  const columns: Column<OperatorRequest>[] = [
    {title: "Asked", cell: (row) => date(row.at)},
    {title: "By", cell: (row) => <Name>{row.by}</Name>, text: (row) => row.by},
    {title: "What", cell: (row) => `${row.kind} ${row.target}`},
    {title: "Outcome", cell: (row) => <Clamp text={outcome(row)} />, text: outcome},
  ];
  return <Section title="What was asked of sites and machines"><Table name="What was asked" rows={found} columns={columns} few={5} empty="" keyOf={({id}) => String(id)} /></Section>;
}

export function NowPage({summary: found, trouble, now}: PageProps) {
  const [today] = useAnswer<Costs>("costs", {since: midnight()}, 60);
  if (!found) return <Section title="How are things?"><Awaited trouble={trouble} /></Section>;
  const homeless = found.waiting - found.sites.reduce((sum, site) => sum + site.waiting, 0);
  const down = found.controller_lives ? null : <span role="alert"><Badge word="down" /> No controller runs: nothing is started</span>;
  const money = found.usd_per_hour;
  return (
    <>
      <Section title="How are things?" more={down}>
        <Tiles>
          <Tile label="Running" value={count(found.running)} to={pagePath({view: "jobs", state: "running"})} />
          <Tile label="Waiting" value={count(found.waiting)} to={pagePath({view: "waits"})} />
          <Tile label="Failed, 24 h" value={count(found.failed)} to={pagePath({view: "jobs", state: "failed", within: DAY})} isBad={found.failed > 0} />
          <Tile label="Machines" value={count(found.machines)} to={pagePath({view: "machines"})} />
          <Tile label="cpus in use" value={count(found.cpus_used)} help={inUse(found)} to={pagePath({view: "machines"})} />
          {money === null
            ? <Tile label="cpu-hours per hour" value={count(found.cpus_used + found.cpus_batch)} to={pagePath({view: "cost"})} />
            : <Tile label="USD per hour" value={usd(money)} to={pagePath({view: "cost"})} />}
          <Tile label="Today" value={today ? cost(today.usd, today.cpu_hours) : "…"} help={!today || today.usd === null ? null : cpuHours(today.cpu_hours)} to={pagePath({view: "cost", by: "day"})} />
        </Tiles>
      </Section>
      <Section title="Which site is ill, which is full?">
        <Sites sites={found.sites} now={now} may={found.may_act} />
        {homeless > 0 && found.sites.length ? <Row><Muted>{count(homeless)} of those that wait name no site, and have been given to none yet.</Muted><Link to={pagePath({view: "jobs", state: WAITING})}>all that wait</Link></Row> : null}
      </Section>
      {found.teams.length ? <Section title="Which teams have what?"><Table name="Teams" rows={found.teams} columns={TEAMS} empty="" keyOf={({name}) => name} /></Section> : null}
      <Asked />
      <Failures within={DAY} few={3} />
    </>
  );
}
