import {expect, it, vi} from "vitest";
import {iso, utcDay} from "../src/format";
import {billSpan} from "../src/pages/bill_span";

it("shows days of UTC in every time zone", () => {
  const began = Date.UTC(2026, 10, 26) / 1000;
  vi.stubGlobal("localStorage", {getItem: () => '"America/Los_Angeles"'});
  expect(utcDay(began)).toMatch(/26/);
  for (const seconds of [1, 43200, 86399]) {
    expect(billSpan(0, began + seconds).since).toBe(began);
    expect(iso(billSpan(6, began + seconds).since)).toBe("2026-11-20T00:00:00.000Z");
  }
});
