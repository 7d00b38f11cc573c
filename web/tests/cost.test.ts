import {expect, it, vi} from "vitest";
import {about, amountOf, difference, iso, usd, utcDay} from "../src/format";
import {billSpan, pastMonths} from "../src/pages/bill_span";
import {adviceAt, breakdownPath, expectedText, rankedBudgets, spans} from "../src/pages/cost";

it("shows days of UTC in every time zone", () => {
  const began = Date.UTC(2026, 10, 26) / 1000;
  vi.stubGlobal("localStorage", {getItem: () => '"America/Los_Angeles"'});
  expect(utcDay(began)).toMatch(/26/);
  for (const seconds of [1, 43200, 86399]) {
    expect(billSpan(0, began + seconds).since).toBe(began);
    expect(iso(billSpan(6, began + seconds).since)).toBe("2026-11-20T00:00:00+00:00");
  }
});

it("begins this month on its first day in UTC", () => {
  for (const [year, month, day] of [[2026, 10, 1], [2026, 10, 30], [2027, 0, 31]]) {
    const now = Date.UTC(year, month, day, 23, 59) / 1000;
    expect(billSpan("month", now)).toEqual({since: Date.UTC(year, month, 1) / 1000, until: now});
  }
});

it("offers each of the last twelve months in UTC, from its first day to the next one's", () => {
  const now = Date.UTC(2027, 1, 28, 23, 59) / 1000, months = pastMonths(now, 3);
  expect(months.map(([range]) => range)).toEqual(["2027-01", "2026-12", "2026-11"]);
  for (const [range, begin] of months) expect(billSpan(range, now).since).toBe(begin);
  expect(billSpan("2026-12", now)).toEqual({since: Date.UTC(2026, 11, 1) / 1000, until: Date.UTC(2027, 0, 1) / 1000});
  const offered = new Map(spans(now));
  expect(offered.get("2027-01")).toMatch(/^last month, .*2027/);
  expect(offered.has("2026-02")).toBe(true);
  expect(offered.has("2027-02"), "which is this month").toBe(false);
});

it("knows this week, last week and the two last weeks, from Monday to Sunday in UTC", () => {
  const at = (day: number) => Date.UTC(2026, 10, day) / 1000;
  for (const now of [at(30), at(30) + 86_399]) {
    expect(billSpan("week", now)).toEqual({since: at(30), until: now});
    expect(billSpan("lastweek", now)).toEqual({since: at(23), until: at(30)});
    expect(billSpan("weeks", now)).toEqual({since: at(16), until: at(30)});
  }
  expect(billSpan("lastweek", at(29) + 3600), "on a Sunday").toEqual({since: at(16), until: at(23)});
});

it("finds the bill that has the sum of a budget", () => {
  expect(breakdownPath({who: "team genomics", per: "month"})).toBe("/plugin/lading?view=cost&days=month&split=team");
  expect(breakdownPath({who: "Dags etl_*", per: "week"})).toBe("/plugin/lading?view=cost&days=week&split=dag");
});

it("says what the cost expected of the month assumes", () => {
  const now = Date.UTC(2026, 10, 28) / 1000, expected = {until: Date.UTC(2026, 11, 1) / 1000, usd: 1, cpu_hours: 1, hours: 14, usd_per_hour: 16.25, cpus: 40, since: Date.UTC(2026, 10, 23) / 1000, usd_per_day: 25.26, cpu_hours_per_day: 80};
  const spent = {usd: 100, cpu_hours: 1000};
  expect(expectedText(expected, spent, now)).toMatch(/^\$100\.00 so far; \$227\.50 for running and waiting jobs; \$61\.05 for later jobs, at \$25\.26 a day, the mean since .*23$/);
  expect(expectedText({...expected, hours: 0}, spent, now)).toMatch(/^\$100\.00 so far; \$75\.78 for later jobs, at \$25\.26 a day, the mean since .*23$/);
  expect(expectedText({...expected, hours: 80}, spent, now), "until the end of the month only").toBe("$100.00 so far; $1,170.00 for running and waiting jobs");
  expect(expectedText({...expected, usd: null, usd_per_day: null, usd_per_hour: null}, {usd: null, cpu_hours: 1000}, now)).toMatch(/^1,000 cpu-h so far; 560 cpu-h for running and waiting jobs; 193 cpu-h for later jobs, at 80 cpu-h a day/);
});

it("says at each site its part of the advice for all sites", () => {
  const advice = {cost: 100, changes: [{site: "hpc", now: 1800, then: 0, saved: 30}], saved: 30, is_halved: false, rest: [{kind: "busy" as const, sites: ["hpc"], cost: 50}, {kind: "fixed" as const, sites: ["lab", "local"], cost: 20}]};
  expect(adviceAt(advice, "hpc", usd)).toMatch(/^Lower idle_seconds from 1,800 to 0: saves \$30\.00\. The rest is for idle cpus of busy machines: hurry = "cheap" uses fewer machines/);
  expect(adviceAt(advice, "lab", usd)).toBe("These are machines that Lading does not release: they cost the same without jobs, so send more jobs there.");
  expect(adviceAt(advice, "tiny", usd)).toBe("Too little to matter.");
  expect(adviceAt({...advice, is_halved: true, rest: []}, "lab", usd)).toBe("Not needed to halve the cost of all sites.");
});

it("compares two amounts, and writes 1 in the singular", () => {
  expect(difference(3, 7, usd)).toBe("+$4.00 (+133 %)");
  expect(difference(7, 3, usd)).toBe("−$4.00 (−57 %)");
  expect(difference(1000, 1001, usd)).toBe("+$1.00 (< 1 %)");
  expect(difference(0, 3, usd)).toBe("+$3.00");
  expect(difference(3, 3, usd)).toBe("no difference");
  expect([1, 2, 0.5].map((cpus) => amountOf(cpus, "cpu"))).toEqual(["1 cpu", "2 cpus", "0.5 cpus"]);
});

it("rounds an estimate, and says that it is one", () => {
  expect(about(1234.56, 9)).toBe("≈ $1,230");
  expect(about(0.0456, 9)).toBe("≈ $0.0456");
  expect(about(null, 1234.56)).toBe("≈ 1,230 cpu-h");
});

it("shows the budgets of which most is spent first", () => {
  const budget = (name: string, spent: number, most: number) => ({name, spent, most}) as never;
  expect(rankedBudgets([budget("all", 3120, 10_000), budget("genomics", 1310, 1500), budget("lab", 200.4, 200)]).map(({name}) => name)).toEqual(["lab", "genomics", "all"]);
});
