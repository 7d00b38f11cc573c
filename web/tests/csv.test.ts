import {expect, test} from "vitest";
import {columnName, csv} from "../src/csv";

interface Row {a?: unknown; b?: unknown}
const columns = [{title: "A", cell: (row: Row) => row.a}, {title: "B", cell: () => "shown", text: (row: Row) => row.b}, {title: "Buttons", cell: () => "x", text: false as const}];

test("a table as CSV has its titles, and what is text instead of what is shown", () => {
  expect(csv(columns, [{a: 1, b: "two"}])).toBe("a,b\r\n1,two");
});
test("quotes are doubled, nothing is empty", () => {
  expect(csv(columns, [{a: 'say "hi"', b: null}])).toBe('a,b\r\n"say ""hi""",');
});
test("what a spreadsheet would take for a formula gets an apostrophe, a number does not", () => {
  expect(csv(columns, [{a: "=1+1", b: -5}, {a: "@x", b: "-5"}])).toBe("a,b\r\n'=1+1,-5\r\n'@x,'-5");
});
test("only what needs quotes has them", () => {
  expect(csv(columns, [{a: "one, two", b: "three\nfour"}])).toBe('a,b\r\n"one, two","three\nfour"');
});
test.each([["Took, s", "took_seconds"], ["Memory requested, MiB", "memory_requested_mib"], ["cpu-hours used", "cpu_hours_used"], ["95 % started within, s", "95_percent_started_within_seconds"], ["USD 2026-11-30", "usd_2026_11_30"]])("the column %s is %s", (title, name) => {
  expect(columnName(title)).toBe(name);
});
