// The application's answers, and what users ask of it.

const API = new URL(/* @vite-ignore */ "../", import.meta.url); // .../lading/, below whatever base URL Airflow has

export type Parameter = string | number | boolean | readonly (string | number)[] | null | undefined;
export type Parameters = Record<string, Parameter>;

/** No answer came, or none that says anything of what was asked: all else that is asked would fare alike. */
export class AwayError extends Error {
  constructor(message: string, readonly isLoggedOut = false) { super(message); }
}

export function address(path: string, parameters: Parameters = {}): URL {
  const url = new URL(path, API);
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of [value].flat()) if (each !== undefined && each !== null) url.searchParams.append(name, String(each));
  }
  return url;
}

async function detail(answer: Response): Promise<string> {
  try {
    const {detail: found} = await answer.json() as {detail: string | {msg: string}[]};
    return typeof found === "string" ? found : found[0]?.msg ?? `the API server answered ${answer.status}`;
  } catch {
    return `the API server answered ${answer.status}`;
  }
}

async function read<Answer>(asking: Promise<Response>): Promise<Answer> {
  let answer: Response;
  try {
    answer = await asking;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new AwayError("the API server does not answer");
  }
  if (answer.status === 401) throw new AwayError("you are logged out", true);
  if (answer.status >= 500) throw new AwayError(await detail(answer));
  if (answer.status === 403) throw new Error("you may not see this; an administrator of Airflow can grant the right");
  if (!answer.ok) throw new Error(await detail(answer));
  return await answer.json() as Answer;
}

export const get = <Answer>(path: string, parameters: Parameters = {}, signal?: AbortSignal): Promise<Answer> =>
  read(fetch(address(path, parameters), {signal, headers: {Accept: "application/json"}}));

const post = <Answer>(path: string, body: unknown): Promise<Answer> =>
  read(fetch(address(path), {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)}));

/** Asks the controller for something: pause, resume, drain, terminate, wake. */
export const ask = (kind: string, target: string) => post<unknown>("requests", {kind, target});

/** Says what the end of a run is worth, and when it shall have ended; null: as its Dag says. */
export const hurry = (dagId: string, runId: string, asked: {hurry: string | null; finish_by: string | null}) =>
  post<unknown>(`${["dags", dagId, "runs", runId].map(encodeURIComponent).join("/")}/hurry`, asked);
