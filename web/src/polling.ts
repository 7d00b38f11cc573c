// Polls the API while the page is visible. Each question has its own errors and back-off, so if one fails the others
// continue. The API server only counts as away if all questions fail: then a single one is retried, at increasing
// intervals, and all of them once it answers.
import {useEffect, useMemo, useRef, useState} from "react";
import {AnswerError, get, type Parameters} from "./api";
import {asked, merged, type Packing, type Window} from "./chart/packing";
import {moment} from "./format";
import type {PackingChart} from "./api_types";

/** Seconds without an answer after which the page shows that, and after which the request is aborted and retried. */
const PATIENCE = 20, GIVEN_UP = 120;
/** The first and the longest pause after a failure, seconds. Refused requests pause longer, because they will fail again. */
const FIRST_WAIT = 2, LONGEST_WAIT = 60, LONGEST_REFUSED = 300;
/** Seconds for which an answer is kept after it was last shown, so that going back shows it at once. */
const KEPT = 60;

export interface Connection {
  /** Why no answer is up to date; null: at least one is. */
  trouble: string | null;
  isLoggedOut: boolean;
  /** When the last answer came, ms; null: none yet. */
  lastAt: number | null;
}

interface Timers {
  now: () => number;
  set: (call: () => void, milliseconds: number) => unknown;
  clear: (timer: never) => void;
  random: () => number;
  isHidden: () => boolean;
}
const BROWSER: Timers = {
  now: () => Date.now(),
  set: (call, milliseconds) => setTimeout(call, milliseconds),
  clear: (timer) => clearTimeout(timer),
  random: () => Math.random(),
  isHidden: () => document.hidden,
};

type Ask = (signal: AbortSignal, before: unknown) => Promise<unknown>;
export class Question {
  answer: unknown = null;
  /** When the answer came, ms; null: none yet. */
  at: number | null = null;
  /** Why the last request failed; null: it succeeded or is still running. */
  error: AnswerError | null = null;
  /** The number of consecutive failures. */
  failures = 0;
  /** When it was last asked, and when the outcome of a request was last known, ms. */
  askedAt = -Infinity;
  settledAt = -Infinity;
  readonly listeners = new Map<() => void, number>();
  timer: unknown = null;
  running: AbortController | null = null;
  /** Whether it was asked before any component showed its answer. */
  wasAhead = false;
  constructor(readonly key: string, readonly ask: Ask) {}
  get seconds(): number { return Math.min(...this.listeners.values()); }
  /** Whether requests fail; a refusal counts as an answer. */
  get isFailing(): boolean { return this.error !== null && !this.error.isRefused; }
  tell(): void { for (const listener of [...this.listeners.keys()]) listener(); }
}

export class Poller {
  connection: Connection = {trouble: null, isLoggedOut: false, lastAt: null};
  private readonly questions = new Map<string, Question>();
  private readonly watchers = new Set<() => void>();
  private wait = FIRST_WAIT;
  private probe: unknown = null;

  constructor(private readonly timers: Timers = BROWSER) {}

  get isAway(): boolean { return this.connection.trouble !== null; }

  question(key: string, ask: Ask): Question {
    let found = this.questions.get(key);
    if (!found) this.questions.set(key, (found = new Question(key, ask)));
    return found;
  }

  /** Asks a question at an interval of `seconds` until the returned function is called. */
  subscribe(question: Question, seconds: number, listener: () => void): () => void {
    this.questions.set(question.key, question);
    question.listeners.set(listener, seconds);
    const fresh = question.at === null ? 0 : seconds * 1000 - (this.timers.now() - question.at);
    if (question.wasAhead && fresh > 0) question.timer ??= this.timers.set(() => void this.turn(question), fresh);
    else if (!question.running && (question.listeners.size === 1 || question.answer === null)) void this.turn(question);
    question.wasAhead = false;
    return () => {
      question.listeners.delete(listener);
      if (question.listeners.size) return;
      this.stop(question);
      this.forget(question);
      if (!this.active.length) this.rest();
    };
  }

  /** Drops a question after a while if no component shows its answer. */
  private forget(question: Question): void {
    this.timers.set(() => { if (!question.listeners.size && this.questions.get(question.key) === question) this.questions.delete(question.key); }, KEPT * 1000);
  }

  /** Asks a question whose answer the page is about to show. */
  ahead(question: Question): void {
    if (question.running || question.at !== null) return;
    question.wasAhead = true;
    void this.turn(question);
    this.forget(question);
  }

  watch(listener: () => void): () => void {
    this.watchers.add(listener);
    return () => this.watchers.delete(listener);
  }

  private get active(): Question[] { return [...this.questions.values()].filter(({listeners}) => listeners.size); }

  /** Asks the questions whose key begins with `start` again at once, for example after a request. */
  again(start: string): void {
    for (const question of this.active) if (question.key.startsWith(start) && !question.running) void this.turn(question);
  }

  /** Resumes polling when the page becomes visible, and suspends it when the page is hidden. */
  seen(): void {
    if (this.timers.isHidden()) {
      for (const question of this.questions.values()) this.halt(question);
      this.clearProbe();
    } else this.all();
  }

  /** Retries failed questions at once, when the user says so. */
  try(): void {
    for (const question of this.active) if (question.error && !question.running) void this.turn(question);
  }

  private all(): void {
    for (const question of this.active) if (!question.running) void this.turn(question);
  }

  private halt(question: Question): void {
    if (question.timer !== null) this.timers.clear(question.timer as never);
    question.timer = null;
  }

  private stop(question: Question): void {
    this.halt(question);
    question.running?.abort();
    question.running = null;
  }

  /** Forgets that the API server is away: what is asked next may get an answer. */
  private rest(): void {
    this.clearProbe();
    this.wait = FIRST_WAIT;
    if (this.isAway) this.say({trouble: null, isLoggedOut: false});
  }

  private clearProbe(): void {
    if (this.probe !== null) this.timers.clear(this.probe as never);
    this.probe = null;
  }

  private async turn(question: Question): Promise<void> {
    this.halt(question);
    const abort = new AbortController();
    question.running = abort;
    question.askedAt = this.timers.now();
    const late = this.timers.set(() => this.settled(question, new AnswerError(`no answer for ${PATIENCE} s`)), PATIENCE * 1000);
    const end = this.timers.set(() => { if (ended()) { abort.abort(); this.failed(question, new AnswerError(`no answer for ${GIVEN_UP} s`)); } }, GIVEN_UP * 1000);
    /** Clears the timeouts; returns whether this request is still the current one. */
    const ended = (): boolean => {
      this.timers.clear(late as never);
      this.timers.clear(end as never);
      if (question.running !== abort) return false;
      question.running = null;
      return true;
    };
    try {
      const answer = await question.ask(abort.signal, question.answer);
      if (!ended()) return;
      Object.assign(question, {answer, at: this.timers.now(), failures: 0});
      this.settled(question, null);
    } catch (error) {
      if (ended()) this.failed(question, error instanceof AnswerError ? error : new AnswerError(String((error as Error).message ?? error), {isRefused: true}));
    }
  }

  private failed(question: Question, error: AnswerError): void {
    question.failures += 1;
    this.settled(question, error);
  }

  private settled(question: Question, error: AnswerError | null): void {
    Object.assign(question, {error, settledAt: this.timers.now()});
    if (question.isFailing) this.doubt(question); else this.answered(question);
    question.tell();
    if (!this.isAway && !this.timers.isHidden() && question.listeners.size && question.timer === null && !question.running) {
      question.timer = this.timers.set(() => void this.turn(question), this.pause(question) * 1000);
    }
  }

  private pause({seconds, failures, error}: Question): number {
    if (error === null) return seconds;
    return error.isRefused ? Math.max(seconds, Math.min(LONGEST_REFUSED, seconds * 2 ** failures)) : Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** failures);
  }

  /** Finds out whether the API server is away after a question failed, by asking the others one by one until one answers. */
  private doubt(question: Question): void {
    const active = this.active, others = active.filter(({isFailing}) => !isFailing);
    if (this.isAway || (active.length && !others.length)) { this.away(question.error as AnswerError); return; }
    if (others.some(({settledAt}) => settledAt > question.askedAt)) return;
    const next = others.filter(({running}) => !running).sort((one, other) => one.seconds - other.seconds)[0];
    if (next && !others.some(({running, askedAt}) => running && askedAt >= question.askedAt)) void this.turn(next);
  }

  private say(connection: Partial<Connection>): void {
    this.connection = {...this.connection, ...connection};
    for (const watcher of [...this.watchers]) watcher();
    for (const question of this.active) question.tell();
  }

  private answered(question: Question): void {
    this.connection.lastAt = this.timers.now();
    if (!this.isAway) return;
    this.rest();
    for (const other of this.active) if (other !== question && !other.running) void this.turn(other);
  }

  private away(error: AnswerError): void {
    for (const question of this.questions.values()) this.halt(question);
    if (this.connection.trouble !== error.message) this.say({trouble: error.message, isLoggedOut: error.isLoggedOut});
    if (this.probe !== null || this.timers.isHidden()) return;
    // Jitter keeps all open pages from asking at the same moment once the API server is back.
    this.probe = this.timers.set(() => this.ask(), this.wait * 1000 * (0.75 + this.timers.random() / 2));
    this.wait = Math.min(LONGEST_WAIT, this.wait * 2);
  }

  /** Asks a single question while the API server is away, in turn, because one of them may take long to answer. */
  private ask(): void {
    this.probe = null;
    const next = this.active.filter(({running}) => !running).sort((one, other) => one.askedAt - other.askedAt)[0];
    if (next) void this.turn(next);
  }
}

export const poller = new Poller();
if (typeof document !== "undefined") document.addEventListener("visibilitychange", () => poller.seen());

/** Seconds between updates of ages. */
const AGING = 5;
/** The seconds since a time of this machine's clock; keeps counting without answers. */
function useAge(at: number | null): number {
  const [, tick] = useState(0);
  useEffect(() => {
    if (at === null) return undefined;
    const timer = setInterval(() => { if (!document.hidden) tick((turn) => turn + 1); }, AGING * 1000);
    return () => clearInterval(timer);
  }, [at === null]);
  return at === null ? 0 : Math.max(0, (Date.now() - at) / 1000);
}

/** Why a part of the page is outdated. While the API server is away, the banner says so for parts that still show an answer. */
function troubleOf({error, answer, at}: Question): string | null {
  if (!error || (poller.isAway && answer !== null)) return null;
  return at === null ? `Could not be loaded: ${error.message}` : `Not updated since ${moment(at / 1000)}: ${error.message}`;
}

function useQuestion<Answer>(key: string | null, ask: Ask, seconds: number): {answer: Answer | null; trouble: string | null; at: number | null} {
  const [, redraw] = useState(0);
  // Another part of the page may already have an answer to this question for the first render.
  const question = useMemo(() => (key === null ? null : poller.question(key, ask)), [key]);
  useEffect(() => (question ? poller.subscribe(question, seconds, () => redraw((turn) => turn + 1)) : undefined), [question, seconds]);
  return {answer: (question?.answer ?? null) as Answer | null, trouble: question ? troubleOf(question) : null, at: question?.at ?? null};
}

/** The latest answer to a question, the trouble with it, and the current time by the server's clock.
 *
 * When the question changes, the answer is null until the new one comes. A path of null asks nothing.
 *
 * @param live: parameters that change with time, such as "a day ago"; `liveKey` identifies what else they depend on
 */
export function useAnswer<Answer>(path: string | null, parameters: Parameters = {}, seconds = 3, live?: () => Parameters, liveKey = ""): [Answer | null, string | null, number] {
  const key = path === null ? null : `${path} ${JSON.stringify(parameters)} ${liveKey}`;
  const ask: Ask = (signal) => get<Answer>(path ?? "", {...parameters, ...live?.()}, signal);
  const {answer, trouble, at} = useQuestion<Answer & {now?: number}>(key, ask, seconds);
  const age = useAge(answer?.now === undefined ? null : at);
  return [answer, trouble, answer?.now === undefined ? Date.now() / 1000 : answer.now + age];
}

/** The answer or, while the next one is loading, the previous one, so that the layout does not jump. */
export function useLast<Answer>(answer: Answer | null): Answer | null {
  const last = useRef<Answer | null>(null);
  if (answer !== null) last.current = answer;
  return answer ?? last.current;
}

interface Kept {packing: Packing; cursor: number}
const packingKey = (window: Window) => `packing ${JSON.stringify(window)}`;
const askPacking = (window: Window): Ask => async (signal, before) => {
  const kept = before as Kept | null;
  const found = await get<PackingChart>("packing", {...asked(window, Date.now() / 1000), cursor: kept?.cursor}, signal);
  return {packing: merged(kept?.packing ?? null, found, window), cursor: found.cursor};
};
/** Requests the packing data before the page that draws it is mounted. */
export const startPacking = (window: Window): void => poller.ahead(poller.question(packingKey(window), askPacking(window)));

/** What ran where in a window: loaded once, then only changes. The object stays the same until something changes. */
export function usePacking(window: Window): [Packing | null, string | null, number] {
  const {answer, trouble, at} = useQuestion<Kept>(packingKey(window), askPacking(window), 3);
  const age = useAge(at);
  return [answer?.packing ?? null, trouble, answer ? answer.cursor + age : Date.now() / 1000];
}

export function useConnection(): Connection {
  const [, redraw] = useState(0);
  useEffect(() => poller.watch(() => redraw((turn) => turn + 1)), []);
  return poller.connection;
}
