// What ran where, put together from answers of which each has only what is new. Nothing here needs a page.

// The application answers no longer window, seconds; and what begins while it answers is within the window.
const LONGEST = 31 * 86400, AHEAD = 60;
// Where nothing has come, what is drawn moves on in steps of this share of the window: each drawing costs time.
const STEP = 0.01;

// A window is the last `seconds`, or from `since` until `until`; null: until now. What is asked for at a time:
export function asked({seconds, since, until = null}, now) {
  const end = until ?? now + AHEAD;
  return {since: seconds === undefined ? Math.max(since, end - LONGEST) : now - seconds, until: end};
}

// The window of a run: its own time, and a little before and after. However old it is, its own jobs are there.
export function windowOfRun(began, ended) {
  if (ended === null) return {since: began - 60, until: null};
  const margin = Math.max(60, 0.1 * (ended - began));
  return {since: began - margin, until: ended + margin};
}

// From when to when is drawn.
function edges({seconds, since, until = null}, now) {
  const end = Math.min(now, until ?? now);
  return {since: seconds === undefined ? Math.max(since, end - LONGEST) : end - seconds, until: end};
}

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

// What is known with an answer: `before` itself where the answer has nothing new and time has hardly moved on.
export function merged(before, found, window) {
  const {jobs, machines} = before ?? {jobs: new Map(), machines: new Map()}, drawn = edges(window, found.now);
  let isNew = before === null || found.truncated && !before.truncated || !same(found.queues, before.queues);
  for (const [id, place, name, mapIndex, tryNumber, lane, cpus, nodes, start, end, state] of found.jobs) {
    const [dagId, runId, taskId] = name === null ? [] : found.names[name];
    const job = {id, place: found.places[place], dagId, runId, taskId, hidden: name === null, mapIndex, tryNumber, lane, cpus, nodes, start, end, state};
    if (same(job, jobs.get(id))) continue; // what has changed lately is told several times
    jobs.set(id, job);
    isNew = true;
  }
  for (const machine of found.machines) if (!same(machine, machines.get(machine.key))) { machines.set(machine.key, machine); isNew = true; }
  if (!isNew && drawn.until - before.until < STEP * (before.until - before.since)) return before;
  for (const job of jobs.values()) if (job.end !== null && job.end < drawn.since) jobs.delete(job.id);
  for (const machine of machines.values()) {
    const end = machine.spans.at(-1)[1];
    if (end !== null && end < drawn.since) machines.delete(machine.key);
  }
  return {...drawn, now: found.now, truncated: found.truncated || (before?.truncated ?? false), jobs, machines, queues: found.queues};
}
