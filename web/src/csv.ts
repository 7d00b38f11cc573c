// Tables as CSV.

export interface CsvColumn<Row> {
  title: string;
  /** Its heading in the CSV, where that has a unit. */
  csvTitle?: string;
  cell?: (row: Row) => unknown;
  /** What is in the CSV, where it is not the cell; false: the column is not in it. */
  text?: ((row: Row) => unknown) | false;
}

/** RFC 4180. A cell that a spreadsheet would take for a formula gets an apostrophe (OWASP, "CSV Injection"). */
export function csv<Row>(all: readonly CsvColumn<Row>[], rows: readonly Row[]): string {
  const columns = all.filter(({text}) => text !== false);
  const quoted = (value: unknown) => {
    const text = String(value ?? "");
    const isFormula = typeof value === "string" && /^[=+\-@\t\r\n]/.test(text);
    return `"${(isFormula ? `'${text}` : text).replaceAll('"', '""')}"`;
  };
  const line = (values: unknown[]) => values.map(quoted).join(",");
  const cells = (row: Row) => columns.map(({cell, text}) => (text || cell)?.(row));
  return [line(columns.map(({title, csvTitle}) => csvTitle ?? title)), ...rows.map((row) => line(cells(row)))].join("\r\n");
}
