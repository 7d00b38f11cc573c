// The application's answers, asked for again and again while the page can be seen.
import {asked, merged} from "./packing.js";

const {useEffect, useRef, useState} = globalThis.React;

const API = new URL("../", import.meta.url); // .../lading/, below whatever base URL Airflow has

export async function get(path, parameters = {}, signal) {
  const url = new URL(path, API);
  for (const [name, value] of Object.entries(parameters)) for (const each of [value].flat()) if (each !== undefined && each !== null) url.searchParams.append(name, each);
  return read(await fetch(url, {signal, headers: {Accept: "application/json"}}));
}

// Asks the controller for something: pause, resume, drain, terminate, wake.
export const ask = async (kind, target) => read(await fetch(new URL("requests", API), {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({kind, target})}));

// Says what the end of a run is worth, and when it shall have ended; null: as its Dag says.
export const hurry = async (dagId, runId, asked) => read(await fetch(new URL(["dags", dagId, "runs", runId].map(encodeURIComponent).join("/") + "/hurry", API), {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(asked)}));

async function read(answer) {
  if (answer.status === 401) throw new Error("you are not logged in any more: load the page again");
  if (answer.status === 403) throw new Error("you may not see this; Airflow's administrator can give you the right");
  if (answer.status === 422) throw new Error((await answer.json()).detail[0].msg);
  if (answer.status === 404 || answer.status === 503) throw new Error((await answer.json()).detail);
  if (!answer.ok) throw new Error(`the API server answered ${answer.status}`);
  return answer.json();
}

// Calls `look` at once and every so many seconds while the page can be seen, one call after the other. A call that
// takes long is waited for, and said to.
const PATIENCE = 20;
export function useEvery(seconds, look, keys) {
  const [trouble, setTrouble] = useState(null);
  const latest = useRef(look);
  latest.current = look;
  useEffect(() => {
    const abort = new AbortController();
    let timer = null;
    setTrouble(null);
    const turn = async () => {
      timer = null;
      const late = setTimeout(() => abort.signal.aborted || setTrouble(`no answer for ${PATIENCE} s, it is still waited for`), PATIENCE * 1000);
      try {
        await latest.current(abort.signal);
        setTrouble(null);
      } catch (error) {
        if (!abort.signal.aborted) setTrouble(error.message);
      }
      clearTimeout(late);
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

// How much later it is than at a time of this machine's clock, seconds; it goes on where no answer comes.
const AGING = 5;
function useAge(at) {
  const [, tick] = useState(0);
  useEffect(() => {
    if (at === null) return undefined;
    const timer = setInterval(() => document.hidden || tick((number) => number + 1), AGING * 1000);
    return () => clearInterval(timer);
  }, [at === null]);
  return at === null ? 0 : Math.max(0, (Date.now() - at) / 1000);
}

// The latest answer to one question, what is wrong, and what time it is by the server's clock. What answers another
// question is no answer: null.
export function useAnswer(path, parameters = {}, seconds = 3) {
  const key = JSON.stringify([path, parameters]), [kept, setKept] = useState({key: null});
  const trouble = useEvery(seconds, async (signal) => {
    const answer = await get(path, parameters, signal);
    setKept({key, answer, at: Date.now()});
  }, [key]);
  const answer = kept.key === key ? kept.answer : null, hasTime = answer !== null && answer.now !== undefined;
  const age = useAge(hasTime ? kept.at : null);
  return [answer, trouble, hasTime ? answer.now + age : null];
}

// All jobs of an answer that comes in pages.
export async function allJobs(path, parameters) {
  const jobs = [];
  for (let after = null; ;) {
    const page = await get(path, {...parameters, limit: 500, after});
    jobs.push(...page.jobs);
    if ((after = page.after) === null) return jobs;
  }
}

// What ran where in a window, what is wrong, and what time it is by the server's clock: asked for once, then only what is
// new. The first is the same as long as nothing has come; time goes on.
export function usePacking(window) {
  const key = JSON.stringify(window), [kept, setKept] = useState({key: null}), latest = useRef({key: null});
  const trouble = useEvery(3, async (signal) => {
    const before = latest.current.key === key ? latest.current : {packing: null};
    const found = await get("packing", {...asked(window, Date.now() / 1000), cursor: before.cursor}, signal);
    const packing = merged(before.packing, found, window);
    latest.current = {key, cursor: found.cursor, packing};
    if (packing !== before.packing) setKept({key, packing, at: Date.now()});
  }, [key]);
  const packing = kept.key === key ? kept.packing : null, age = useAge(packing ? kept.at : null);
  return [packing, trouble, packing ? packing.now + age : null];
}
