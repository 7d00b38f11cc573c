import {expect, it, vi} from "vitest";
import {about, iso, utcDay} from "../src/format";
import {billSpan} from "../src/pages/bill_span";
import {breakdownPath, expectedText, rankedBudgets} from "../src/pages/cost";

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
  expect(expectedText(expected, now)).toMatch(/^with \$16\.25 per hour for the 14 h that running and waiting jobs last, then \$25\.26 a day, the mean since .*23/);
  expect(expectedText({...expected, hours: 0}, now)).toMatch(/^with \$25\.26 a day, the mean since .*23.*, from now on$/);
  expect(expectedText({...expected, hours: 80}, now)).toBe("with $16.25 per hour, as now: running and waiting jobs last 3 days");
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
