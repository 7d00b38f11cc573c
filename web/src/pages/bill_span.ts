/** Of today and so many days before: bills are by days of UTC. */
export const billSpan = (days: number, now: number) => ({since: (Math.floor(now / 86400) - days) * 86400, until: now});
