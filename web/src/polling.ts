// Answers that are asked for again and again while the page can be seen. One poller for all of the page: where the API
// server is away it is asked one question, less and less often, and when it answers all questions at once.
import {useEffect, useMemo, useState} from "react";
import {AwayError, get, type Parameters} from "./api";
import {asked, merged, type Packing, type Window} from "./chart/packing";
import type {PackingChart} from "./api_types";

/** After so many seconds without an answer the page says so; it is still waited for. */
const PATIENCE = 20;
const FIRST_WAIT = 2, LONGEST_WAIT = 60;
/** What is refused, as what a user may not see, is asked less and less often, and every so many seconds in the end. */
const LONGEST_REFUSED = 300;
/** So long an answer is kept that nothing on the page shows, seconds: whoever goes back sees it at once. */
const KEPT = 60;

export interface Connection {
  /** Why nothing is up to date; null: it is. */
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
  /** Why this question has no answer, where others have. */
  trouble: string | null = null;
  /** How often in turn it was refused: what asks the same again is refused again. */
  refusals = 0;
  readonly listeners = new Map<() => void, number>();
  timer: unknown = null;
  running: AbortController | null = null;
  /** Whether it was asked before anything showed its answer. */
  wasAhead = false;
  constructor(readonly key: string, readonly ask: Ask) {}
  get seconds(): number { return Math.min(...this.listeners.values()); }
  tell(): void { for (const listener of [...this.listeners.keys()]) listener(); }
}

export class Poller {
  connection: Connection = {trouble: null, isLoggedOut: false, lastAt: null};
  private readonly questions = new Map<string, Question>();
  private readonly watchers = new Set<() => void>();
  private wait = FIRST_WAIT;
  private probe: unknown = null;
  private isAway = false;

  constructor(private readonly timers: Timers = BROWSER) {}

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
    if (question.wasAhead && fresh > 0 && !this.isAway) question.timer ??= this.timers.set(() => void this.turn(question), fresh);
    else if (!question.running && (question.listeners.size === 1 || question.answer === null) && !this.isAway) void this.turn(question);
    else if (this.isAway && this.probe === null && !question.running) void this.turn(question);
    question.wasAhead = false;
    return () => {
      question.listeners.delete(listener);
      if (question.listeners.size) return;
      this.stop(question);
      this.forget(question);
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

  /** Asks one question anew at once, as after something was requested. */
  again(start: string): void {
    for (const question of this.questions.values()) {
      if (question.key.startsWith(start) && question.listeners.size && !question.running) void this.turn(question);
    }
  }

  /** Goes on where the page can be seen again; rests where it is hidden. */
  seen(): void {
    if (this.timers.isHidden()) {
      for (const question of this.questions.values()) this.halt(question);
      this.clearProbe();
    } else if (this.isAway) this.try();
    else this.all();
  }

  private all(but?: Question): void {
    for (const question of this.questions.values()) if (question !== but && question.listeners.size && !question.running) void this.turn(question);
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

  private clearProbe(): void {
    if (this.probe !== null) this.timers.clear(this.probe as never);
    this.probe = null;
  }

  private say(connection: Partial<Connection>): void {
    this.connection = {...this.connection, ...connection};
    for (const watcher of [...this.watchers]) watcher();
  }

  private async turn(question: Question): Promise<void> {
    this.halt(question);
    const abort = new AbortController();
    question.running = abort;
    const late = this.timers.set(() => {
      if (!abort.signal.aborted) this.say({trouble: `no answer for ${PATIENCE} s, it is still waited for`});
    }, PATIENCE * 1000);
    try {
      const answer = await question.ask(abort.signal, question.answer);
      if (abort.signal.aborted) return;
      question.running = null;
      Object.assign(question, {answer, at: this.timers.now(), trouble: null, refusals: 0});
      this.answered(question);
    } catch (error) {
      if (abort.signal.aborted) return;
      question.running = null;
      if (error instanceof AwayError) this.lost(error);
      else {
        question.trouble = error instanceof Error ? error.message : String(error);
        question.refusals += 1;
        this.answered(question);
      }
    } finally {
      this.timers.clear(late as never);
    }
    question.tell();
    if (!this.isAway && !this.timers.isHidden() && question.listeners.size && question.timer === null) {
      question.timer = this.timers.set(() => void this.turn(question), this.pause(question) * 1000);
    }
  }

  private pause({seconds, refusals}: Question): number {
    return refusals ? Math.max(seconds, Math.min(LONGEST_REFUSED, seconds * 2 ** refusals)) : seconds;
  }

  private answered(by: Question): void {
    const wasAway = this.isAway;
    const hadTrouble = this.connection.trouble !== null;
    this.isAway = false;
    this.wait = FIRST_WAIT;
    this.connection.lastAt = this.timers.now();
    if (hadTrouble) this.say({trouble: null, isLoggedOut: false});
    if (wasAway) { this.clearProbe(); this.all(by); }
  }

  private lost(error: AwayError): void {
    this.isAway = true;
    for (const question of this.questions.values()) this.halt(question);
    this.say({trouble: error.message, isLoggedOut: error.isLoggedOut});
    if (this.probe !== null || this.timers.isHidden()) return;
    // Not all pages of a house ask at the same moment when the API server is there again.
    this.probe = this.timers.set(() => this.try(), this.wait * 1000 * (0.75 + this.timers.random() / 2));
    this.wait = Math.min(LONGEST_WAIT, this.wait * 2);
  }

  /** Asks one question now where the API server was away: a person may know more than a clock. */
  try(): void {
    this.clearProbe();
    const first = [...this.questions.values()].find((question) => question.listeners.size && !question.running);
    if (first) void this.turn(first);
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

function useQuestion<Answer>(key: string | null, ask: Ask, seconds: number): {answer: Answer | null; trouble: string | null; at: number | null} {
  const [, redraw] = useState(0);
  // The first render of a key may have an answer that another part of the page has asked for.
  const question = useMemo(() => (key === null ? null : poller.question(key, ask)), [key]);
  useEffect(() => (question ? poller.subscribe(question, seconds, () => redraw((turn) => turn + 1)) : undefined), [question, seconds]);
  return {answer: (question?.answer ?? null) as Answer | null, trouble: question?.trouble ?? null, at: question?.at ?? null};
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
