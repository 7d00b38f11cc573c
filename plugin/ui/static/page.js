// The page: how things are, why jobs wait, what runs where, what it costs.
import {idleShare, sharesOf} from "./chart.js";
import {allJobs, ask, useAnswer, usePacking} from "./data.js";
import {Packing} from "./packing_chart.js";
import {TryTable} from "./tries.js";
import {Badge, Confirmed, Frame, Link, Muted, Row, Section, Select, Spinner, Table, Tile, Tiles, Trouble, h, memo, useMemo, useState} from "./ui.js";
import {bought, cost, count, cpuHours, dagPath, date, duration, inUse, machineState, memory, midnight, percent, spoken, usd} from "./words.js";

const RANGES = [["900", "15 minutes"], ["3600", "1 hour"], ["21600", "6 hours"], ["86400", "24 hours"], ["604800", "7 days"]];
const dagLink = (dagId) => h(Link, {to: dagPath(dagId)}, dagId);
const CHOICES = {running: ["running"], waiting: ["queued", "attempted", "placed"], failed: ["failed"], all: []};
const NONE = {running: "Nothing runs: choose on the right to see what waits, what has failed, or all.", waiting: "Nothing waits.", failed: "Nothing has failed.", all: "No job ever ran."};

const LIVING = ["ordered", "booting", "up"];
const actions = (may, cells) => (may ? [{title: "Actions", text: false, has: (row) => cells(row).length, cell: (row) => h(Row, null, cells(row).map(([kind, label, target, question]) => h(Confirmed, {key: kind, label, question, onYes: () => ask(kind, target)})))}] : []);
const ofSite = ({name, state}) => (state === "paused" ? [["resume", "Resume", name, `Give ${name} jobs again?`]] : [["pause", "Pause", name, `Give ${name} no more jobs?`]]);
const ofMachine = ({sort, state, key}) => (sort !== "instance" || !(LIVING.includes(state) || state === "draining") ? [] : [
  ...(LIVING.includes(state) ? [["drain", "Drain", key, `Let ${key} end when its jobs have ended?`]] : []),
  ["terminate", "Terminate", key, `End ${key}, and the jobs that run there?`]]);

function Sites({sites, now, may}) {
  const idle = ({nodes, idle_nodes}) => (nodes === null || idle_nodes === null ? [] : [`${idle_nodes} of ${nodes} nodes idle`]);
  const limits = (site) => [...idle(site), ...Object.entries(site.limits).map(([name, value]) => `${name} = ${value}`)].join(", ");
  return h(Table, {name: "Sites", rows: sites, empty: "No controller has run yet: start Airflow's scheduler with Lading as its executor.", columns: [
    {title: "Site", cell: (site) => site.name},
    {title: "Kind", cell: (site) => site.kind},
    {title: "State", cell: (site) => h(Badge, {word: site.state}), text: (site) => site.state},
    {title: "Running", cell: (site) => site.running, number: true},
    {title: "Waiting", cell: (site) => site.waiting, number: true},
    {title: "cpus used / up", cell: (site) => `${count(site.cpus_used)} / ${count(site.cpus_up)}`, has: (site) => site.cpus_up !== null, number: true},
    {title: "cpus in batch jobs", cell: (site) => count(site.cpus_batch), has: (site) => site.cpus_batch > 0, number: true},
    {title: "USD per hour", cell: (site) => usd(site.usd_per_hour), has: (site) => site.usd_per_hour !== null, number: true},
    {title: "Last contact", cell: (site) => (site.contact_at === null ? "never" : `${duration(Math.max(0, now - site.contact_at))} ago`)},
    {title: "Limits", cell: limits, has: limits},
    {title: "Note", cell: (site) => spoken(site.note) ?? "", has: (site) => site.note},
    ...actions(may, ofSite),
  ]});
}

const Teams = ({teams}) => h(Section, {title: "Which teams have what?"}, h(Table, {name: "Teams", rows: teams, columns: [
  {title: "Team", cell: (team) => team.name},
  {title: "Running", cell: (team) => team.running, number: true},
  {title: "Waiting", cell: (team) => team.waiting, number: true},
  {title: "cpus used", cell: (team) => count(team.cpus_used), number: true},
]}));

function Asked() {
  const [found] = useAnswer("requests", {}, 5);
  return !found?.length ? null : h(Section, {title: "What was asked of them"}, h(Table, {name: "What was asked", rows: found, few: 5, columns: [
    {title: "Asked", cell: (row) => date(row.at)},
    {title: "By", cell: (row) => row.by},
    {title: "What", cell: (row) => `${row.kind} ${row.target}`},
    {title: "Outcome", cell: (row) => (row.done_at === null ? "the controller has not done it yet" : spoken(row.outcome))},
  ]}));
}

function Today() {
  const [today] = useAnswer("costs", {since: midnight()}, 60);
  return h(Tile, {label: "Today", value: today ? cost(today.usd, today.cpu_hours) : "…", help: today?.usd === null || !today ? null : cpuHours(today.cpu_hours)});
}

function Things({found, trouble, now}) {
  if (!found) return h(Section, {title: "How are things?"}, h(Trouble, {words: trouble}), trouble ? null : h(Spinner));
  const money = found.usd_per_hour, homeless = found.waiting - found.sites.reduce((sum, site) => sum + site.waiting, 0);
  return h(Section, {title: "How are things?", more: found.controller_lives ? null : h("span", {role: "alert"}, h(Badge, {word: "down"}), " No controller runs: nothing is started")},
    h(Trouble, {words: trouble}),
    h(Tiles, null,
      h(Tile, {label: "Running", value: count(found.running)}),
      h(Tile, {label: "Waiting", value: count(found.waiting)}),
      h(Tile, {label: "Machines", value: count(found.machines)}),
      h(Tile, {label: "cpus in use", value: count(found.cpus_used), help: inUse(found)}),
      h(Tile, money === null ? {label: "cpu-hours per hour", value: count(found.cpus_used + found.cpus_batch)} : {label: "USD per hour", value: usd(money)}),
      h(Today)),
    h("div", {style: {marginTop: 12}}, h(Sites, {sites: found.sites, now, may: found.may_act})),
    found.teams.length ? h(Teams, {teams: found.teams}) : null,
    homeless > 0 && found.sites.length ? h(Muted, null, `${count(homeless)} of those that wait name no site, and have been given to none yet.`) : null,
    h(Asked));
}

const holder = ({dag_id, gang}) => (dag_id === null ? "another Dag" : gang === null ? dag_id : `${dag_id}'s gang ${gang}`);
const holds = ({held}) => held.map((each) => `${holder(each)} holds ${count(each.cpus)} cpus at ${each.place} for ${count(each.jobs)} of its jobs`);

const waitsFor = ({title, site, limit}) => [title, [site, limit].filter(Boolean).join(", ")].filter(Boolean).join(" – ");

function Why() {
  const [found, trouble, now] = useAnswer("waits");
  return h(Section, {title: "Why does it wait?"}, h(Trouble, {words: trouble}), found ? h(Table, {name: "Waiting jobs", rows: found.groups, empty: "Nothing waits.", columns: [
    {title: "Jobs", cell: (group) => count(group.jobs), number: true},
    {title: "Waits for", cell: (group) => h("div", null, h("b", null, waitsFor(group)), [...group.sentences.map(spoken), ...holds(group)].map((words) => h("div", {key: words}, h(Muted, null, words)))), text: (group) => [waitsFor(group), ...group.sentences.map(spoken), ...holds(group)].join("; ")},
    {title: "Oldest", cell: (group) => duration(now - group.oldest), number: true},
    {title: "cpus", cell: (group) => count(group.cpus), number: true},
    {title: "Dags", cell: (group) => h(Row, null, group.dags.map(({dag_id, jobs}) => h("span", {key: dag_id}, dagLink(dag_id), ` ${count(jobs)}`)), group.hidden ? h(Muted, null, "and others") : null), text: (group) => group.dags.map(({dag_id, jobs}) => `${dag_id} ${jobs}`).join("; ")},
    {title: "What would change it", cell: (group) => group.remedy},
  ]}) : trouble ? null : h(Spinner));
}

const spent = ({usd: before, usd_since, usd_per_hour}, now) => (usd_since === null ? null : before + (usd_per_hour * Math.max(0, now - usd_since)) / 3600);

function Machines({packing, shares, now, may}) {
  const used = new Map();
  for (const job of packing.jobs.values()) if (job.end === null) used.set(job.place, (used.get(job.place) ?? 0) + job.cpus);
  const rows = [...packing.machines.values()].filter((machine) => !["gone", "ended"].includes(machine.state)).sort((one, other) => one.key.localeCompare(other.key));
  return h(Table, {name: "Machines", rows, empty: "No machine is up.", columns: [
    {title: "Machine", cell: (machine) => h("div", null, h("div", null, machine.key), h(Muted, null, bought(machine))), text: (machine) => machine.key},
    {title: "Bought", shown: false, text: bought},
    {title: "State", cell: (machine) => { const [word, since] = machineState(machine); return h("div", null, h(Badge, {word}), since && h("div", null, h(Muted, null, since))); }, text: (machine) => machineState(machine).filter(Boolean).join(" ")},
    {title: "cpus used / up", cell: (machine) => `${count(used.get(machine.key) ?? 0)} / ${count(machine.cpus)}`, number: true},
    {title: "used so far", cell: ({key}) => percent(shares.get(key).used, shares.get(key).up), number: true},
    {title: "Memory", cell: (machine) => memory(machine.memory), number: true},
    {title: "USD per hour / so far", cell: (machine) => (machine.usd_per_hour === null ? "–" : `${usd(machine.usd_per_hour)} / ${usd(spent(machine, now))}`), text: false, has: ({usd_per_hour}) => usd_per_hour !== null, number: true},
    {title: "USD per hour", shown: false, text: (machine) => machine.usd_per_hour},
    {title: "USD so far", shown: false, text: (machine) => spent(machine, now)},
    {title: "Node, its id there", cell: (machine) => h("div", null, h("div", null, machine.node ?? ""), h(Muted, null, machine.native_id ?? "")), text: false, has: ({node, native_id}) => node ?? native_id},
    {title: "Node", shown: false, text: (machine) => machine.node ?? ""},
    {title: "Its id there", shown: false, text: (machine) => machine.native_id ?? ""},
    {title: "Since", cell: (machine) => date(machine.spans[0][0])},
    {title: "Note", cell: (machine) => spoken(machine.reason) ?? "", has: ({reason}) => reason},
    ...actions(may, ofMachine),
  ]});
}

function Where({may}) {
  const [range, setRange] = useState("3600"), [packing, trouble, now] = usePacking({seconds: Number(range)});
  const shares = useMemo(() => (packing ? sharesOf(packing) : new Map()), [packing]), idle = idleShare(shares);
  const more = h(Row, null, idle === null ? null : h("span", {"data-testid": "idle"}, `${percent(idle, 1)} of all cpu-hours were idle`), h(Muted, null, "Ctrl + wheel zooms, a click opens the task"), h(Select, {label: "How far back", value: range, options: RANGES, onChange: setRange}));
  return h(Section, {title: "What runs where?", more}, h(Trouble, {words: trouble}), packing && !packing.jobs.size ? h(Muted, null, "No job ran in this time.") : null, h(Packing, {packing}), packing ? h(Machines, {packing, shares, now, may}) : null);
}

function Jobs() {
  const [choice, setChoice] = useState("running"), state = CHOICES[choice], [found, trouble, now] = useAnswer("jobs", {state, limit: 50}, 10);
  const more = h(Select, {label: "Which jobs", value: choice, options: Object.keys(CHOICES).map((each) => [each, each]), onChange: setChoice});
  return h(Section, {title: "Jobs one by one", more}, h(Trouble, {words: trouble}), found ? h(TryTable, {name: "Jobs", jobs: found.jobs, now, empty: NONE[choice], load: () => allJobs("jobs", {state})}) : trouble ? null : h(Spinner),
    found?.after ? h(Muted, null, "These are the youngest; the CSV has all.") : null);
}

function Costs() {
  const [days, setDays] = useState("0");
  const since = midnight() - Number(days) * 86400, [found, trouble] = useAnswer("costs", {since}, 60);
  const more = h(Select, {label: "Since when", value: days, options: [["0", "today"], ["6", "7 days"], ["29", "30 days"], ["364", "a year"]], onChange: setDays});
  return h(Section, {title: "What does it cost?", more}, h(Trouble, {words: trouble}), found ? h(Table, {name: "Costs by Dag", rows: found.dags, empty: "No job has ended in this time.", columns: [
    {title: "Dag", cell: (row) => (row.dag_id ? dagLink(row.dag_id) : row.hidden ? "Dags that you may not read" : "no Dag"), text: (row) => row.dag_id ?? "others"},
    {title: "Jobs", cell: (row) => count(row.jobs), number: true},
    {title: "USD", cell: (row) => usd(row.usd), has: (row) => row.usd !== null, number: true},
    {title: "cpu-hours asked", cell: (row) => count(row.cpu_hours), number: true},
    {title: "of them used", cell: (row) => percent(row.cpu_hours_used, row.cpu_hours_measured), number: true},
  ]}) : trouble ? null : h(Spinner));
}

// Each is drawn when its own answer has come, not with the others'.
const [Whys, Wheres, AllJobs, AllCosts] = [Why, Where, Jobs, Costs].map((part) => memo(part));

// The tiles first: what takes longer is asked for when they are there.
export function Page() {
  const [found, trouble, now] = useAnswer("summary");
  const rest = found || trouble ? [h(Whys, {key: "why"}), h(Wheres, {key: "where", may: found?.may_act ?? false}), h(AllJobs, {key: "jobs"}), h(AllCosts, {key: "costs"})] : null;
  return h(Frame, null, h(Things, {found, trouble, now}), rest);
}
