// Export of tables as CSV.

export interface CsvColumn<Row> {
  title: string;
  /** The heading in the CSV if it differs, for example because it has a unit. */
  csvTitle?: string;
  cell?: (row: Row) => unknown;
  /** The value in the CSV if it differs from the cell; false: the CSV omits the column. */
  text?: ((row: Row) => unknown) | false;
}

/** The name of a column, written as in `jobs.csv`: `Took, s` is `took_seconds`. */
export const columnName = (title: string): string =>
  title.toLowerCase().replace(/, s$/, " seconds").replaceAll("%", " percent ").replaceAll(/[^\p{L}\p{N}]+/gu, " ").trim().replaceAll(" ", "_");

/** Formats rows as CSV (RFC 4180), with quotes only where they are needed, as in `jobs.csv`. Text that spreadsheets would run as a formula gets an apostrophe (OWASP, "CSV Injection"). */
export function csv<Row>(all: readonly CsvColumn<Row>[], rows: readonly Row[]): string {
  const columns = all.filter(({text}) => text !== false);
  const quoted = (value: unknown) => {
    const text = String(value ?? "");
    const isFormula = typeof value === "string" && /^[=+\-@\t\r\n]/.test(text);
    const harmless = isFormula ? `'${text}` : text;
    return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
  };
  const line = (values: unknown[]) => values.map(quoted).join(",");
  const cells = (row: Row) => columns.map(({cell, text}) => (text || cell)?.(row));
  return [line(columns.map(({title, csvTitle}) => columnName(csvTitle ?? title))), ...rows.map((row) => line(cells(row)))].join("\r\n");
}
