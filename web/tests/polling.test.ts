import {beforeEach, expect, test} from "vitest";
import {AnswerError} from "../src/api";
import {Poller} from "../src/polling";

// A clock that goes on only when a test says so.
class Clock {
  time = 0;
  isHidden = false;
  private last = 0;
  private timers = new Map<number, {at: number; call: () => void}>();
  asTimers = {
    now: () => this.time,
    set: (call: () => void, wait: number) => { this.timers.set(++this.last, {at: this.time + wait, call}); return this.last; },
    clear: (timer: never) => { this.timers.delete(timer as unknown as number); },
    random: () => 0.5,
    isHidden: () => this.isHidden,
  };
  async pass(seconds: number) {
    for (const end = this.time + seconds * 1000; ;) {
      const next = [...this.timers].filter(([, {at}]) => at <= end).sort(([one, a], [other, b]) => a.at - b.at || one - other)[0];
      if (!next) { this.time = end; break; }
      this.timers.delete(next[0]);
      this.time = next[1].at;
      next[1].call();
      await settled();
    }
    await settled();
  }
}
const settled = () => new Promise((resolve) => setTimeout(resolve, 0));

let clock: Clock, poller: Poller, asked: string[], answer: (key: string) => unknown;
beforeEach(() => {
  clock = new Clock();
  poller = new Poller(clock.asTimers);
  asked = [];
  answer = (key) => `${key} at ${clock.time}`;
});
function look(key: string, seconds = 3, listener = () => undefined) {
  const question = poller.question(key, async (signal) => {
    asked.push(key);
    const found = await answer(key);
    if (signal.aborted) throw new Error("aborted");
    return found;
  });
  return {question, stop: poller.subscribe(question, seconds, listener)};
}

test("a question is asked at once, and again after each answer", async () => {
  const {question} = look("a");
  await clock.pass(0);
  expect(question.answer).toBe("a at 0");
  await clock.pass(9);
  expect(asked).toHaveLength(4);
});

test("two parts of the page that ask the same are answered once, as often as one of them wants", async () => {
  look("a", 10);
  look("a", 3);
  await clock.pass(0);
  expect(asked).toEqual(["a"]);
  await clock.pass(6);
  expect(asked).toHaveLength(3);
});

test("what nothing shows any more is not asked, and is there again for a while", async () => {
  const {question, stop} = look("a");
  await clock.pass(0);
  stop();
  await clock.pass(30);
  expect(asked).toHaveLength(1);
  const again = look("a");
  expect(again.question).toBe(question);
  expect(again.question.answer).toBe("a at 0");
  await clock.pass(0);
  expect(question.answer).toBe("a at 30000");
  again.stop();
  await clock.pass(61);
  expect(look("a").question).not.toBe(question);
});

test("where nothing answers one question is asked, less and less often, and all of them when it does", async () => {
  const listeners = ["a", "b", "c"].map((key) => look(key));
  await clock.pass(0);
  asked.length = 0;
  answer = () => { throw new AnswerError("the API server does not answer"); };
  await clock.pass(10);
  expect(poller.connection).toMatchObject({trouble: "the API server does not answer", lastAt: 0});
  const before = asked.length;
  expect(before).toBeLessThanOrEqual(8); // three when it went, then after 2, 4, 8 … seconds
  await clock.pass(600);
  expect(asked.length - before).toBeLessThanOrEqual(14); // once a minute
  asked.length = 0;
  answer = (key) => key;
  await clock.pass(61);
  expect(poller.connection.trouble).toBeNull();
  expect(new Set(asked.slice(0, 3))).toEqual(new Set(["a", "b", "c"]));
  expect(listeners.map(({question}) => question.answer)).toEqual(["a", "b", "c"]);
});

test("what one question alone may not have leaves the others as they are", async () => {
  const {question} = look("a"), other = look("b");
  await clock.pass(0);
  answer = (key) => { if (key === "a") throw new AnswerError("you may not see this", {isRefused: true}); return key; };
  await clock.pass(4);
  expect(question.error?.message).toBe("you may not see this");
  expect(poller.connection.trouble).toBeNull();
  expect(other.question.answer).toBe("b");
});

test("who is logged out is told so", async () => {
  look("a");
  await clock.pass(0);
  answer = () => { throw new AnswerError("you are logged out", {isLoggedOut: true}); };
  await clock.pass(3);
  expect(poller.connection.isLoggedOut).toBe(true);
  answer = () => 1;
  await clock.pass(10);
  expect(poller.connection).toMatchObject({isLoggedOut: false, trouble: null});
});

test("an answer that takes long is waited for, and the page says so", async () => {
  let come: (value: unknown) => void = () => undefined;
  answer = () => new Promise((resolve) => { come = resolve; });
  const {question} = look("a");
  await clock.pass(30);
  expect(asked).toHaveLength(1);
  expect(poller.connection.trouble).toBe("no answer for 20 s");
  come("late");
  await clock.pass(0);
  expect(question.answer).toBe("late");
  expect(poller.connection.trouble).toBeNull();
});

test("nothing is asked while the page is hidden", async () => {
  look("a");
  look("b");
  await clock.pass(0);
  clock.isHidden = true;
  poller.seen();
  asked.length = 0;
  await clock.pass(600);
  expect(asked).toEqual([]);
  clock.isHidden = false;
  poller.seen();
  await clock.pass(0);
  expect(asked.sort()).toEqual(["a", "b"]);
});

test("an answer to a question that nothing shows any more is thrown away", async () => {
  let come: (value: unknown) => void = () => undefined;
  answer = () => new Promise((resolve) => { come = resolve; });
  const {question, stop} = look("a");
  await clock.pass(0);
  stop();
  come("late");
  await clock.pass(0);
  expect(question.answer).toBeNull();
});

test("what is refused is asked less and less often, and as before when it is answered", async () => {
  answer = (key) => { if (key === "no") throw new AnswerError("you may not see this", {isRefused: true}); return key; };
  const {question} = look("no");
  look("yes");
  await clock.pass(600);
  expect(question.error?.message).toBe("you may not see this");
  expect(asked.filter((key) => key === "no")).toHaveLength(7); // after 6, 12, 24, 48, 96 and 192 s
  expect(asked.filter((key) => key === "yes").length).toBeGreaterThan(150);
  answer = (key) => key;
  await clock.pass(300);
  asked = [];
  await clock.pass(30);
  expect(asked.filter((key) => key === "no")).toHaveLength(10);
  expect(question.error).toBeNull();
});

test("what is asked ahead is not asked again by what shows it", async () => {
  const ask = async () => { asked.push("a"); return answer("a"); };
  poller.ahead(poller.question("a", ask));
  await clock.pass(0);
  await clock.pass(1);
  const {question} = look("a");
  await clock.pass(1);
  expect(question.answer).toBe("a at 0");
  expect(asked).toEqual(["a"]);
  await clock.pass(1);
  expect(asked, "three seconds after the first").toHaveLength(2);
});

test("what is asked ahead and then shown by nothing is forgotten", async () => {
  const ask = async () => "first", question = poller.question("a", ask);
  poller.ahead(question);
  await clock.pass(61);
  expect(poller.question("a", ask)).not.toBe(question);
});

const fails = (name: string) => (key: string) => { if (key === name) throw new AnswerError("the API server answered 500"); return key; };

test("where one question fails the others go on as before, and the page is not away", async () => {
  answer = fails("b");
  const {question} = look("b", 15);
  look("a"); look("c", 60);
  await clock.pass(0);
  expect(question.error?.message).toBe("the API server answered 500");
  expect(poller.connection.trouble).toBeNull();
  await clock.pass(60);
  const times = (key: string) => asked.filter((each) => each === key).length;
  expect(times("b"), "at once, and after 4, 12, 28 and 60 s").toBe(5);
  expect(times("a")).toBeGreaterThanOrEqual(20);
  expect(times("a")).toBeLessThanOrEqual(27);
  expect(times("c")).toBeLessThanOrEqual(3);
  expect(poller.connection.trouble).toBeNull();
  answer = (key) => key;
  await clock.pass(60);
  expect(question.error).toBeNull();
});

test("a question that never answers says so, is given up and asked again, and holds up no other one", async () => {
  answer = (key) => (key === "b" ? new Promise(() => undefined) : key);
  const {question} = look("b"), other = look("a");
  await clock.pass(21);
  expect(question.error?.message).toBe("no answer for 20 s");
  expect(poller.connection.trouble).toBeNull();
  await clock.pass(120);
  expect(asked.filter((key) => key === "b")).toHaveLength(2);
  expect(other.question.at).toBeGreaterThan(135_000);
});

test("while nothing answers each question is asked in its turn: the first that has an answer ends it", async () => {
  look("a"); look("b");
  await clock.pass(0);
  answer = () => { throw new AnswerError("the API server does not answer"); };
  await clock.pass(30);
  expect(poller.connection.trouble).toBe("the API server does not answer");
  answer = fails("a");
  await clock.pass(120);
  expect(poller.connection.trouble).toBeNull();
});
