// Requests to the application in Airflow's API server.

const API = new URL(/* @vite-ignore */ "../", import.meta.url); // .../lading/, under any base URL of Airflow

export type Parameter = string | number | boolean | readonly (string | number)[] | null | undefined;
export type Parameters = Record<string, Parameter>;

/** Why a request has no answer.
 *
 * `isRefused`: the API server refused the request, and would refuse it again.
 */
export class AnswerError extends Error {
  readonly isRefused: boolean;
  readonly isLoggedOut: boolean;
  constructor(message: string, {isRefused = false, isLoggedOut = false} = {}) {
    super(message);
    this.isRefused = isRefused;
    this.isLoggedOut = isLoggedOut;
  }
}
/** The message for users who lack permission. */
export const FORBIDDEN = "you do not have permission to see this; an Airflow administrator can grant it";

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
  } catch {
    throw new AnswerError("the API server does not answer");
  }
  const {ok, status} = answer;
  if (status === 401) throw new AnswerError("you are logged out", {isLoggedOut: true});
  if (status === 403) throw new AnswerError(FORBIDDEN, {isRefused: true});
  if (!ok) throw new AnswerError(await detail(answer), {isRefused: status < 500 && status !== 429});
  try {
    return await answer.json() as Answer;
  } catch {
    throw new AnswerError("the answer is not JSON; something between the browser and the API server may have replaced it");
  }
}

export const get = <Answer>(path: string, parameters: Parameters = {}, signal?: AbortSignal): Promise<Answer> =>
  read(fetch(address(path, parameters), {signal, headers: {Accept: "application/json"}}));

const post = <Answer>(path: string, body: unknown): Promise<Answer> =>
  read(fetch(address(path), {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)}));

/** Sends a request to the controller, such as pause, resume, drain, terminate or wake. */
export const ask = (kind: string, target: string) => post<unknown>("requests", {kind, target});

/** Sets the hurry of a run and the time by which it must finish; null: the Dag's setting. */
export const hurry = (dagId: string, runId: string, asked: {hurry: string | null; finish_by: string | null}) =>
  post<unknown>(`${["dags", dagId, "runs", runId].map(encodeURIComponent).join("/")}/hurry`, asked);
