import {describe, expect, it} from "vitest";
import {sinceOf, withinOf} from "../src/pages/jobs";

function chosen(search: string) {
  const found = new URLSearchParams(search);
  return {get: (name: string) => found.get(name), all: (name: string) => found.getAll(name)};
}

describe("how far back", () => {
  it("counts of failures when they ended, as the tile that leads there", () => {
    expect(sinceOf(chosen("within=3600&state=failed"), 10_000)).toEqual({ended_since: 6400});
    expect(sinceOf(chosen("within=3600&state=failed&state=running"), 10_000)).toEqual({queued_since: 6400});
    expect(sinceOf(chosen("within=3600"), 10_000)).toEqual({queued_since: 6400});
  });
  it("is all the time where the address has no number", () => {
    for (const text of ["", "within=", "within=abc", "within=-5", "within=1e99"]) {
      expect(withinOf(chosen(text))).toBeNull();
      expect(sinceOf(chosen(text), 10_000)).toEqual({});
    }
  });
});
