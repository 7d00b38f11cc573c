// Export of tables as CSV.

export interface CsvColumn<Row> {
  title: string;
  /** The heading in the CSV if it differs, for example because it has a unit. */
  csvTitle?: string;
  cell?: (row: Row) => unknown;
  /** The value in the CSV if it differs from the cell; false: the CSV omits the column. */
  text?: ((row: Row) => unknown) | false;
}

/** Formats rows as CSV (RFC 4180). Text that spreadsheets would run as a formula gets an apostrophe (OWASP, "CSV Injection"). */
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
