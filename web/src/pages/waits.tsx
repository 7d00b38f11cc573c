// Why jobs wait, grouped by reason, site and limit, with remedies and who can apply them; and how long queues take.
import * as React from "react";
import {useState} from "react";
import type {DagStarts, QueueWait, StartAccuracy, StartEstimate, StartSource, WaitGroup, WaitGroups, WaitsBySize} from "../api_types";
import type {HeldRoom} from "../api_types";
import {byWhom, count, cpusText, duration, iso, jobsText, momentText, percent, sentence, startText, usd} from "../format";
import {pagePath, type Choices} from "../paths";
import {useAnswer} from "../polling";
import {AnswerSection, Awaited, Bar, Button, Clamp, Link, Muted, Name, Row, Select} from "../ui/parts";
import {Table, type Column} from "../ui/table";
import {WAITING} from "../ui/tries";
import {Dags} from "./groups";
import type {PageProps} from "./page";

const holder = ({dag_id, gang}: HeldRoom) => (dag_id === null ? "another Dag" : gang === null ? dag_id : `${dag_id}'s gang ${gang}`);
const holds = ({held}: WaitGroup) => held.map((each) => `${holder(each)} holds ${cpusText(each.cpus)} at ${each.place} for ${count(each.jobs)} of its jobs`);

/** The limit that was reached, how much of it is used, and the site. */
export function limitText({site, limit, params}: WaitGroup): string {
  const {used, most} = params;
  const amount = limit?.includes("usd") ? usd : count;
  const share = typeof used === "number" && typeof most === "number" ? `${amount(used)} of ${amount(most)}` : null;
  const reached = [limit, share].filter(Boolean).join(" ");
  return [site, reached].filter(Boolean).join(": ");
}
/** Whether the reason only says that a limit was reached, which the limit's own line already shows. */
const isLimitAlone = (group: WaitGroup) => {
  const {used, most} = group.params;
  return group.limit !== null && typeof used === "number" && typeof most === "number" && Object.keys(group.params).every((name) => ["used", "most", "site"].includes(name));
};
const lines = (group: WaitGroup) => [...(isLimitAlone(group) ? [] : group.sentences).map((text) => sentence(text, group.site)), ...holds(group)];
/** The filters for the jobs of a group. Jobs without a reason yet have no code. Few waiting jobs have a site, so the filter is
 * the site of their reasons. */
const choices = ({key, limit, site: at}: WaitGroup) => (key === "new" ? {view: "jobs", state: "queued"} : {view: "jobs", state: WAITING, reason: key, limit, at});
/** The jobs of a group, the one that starts last first. */
const byStart = (group: WaitGroup, more: Choices = {}) => pagePath({...choices(group), ...more, sort: "starts"});
/** What the start rests on, or what holds the last job, unless it is what the whole group waits for. */
const startBasis = ({start, title}: WaitGroup) => (start === null || (start.since === null && start.text.startsWith(title)) ? "" : start.text);
const lastStart = (group: WaitGroup, now: number) => (group.start === null ? <Muted>unknown: too few similar jobs have started lately</Muted> : (
  <div><Link to={byStart(group)} label={`Jobs by expected start: ${group.title}`}>{startText(group.start, now)}</Link>{startBasis(group) ? <div className="muted"><Clamp text={startBasis(group)} /></div> : null}</div>
));

const shortStart = (start: StartEstimate | null, now: number) =>
  start === null ? "unknown" : start.at === null ? "held up" : start.at <= now ? "now" : momentText(start.at, now);
/** When the jobs of one Dag of a group start. */
export function dagStartsText({jobs, first, last}: Pick<DagStarts, "jobs" | "first" | "last">, now: number): string {
  return jobs === 1 ? `starts ${aboutText(shortStart(last, now))}` : `first ${aboutText(shortStart(first, now))}, last ${aboutText(shortStart(last, now))}`;
}
const aboutText = (text: string) => (/\d/.test(text) ? `about ${text}` : text);

/** The Dags of a group; if there are several, when the jobs of each start is loaded on request. */
function GroupDags({group, now}: {group: WaitGroup; now: number}) {
  const [isOpen, setOpen] = useState(false);
  if (group.dags_total < 2) return <Dags group={group} to={(dag) => pagePath({...choices(group), dag})} />;
  return (
    <div>
      {isOpen ? <StartsByDag group={group} now={now} /> : <Dags group={group} to={(dag) => pagePath({...choices(group), dag})} />}
      <Button aria-expanded={isOpen} aria-label={`Starts by Dag: ${group.title}`} onClick={() => setOpen(!isOpen)}>{isOpen ? "▾ Starts by Dag" : "▸ Starts by Dag"}</Button>
    </div>
  );
}
function StartsByDag({group, now}: {group: WaitGroup; now: number}) {
  const [found, trouble] = useAnswer<DagStarts[]>("waits/dags", {key: group.key, site: group.site, limit: group.limit}, 30);
  if (found === null) return <Awaited trouble={trouble} />;
  return (
    <>
      {found.map((each) => <div key={each.dag_id}><Link to={byStart(group, {dag: each.dag_id})} label={`${each.dag_id}: jobs of this group by expected start`}><Name>{each.dag_id}</Name></Link> {count(each.jobs)}<div className="muted">{dagStartsText(each, now)}</div></div>)}
      {group.dags_total > found.length ? <Muted>the {count(found.length)} Dags with the most jobs of {count(group.dags_total)}</Muted> : null}
    </>
  );
}

/** Only the groups or waits of a site; null: all of them. */
const ofSite = <Row extends {site: string | null}>(rows: readonly Row[], chosen: string | null) => rows.filter(({site}) => chosen === null || site === chosen);
function Groups({found, now, chosenSite}: {found: WaitGroups; now: number; chosenSite: string | null}) {
  const rows = ofSite(found.groups, chosenSite);
  const columns: Column<WaitGroup>[] = [
    {title: "Jobs", cell: (group) => (
      <div><Link to={pagePath(choices(group))} label={`${count(group.jobs)} jobs: ${group.title}`}>{count(group.jobs)}</Link>
        <Bar whole={1} parts={[{key: "share", title: "of all waiting jobs", value: group.share, text: percent(group.share, 1), color: "var(--l-queue)"}]} /></div>
    ), text: (group) => group.jobs, number: true},
    {title: "Waits for", cell: (group) => (
      <div><b>{group.title}</b>{limitText(group) ? <div><Name>{limitText(group)}</Name></div> : null}{lines(group).map((text) => <div key={text} className="muted"><Clamp text={text} /></div>)}</div>
    ), text: (group) => [group.title, limitText(group), ...lines(group)].filter(Boolean).join("; ")},
    {title: "Last one starts", help: "When the last of these jobs is expected to start, based on the estimate for each job", cell: (group) => lastStart(group, now), text: false},
    {title: "Last one starts from", hidden: true, text: ({start}) => iso(start?.since)},
    {title: "Last one starts about", hidden: true, text: ({start}) => iso(start?.at)},
    {title: "Last one starts until", hidden: true, text: ({start}) => iso(start?.until)},
    {title: "Longest wait", csvTitle: "Longest wait, s", cell: (group) => duration(now - group.oldest), text: (group) => Math.round(now - group.oldest), number: true},
    {title: "cpus requested", cell: (group) => count(group.cpus), text: (group) => group.cpus, number: true},
    {title: "Dags", cell: (group) => <GroupDags group={group} now={now} />, text: (group) => group.dags.map(({dag_id, jobs}) => `${dag_id} ${jobs}`).join("; ")},
    {title: "What to do", cell: (group) => <Clamp text={byWhom(group)} />, text: byWhom},
  ];
  return <Table name="Waiting jobs" rows={rows} columns={columns} empty="No job is waiting." keyOf={({key, site, limit}) => `${key} ${site} ${limit}`} />;
}

function Queues({chosenSite}: {chosenSite: string | null}) {
  const asked = useAnswer<WaitsBySize>("queue-waits", {}, 60), [known] = asked;
  if (!ofSite(known?.waits ?? [], chosenSite).length && !asked[1]) return null;
  const size = ({more_cpus_than: more, most_cpus: most}: QueueWait) => (more + 1 === most || more === most ? count(most) : `${count(more + 1)} to ${count(most)}`);
  const columns: Column<QueueWait>[] = [
    {title: "What waited", cell: (row) => (row.what === "jobs" ? "batch jobs" : row.what), text: (row) => row.what},
    {title: "Site", cell: (row) => <Name>{row.site}</Name>, text: (row) => row.site},
    {title: "Queue", cell: (row) => row.queue ?? "", has: (row) => row.queue},
    {title: "cpus of each", csvTitle: "Most cpus of each", cell: size, text: (row) => row.most_cpus, number: true},
    {title: "Half started within", csvTitle: "Half started within, s", cell: (row) => duration(row.median), text: (row) => row.median, number: true},
    {title: "95 % started within", csvTitle: "95 % started within, s", cell: (row) => duration(row.most), text: (row) => row.most, number: true},
    {title: "Count", cell: (row) => count(row.count), text: (row) => row.count, number: true},
  ];
  return <AnswerSection title="Waits by size" more={known ? <Muted>of the latest {count(known.read)} batch jobs and {count(known.read)} machines that started</Muted> : null} asked={asked}>{(found) => <Table name="Waits by size" rows={ofSite(found.waits, chosenSite)} columns={columns} empty="" keyOf={(row) => `${row.what} ${row.site} ${row.queue} ${row.most_cpus}`} />}</AnswerSection>;
}

/** What expected starts are based on, in the words that the estimates themselves use. */
const SOURCES: [StartSource, string][] = [["forecast", "Lading's plan"], ["batch_system", "The batch system's estimate"], ["backlog", "The position in the queue"], ["past_waits", "The waits of earlier tries"]];
const MONTH = 30 * 86400;
/** The part of jobs that is meant to start within the predicted interval; intervals cover eight of ten cases. */
const MEANT = 0.8;
/** How often jobs started within the predicted interval, and whether that is as often as meant. */
function Accuracy() {
  const asked = useAnswer<StartAccuracy[]>("starts", {}, 300, () => ({since: Date.now() / 1000 - MONTH}), "month");
  if (!asked[0]?.some(({said}) => said) && !asked[1]) return null;
  const line = (found: StartAccuracy | undefined) => (found?.said ? `${percent(found.within, found.said)} of ${count(found.said)} jobs in the last 30 days started within the interval first predicted for them, ${found.within / found.said < MEANT ? "below the goal of" : "and the goal is"} at least ${percent(MEANT, 1)}.` : "no job with such an estimate started in the last 30 days.");
  return (
    <AnswerSection title="Accuracy of expected starts" asked={asked}>{(found) =>
      SOURCES.map(([source, name]) => <p key={source}>{name}: {line(found.find((each) => each.source === source))}</p>)}
    </AnswerSection>
  );
}

export function WaitsPage({chosen, summary}: PageProps) {
  const asked = useAnswer<WaitGroups>("waits"), [found, , now] = asked;
  const site = chosen.get("site") || null;
  const sites = [["", "all sites"], ...(summary?.sites ?? []).map(({name}) => [name, name])] as [string, string][];
  const more = (
    <Row>
      {found ? <Link to={pagePath({view: "jobs", state: WAITING, at: site})}>All {jobsText(site === null ? found.jobs : ofSite(found.groups, site).reduce((sum, {jobs}) => sum + jobs, 0))}</Link> : null}
      <Select label="Filter by site" value={site ?? ""} options={sites} onChange={(value) => chosen.set({site: value || null})} />
    </Row>
  );
  return (
    <>
      <AnswerSection title="Waiting jobs" more={more} asked={asked}>{(groups) => <Groups found={groups} now={now} chosenSite={site} />}</AnswerSection>
      <Accuracy />
      <Queues chosenSite={site} />
    </>
  );
}
