// The application's answers, asked for again and again while the page can be seen.
const {useEffect, useRef, useState} = globalThis.React;

const API = new URL("../", import.meta.url); // .../lading/, below whatever base URL Airflow has

export async function get(path, parameters = {}, signal) {
  const url = new URL(path, API);
  for (const [name, value] of Object.entries(parameters)) for (const each of [value].flat()) if (each !== undefined && each !== null) url.searchParams.append(name, each);
  return read(await fetch(url, {signal, headers: {Accept: "application/json"}}));
}

// Asks the controller for something: pause, resume, drain, terminate, wake.
export const ask = async (kind, target) => read(await fetch(new URL("requests", API), {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({kind, target})}));

async function read(answer) {
  if (answer.status === 401) throw new Error("you are not logged in any more: load the page again");
  if (answer.status === 403) throw new Error("you may not see this; Airflow's administrator can give you the right");
  if (answer.status === 404 || answer.status === 503) throw new Error((await answer.json()).detail);
  if (!answer.ok) throw new Error(`the API server answered ${answer.status}`);
  return answer.json();
}

// Calls `look` at once and every so many seconds while the page can be seen, one call after the other.
export function useEvery(seconds, look, keys) {
  const [trouble, setTrouble] = useState(null);
  const latest = useRef(look);
  latest.current = look;
  useEffect(() => {
    const abort = new AbortController();
    let timer = null;
    const turn = async () => {
      timer = null;
      try {
        await latest.current(abort.signal);
        setTrouble(null);
      } catch (error) {
        if (!abort.signal.aborted) setTrouble(error.message);
      }
      if (!abort.signal.aborted && !document.hidden) timer = setTimeout(turn, seconds * 1000);
    };
    const shown = () => {
      if (document.hidden) { clearTimeout(timer); timer = null; } else if (timer === null) turn();
    };
    turn();
    document.addEventListener("visibilitychange", shown);
    return () => { abort.abort(); clearTimeout(timer); document.removeEventListener("visibilitychange", shown); };
  }, keys);
  return trouble;
}

// The latest answer to one question, and what is wrong.
export function useAnswer(path, parameters = {}, seconds = 3) {
  const [answer, setAnswer] = useState(null);
  const trouble = useEvery(seconds, async (signal) => setAnswer(await get(path, parameters, signal)), [path, JSON.stringify(parameters)]);
  return [answer, trouble];
}

// What ran where in the last so many seconds: asked for once, then only what is new.
export function usePacking(range) {
  const [packing, setPacking] = useState(null);
  const kept = useRef(null);
  const trouble = useEvery(3, async (signal) => {
    const now = Date.now() / 1000, before = kept.current?.range === range ? kept.current : null;
    const found = await get("packing", {since: now - range, until: now + 60, cursor: before?.cursor}, signal);
    kept.current = merged(before ?? {range, jobs: new Map(), machines: new Map()}, found, range);
    setPacking(kept.current);
  }, [range]);
  return [packing, trouble];
}

function merged(before, found, range) {
  const since = found.now - range, jobs = before.jobs, machines = before.machines;
  for (const [id, place, name, mapIndex, tryNumber, lane, cpus, start, end, state] of found.jobs) {
    const [dagId, runId, taskId] = name === null ? [] : found.names[name];
    jobs.set(id, {id, place: found.places[place], dagId, runId, taskId, hidden: name === null, mapIndex, tryNumber, lane, cpus, start, end, state});
  }
  for (const job of jobs.values()) if (job.end !== null && job.end < since) jobs.delete(job.id);
  for (const machine of found.machines) machines.set(machine.key, machine);
  for (const machine of machines.values()) {
    const end = machine.spans.at(-1)[1];
    if (end !== null && end < since) machines.delete(machine.key);
  }
  return {range, since, now: found.now, cursor: found.cursor, truncated: found.truncated || (before.truncated ?? false), jobs, machines};
}
