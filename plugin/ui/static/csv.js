// Tables as CSV. A column: {title, cell(row), text(row) for CSV, false: not in it}.

// RFC 4180. A cell that a spreadsheet would take for a formula gets an apostrophe (OWASP, "CSV Injection").
export function csv(all, rows) {
  const columns = all.filter(({text}) => text !== false);
  const quoted = (value) => {
    const words = String(value ?? "");
    return `"${(typeof value === "string" && /^[=+\-@\t\r]/.test(words) ? `'${words}` : words).replaceAll('"', '""')}"`;
  };
  const line = (values) => values.map(quoted).join(",");
  return [line(columns.map(({title}) => title)), ...rows.map((row) => line(columns.map(({cell, text}) => (text ?? cell)(row))))].join("\r\n");
}
