const DAY = 86_400;

/** A number of days before today, or a calendar period; weeks begin on Monday. */
export type BillRange = number | "week" | "lastweek" | "weeks" | "month";

/** The time range of a bill, in whole days of UTC: today and a number of days before, this week or month, last week, or
 * last week and the one before. */
export function billSpan(range: BillRange, now: number): {since: number; until: number} {
  const at = new Date(now * 1000), today = Math.floor(now / DAY) * DAY;
  if (range === "month") return {since: Date.UTC(at.getUTCFullYear(), at.getUTCMonth()) / 1000, until: now};
  if (typeof range === "number") return {since: today - range * DAY, until: now};
  const monday = today - ((at.getUTCDay() + 6) % 7) * DAY;
  if (range === "week") return {since: monday, until: now};
  return {since: monday - (range === "weeks" ? 14 : 7) * DAY, until: monday};
}
