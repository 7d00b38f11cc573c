// Answers that are asked for again and again while the page can be seen. Each question has its own trouble and its own
// pauses: where one has no answer the others go on. Only where none has any is the API server away: then one of them is
// asked, less and less often, and all when it answers.
import {useEffect, useMemo, useRef, useState} from "react";
import {AnswerError, get, type Parameters} from "./api";
import {asked, merged, type Packing, type Window} from "./chart/packing";
import {clock} from "./format";
import type {PackingChart} from "./api_types";

/** After so many seconds without an answer the page says so; after so many the request is given up and repeated. */
const PATIENCE = 20, GIVEN_UP = 120;
/** The first pause after a failure, seconds, and the longest; what is refused will be refused again. */
const FIRST_WAIT = 2, LONGEST_WAIT = 60, LONGEST_REFUSED = 300;
/** So long an answer is kept that nothing on the page shows, seconds: whoever goes back sees it at once. */
const KEPT = 60;

export interface Connection {
  /** Why nothing is up to date; null: something is. */
  trouble: string | null;
  isLoggedOut: boolean;
  /** When the last answer came, ms; null: none ever. */
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
  /** When the answer came, ms; null: none has. */
  at: number | null = null;
  /** Why the last time it was asked gave no answer; null: it gave one, or has yet to. */
  error: AnswerError | null = null;
  /** How often in turn it has failed. */
  failures = 0;
  /** When it was asked last, and when it was last known what that came to, ms. */
  askedAt = -Infinity;
  settledAt = -Infinity;
  readonly listeners = new Map<() => void, number>();
  timer: unknown = null;
  running: AbortController | null = null;
  /** Whether it was asked before anything showed its answer. */
  wasAhead = false;
  constructor(readonly key: string, readonly ask: Ask) {}
  get seconds(): number { return Math.min(...this.listeners.values()); }
  /** Whether no answer comes; to be refused is an answer. */
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

  /** Asks a question every so many seconds until the function that is returned is called. */
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

  /** Drops what nothing shows, after a while. */
  private forget(question: Question): void {
    this.timers.set(() => { if (!question.listeners.size && this.questions.get(question.key) === question) this.questions.delete(question.key); }, KEPT * 1000);
  }

  /** Asks a question that the page is about to show the answer of. */
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

  /** Asks one question anew at once, as after something was requested. */
  again(start: string): void {
    for (const question of this.active) if (question.key.startsWith(start) && !question.running) void this.turn(question);
  }

  /** Goes on where the page can be seen again; rests where it is hidden. */
  seen(): void {
    if (this.timers.isHidden()) {
      for (const question of this.questions.values()) this.halt(question);
      this.clearProbe();
    } else this.all();
  }

  /** Asks at once what has no answer: a person may know more than a clock. */
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

  /** Nothing is shown any more: what is shown next may have an answer. */
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
    /** Whether what came is still waited for. */
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

  /** Whether anything answers, now that this question does not: one after the other is asked until one does. */
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
    // Not all pages of a house ask at the same moment when the API server is there again.
    this.probe = this.timers.set(() => this.ask(), this.wait * 1000 * (0.75 + this.timers.random() / 2));
    this.wait = Math.min(LONGEST_WAIT, this.wait * 2);
  }

  /** Asks one question while the API server is away, each in its turn: one of them may have no answer for long. */
  private ask(): void {
    this.probe = null;
    const next = this.active.filter(({running}) => !running).sort((one, other) => one.askedAt - other.askedAt)[0];
    if (next) void this.turn(next);
  }
}

export const poller = new Poller();
if (typeof document !== "undefined") document.addEventListener("visibilitychange", () => poller.seen());

/** How much later it is than at a time of this machine's clock, seconds; it goes on where no answer comes. */
const AGING = 5;
function useAge(at: number | null): number {
  const [, tick] = useState(0);
  useEffect(() => {
    if (at === null) return undefined;
    const timer = setInterval(() => { if (!document.hidden) tick((turn) => turn + 1); }, AGING * 1000);
    return () => clearInterval(timer);
  }, [at === null]);
  return at === null ? 0 : Math.max(0, (Date.now() - at) / 1000);
}

/** Why a part of the page is not up to date; where all of it is not, the banner says so for what is still shown. */
function troubleOf({error, answer, at}: Question): string | null {
  if (!error || (poller.isAway && answer !== null)) return null;
  return at === null ? `Could not be loaded: ${error.message}` : `Not updated since ${clock(at / 1000)}: ${error.message}`;
}

function useQuestion<Answer>(key: string | null, ask: Ask, seconds: number): {answer: Answer | null; trouble: string | null; at: number | null} {
  const [, redraw] = useState(0);
  // The first render of a key may have an answer that another part of the page has asked for.
  const question = useMemo(() => (key === null ? null : poller.question(key, ask)), [key]);
  useEffect(() => (question ? poller.subscribe(question, seconds, () => redraw((turn) => turn + 1)) : undefined), [question, seconds]);
  return {answer: (question?.answer ?? null) as Answer | null, trouble: question ? troubleOf(question) : null, at: question?.at ?? null};
}

/** The latest answer to one question, why it has none, and what time it is by the server's clock.
 *
 * What answers another question is no answer: null. A path of null asks nothing.
 *
 * @param live: parameters that go with the time, such as "a day ago"; `liveKey` is what they depend on
 */
export function useAnswer<Answer>(path: string | null, parameters: Parameters = {}, seconds = 3, live?: () => Parameters, liveKey = ""): [Answer | null, string | null, number] {
  const key = path === null ? null : `${path} ${JSON.stringify(parameters)} ${liveKey}`;
  const ask: Ask = (signal) => get<Answer>(path ?? "", {...parameters, ...live?.()}, signal);
  const {answer, trouble, at} = useQuestion<Answer & {now?: number}>(key, ask, seconds);
  const age = useAge(answer?.now === undefined ? null : at);
  return [answer, trouble, answer?.now === undefined ? Date.now() / 1000 : answer.now + age];
}

/** The answer, or while that of another question is loaded the last one: the page must not jump. */
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
/** Asks what ran where before the page is there that draws it. */
export const startPacking = (window: Window): void => poller.ahead(poller.question(packingKey(window), askPacking(window)));

/** What ran where in a window: asked for once, then only what is new. It is the same object as long as nothing came. */
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
