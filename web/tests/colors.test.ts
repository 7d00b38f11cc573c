import {describe, expect, test} from "vitest";
import {DARK, LIGHT, PHASE_SLANTS, SLANTS, STATES, contrast, deltaE} from "../src/chart/colors";

test("contrast and distance are those of the literature", () => {
  expect(contrast("#000000", "#ffffff")).toBeCloseTo(21, 1);
  expect(deltaE("#000000", "#ffffff")).toBeCloseTo(100, 0);
  expect(deltaE("#ff0000", "#ff0000")).toBe(0);
  expect(deltaE("#008000", "#a0522d")).toBeLessThan(25); // a green and a brown that look alike without green cones
});

describe.each([["light", LIGHT], ["dark", DARK]])("the %s page", (_, palette) => {
  test("states are at least 3:1 beside the page and the grey of machines", () => {
    for (const state of [...STATES, "hidden" as const]) for (const page of [...palette.page, palette.machine]) expect(contrast(palette[state], page), `${state} on ${page}`).toBeGreaterThanOrEqual(3);
  });
  test("phases and the parts of a bill are at least 3:1 beside the page", () => {
    for (const color of [...Object.values(palette.phases), ...Object.values(palette.shares)]) for (const page of palette.page) expect(contrast(color, page), `${color} on ${page}`).toBeGreaterThanOrEqual(3);
  });
  test("what runs differs from each way to wait by ΔE 40 without green cones, and waits are told apart by their lines", () => {
    const {runs, ...waits} = palette.phases;
    for (const [name, color] of Object.entries({...waits, failed: palette.failed})) expect(deltaE(runs, color), name).toBeGreaterThanOrEqual(40);
    expect(runs).toBe(palette.running);
    expect(palette.phases.boot, "one variable of the style has both").toBe(palette.shares.boot);
    expect(PHASE_SLANTS.runs).toBeNull();
    expect(new Set(Object.values(PHASE_SLANTS)).size).toBe(Object.keys(palette.phases).length);
  });
  test("any two states differ by ΔE 40 without green cones, and by their lines", () => {
    for (const one of STATES) for (const other of STATES) if (one < other) expect(deltaE(palette[one], palette[other]), `${one} and ${other}`).toBeGreaterThanOrEqual(40);
    expect(new Set(STATES.map((state) => SLANTS[state])).size).toBe(STATES.length);
    for (const state of STATES) expect(deltaE(palette[state], palette.hidden), state).toBeGreaterThanOrEqual(12);
  });
});
