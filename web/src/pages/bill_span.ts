const DAY = 86_400;

/** A number of days before today, or a calendar period; weeks begin on Monday, and a month that is over is "2026-10". */
export type BillRange = number | "week" | "lastweek" | "weeks" | "month" | `${number}-${number}`;

/** The time range of a bill, in whole days of UTC: today and a number of days before, this week or month, a month
 * that is over, last week, or last week and the one before. */
export function billSpan(range: BillRange, now: number): {since: number; until: number} {
  const at = new Date(now * 1000), today = Math.floor(now / DAY) * DAY;
  if (range === "month") return {since: Date.UTC(at.getUTCFullYear(), at.getUTCMonth()) / 1000, until: now};
  if (typeof range === "number") return {since: today - range * DAY, until: now};
  if (range.includes("-")) {
    const [year, month] = range.split("-").map(Number);
    return {since: Date.UTC(year, month - 1) / 1000, until: Date.UTC(year, month) / 1000};
  }
  const monday = today - ((at.getUTCDay() + 6) % 7) * DAY;
  if (range === "week") return {since: monday, until: now};
  return {since: monday - (range === "weeks" ? 14 : 7) * DAY, until: monday};
}

/** The last months that are over, in UTC, latest first: the range and the beginning of each, seconds since the epoch. */
export function pastMonths(now: number, months: number): [BillRange, number][] {
  const at = new Date(now * 1000);
  return Array.from({length: months}, (_, index) => {
    const begin = new Date(Date.UTC(at.getUTCFullYear(), at.getUTCMonth() - 1 - index));
    return [begin.toISOString().slice(0, 7) as BillRange, begin.getTime() / 1000];
  });
}
