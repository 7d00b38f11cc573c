import {expect, test} from "vitest";
import {csv} from "../src/csv";

interface Row {a?: unknown; b?: unknown}
const columns = [{title: "A", cell: (row: Row) => row.a}, {title: "B", cell: () => "shown", text: (row: Row) => row.b}, {title: "Buttons", cell: () => "x", text: false as const}];

test("a table as CSV has its titles, and what is text instead of what is shown", () => {
  expect(csv(columns, [{a: 1, b: "two"}])).toBe('"A","B"\r\n"1","two"');
});
test("quotes are doubled, nothing is empty", () => {
  expect(csv(columns, [{a: 'say "hi"', b: null}])).toBe('"A","B"\r\n"say ""hi""",""');
});
test("what a spreadsheet would take for a formula gets an apostrophe, a number does not", () => {
  expect(csv(columns, [{a: "=1+1", b: -5}, {a: "@x", b: "-5"}])).toBe('"A","B"\r\n"\'=1+1","-5"\r\n"\'@x","\'-5"');
});
