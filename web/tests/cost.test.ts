import {expect, it, vi} from "vitest";
import {about, iso, utcDay} from "../src/format";
import {billSpan} from "../src/pages/bill_span";
import {rankedBudgets} from "../src/pages/cost";

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

it("rounds an estimate, and says that it is one", () => {
  expect(about(1234.56, 9)).toBe("≈ $1,230");
  expect(about(0.0456, 9)).toBe("≈ $0.0456");
  expect(about(null, 1234.56)).toBe("≈ 1,230 cpu-h");
});

it("shows the budgets of which most is spent first", () => {
  const budget = (name: string, spent: number, most: number) => ({name, spent, most}) as never;
  expect(rankedBudgets([budget("all", 3120, 10_000), budget("genomics", 1310, 1500), budget("lab", 200.4, 200)]).map(({name}) => name)).toEqual(["lab", "genomics", "all"]);
});
