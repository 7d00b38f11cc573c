/** The time range of today and a number of days before; bills use days in UTC. */
export const billSpan = (days: number, now: number) => ({since: (Math.floor(now / 86400) - days) * 86400, until: now});
