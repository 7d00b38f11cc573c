import {beforeAll, expect, test, vi} from "vitest";
import {middle, ago, date, moment, sequelText, duration, exact, inUse, iso, jobsText, machineState, outlookLines, sentence, spoken, startText, tickLabel, took, usd, utcDay} from "../src/format";
import type {RunOutlook} from "../src/api_types";

beforeAll(() => {
  vi.stubGlobal("localStorage", {getItem: () => '"Asia/Kathmandu"'});
  vi.setSystemTime(Date.UTC(2026, 10, 30, 12));
  return () => { vi.useRealTimers(); };
});

test("times in reasons are read in the zone of the page", () => {
  const text = "waits: attempt 1 of 5 has found no room (no match); the next is at 2026-11-23 12:00:30 UTC, or when it is woken";
  expect(spoken(text)).toMatch(/the next is at .*Nov 23.* 17:45, or when it is woken$/);
  expect(spoken(text)).not.toContain("UTC");
  expect(spoken("no time at all")).toBe("no time at all");
  expect(spoken(null)).toBeNull();
});

test("of several days each label has its day", () => {
  const days = Array.from({length: 7}, (_, day) => Date.UTC(2026, 10, 17 + day, 18, 15) / 1000); // midnight there
  const labels = days.map((at) => tickLabel(at, 7 * 86400));
  expect(new Set(labels).size).toBe(7);
  expect(labels[0]).toMatch(/Nov 18.*00:00/);
  expect(tickLabel(days[0] + 5, 900)).toBe("00:00:05");
});

test("batch jobs are apart from the cpus that are up", () => {
  expect(inUse({cpus_used: 200, cpus_up: 256, cpus_batch: 1654})).toBe("of 256 up, 78 %; 1,654 more in batch jobs");
  expect(inUse({cpus_used: 1, cpus_up: 4, cpus_batch: 0})).toBe("of 4 up, 25 %");
  expect(inUse({cpus_used: 0, cpus_up: 0, cpus_batch: 0})).toBeNull();
});

test("a machine that does not answer is not up", () => {
  const [word, since] = machineState({state: "up", unreachable_since: Date.UTC(2026, 10, 23, 12) / 1000});
  expect(word).toBe("unreachable");
  expect(since).toMatch(/^since .*Nov 23.* 17:45/);
  expect(machineState({state: "up", unreachable_since: null})).toEqual(["up", null]);
  expect(machineState({state: "draining"})).toEqual(["draining", null]);
});

test("a run of which jobs have not ended has taken until now", () => {
  expect(took({live: 0, began_at: 100, ended_at: 160}, 5000)).toBe(60);
  expect(took({live: 224, began_at: 100, ended_at: 115}, 3700)).toBe(3600);
  expect(took({live: 1, began_at: 100, ended_at: null}, 130)).toBe(30);
});

test("what is unknown is never 0", () => {
  expect([exact(0), exact(0.0238896), exact(0.00004), exact(20400.5)]).toEqual(["0", "0.024", "0.00004", "20,400.5"]);
  expect([usd(null), usd(0), usd(0.004), usd(0.00003), usd(1234.5)]).toEqual(["–", "$0.00", "$0.004", "$0.00003", "$1,234.50"]);
  expect([duration(null), duration(59.6), duration(3600), duration(90000)]).toEqual(["–", "1 min", "1 h", "25 h"]);
  expect([duration(9.94), duration(59.4), duration(360.4), duration(599.7)]).toEqual(["9.9 s", "59 s", "6 min", "10 min"]);
});

test("a day of another year has its year", () => {
  const [now, year] = [Date.now() / 1000, new Date().getUTCFullYear()];
  expect(utcDay(now)).not.toContain(String(year));
  expect(utcDay(Date.UTC(year - 1, 10, 1) / 1000)).toMatch(new RegExp(`Nov 1.*${year - 1}`));
});

test("times for programs", () => {
  expect(iso(1800000000)).toBe("2027-01-15T08:00:00+00:00");
  expect(iso(null)).toBe("");
});

test("a time has its date unless that is today where the user is", () => {
  const midnight = Date.UTC(2026, 10, 30, 18, 15) / 1000, now = midnight - 3600; // midnight in Kathmandu
  expect([date(midnight - 60, now), date(now - 82_000, now), moment(midnight - 60, now)]).toEqual(["23:59", "00:13", "23:59:00"]);
  expect(date(midnight + 60, now)).toMatch(/Dec 1.* 00:01$/);
  expect(date(now - 84_000, now)).toMatch(/Nov 29.* 23:40$/);
  expect(startText({since: now + 60, at: now + 600, until: midnight + 7560}, now)).toMatch(/^about 23:10; between 23:01 and .*Dec 1.* 02:06$/);
  expect(sequelText({state: "succeeded", try_number: 2, at: midnight - 60}, midnight + 60)).toMatch(/^try 2 succeeded .*Nov 30.* 23:59$/);
  expect(spoken("again at 2026-11-30 11:00:00 UTC")).toBe("again at 16:45");
});

test("when a job starts: a time of day, a date where that is another day", () => {
  const now = Date.UTC(2026, 10, 23, 12) / 1000;
  expect(startText({since: now + 600, at: now + 900, until: now + 1800}, now)).toBe("about 18:00; between 17:55 and 18:15");
  expect(startText({since: now + 600, at: now + 610, until: now + 620}, now)).toBe("at about 17:55");
  expect(startText({since: now - 600, at: now + 900, until: now + 1800}, now)).toBe("about 18:00; by 18:15");
  expect(startText({since: now - 600, at: now, until: now + 1800}, now)).toBe("by 18:15");
  expect(startText({since: null, at: null, until: null}, now)).toBe("held up");
  expect(startText({since: now, at: now, until: now + 86400}, now)).toMatch(/^by .*Nov 24.* 17:45$/);
  expect(startText({since: now + 1, at: now + 600, until: now + 86400}, now)).toMatch(/^about 17:55; between 17:45 and .*Nov 24.* 17:45$/);
});

test("what a run goes by, and when it ends", () => {
  const nothing: RunOutlook = {hurry: null, finish_by: null, ends_at: null, trouble: null, asked_hurry: null, asked_finish_by: null, asked_by: null, asked_at: null, is_planned: true};
  const at = Date.UTC(2026, 10, 27, 0, 15) / 1000;
  expect(outlookLines(nothing)).toEqual(["It uses the hurry settings of its sites"]);
  expect(outlookLines({...nothing, is_planned: false})[0]).toMatch(/^This run is not in Lading's plan: only sites/);
  const [asked, end, ...more] = outlookLines({...nothing, hurry: 10, asked_hurry: 10, asked_finish_by: "06:00", asked_by: "alice", asked_at: at, finish_by: at, ends_at: at - 600});
  expect(asked).toMatch(/^alice requested hurry 10 \(fast\), finish_by 06:00, .*Nov 27.* 06:00$/);
  expect(end).toMatch(/^It must finish by .*Nov 27.* 06:00, as planned$/);
  expect(more).toEqual([]);
  const [byDag, trouble] = outlookLines({...nothing, hurry: 2.5, finish_by: at, ends_at: at + 2400, trouble: "cannot end by 2026-11-27 00:15:00 UTC: about 2026-11-27 00:55:00 UTC at the earliest"});
  expect(byDag).toBe("hurry 2.5, as its Dag says");
  expect(trouble).toMatch(/^It cannot end by .*Nov 27.* 06:00: about .*Nov 27.* 06:40 at the earliest$/);
});

test("a reason does not say again what its column and its line say", () => {
  expect(sentence("waits: site 'hpc': 8 of 8 allocations are busy", "hpc")).toBe("8 of 8 allocations are busy");
  expect(sentence("waits: site 'hpc': 8 of 8 allocations are busy", null)).toBe("site 'hpc': 8 of 8 allocations are busy");
  expect(sentence("attempt 1 of 9 has found no room", "hpc")).toBe("attempt 1 of 9 has found no room");
});

test("one job is no jobs, and what was just now is no time ago", () => {
  expect([jobsText(1), jobsText(5000), ago(-3), ago(61)]).toEqual(["1 job", "5,000 jobs", "now", "1 min 1 s ago"]);
});

test("a long name keeps both of its ends", () => {
  expect(middle("short")).toBe("short");
  const long = `genomes_of_${"x".repeat(80)}_sample_700`;
  expect(middle(long)).toMatch(/^genomes_of_x+…x+_sample_700$/);
  expect(middle(long).length).toBeLessThanOrEqual(56);
});
