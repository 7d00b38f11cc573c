/** The time range of a bill, in whole days of UTC: this month, or today and a number of days before. */
export function billSpan(days: number | "month", now: number): {since: number; until: number} {
  const at = new Date(now * 1000);
  const since = days === "month" ? Date.UTC(at.getUTCFullYear(), at.getUTCMonth()) / 1000 : (Math.floor(now / 86400) - days) * 86400;
  return {since, until: now};
}
