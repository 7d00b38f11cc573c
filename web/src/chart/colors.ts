// The colours of states and phases in light and dark mode. Each has a contrast of at least 3:1 with the page and with the
// grey of machines, and states can be told apart without seeing red or green; a test computes both.

export interface Palette {
  page: readonly string[];
  machine: string;
  /** In a density row, for jobs that are not highlighted. */
  pale: string;
  running: string;
  succeeded: string;
  failed: string;
  cancelled: string;
  hidden: string;
  phases: Record<string, string>;
  shares: {used: string; unused: string; idle: string; boot: string};
}

export const LIGHT: Palette = {
  page: ["#ffffff", "#f4f4f5"],
  machine: "#eef1f5",
  pale: "#c3cffb",
  running: "#456cf6",
  succeeded: "#4f9689",
  failed: "#fe4514",
  cancelled: "#5d2a00",
  hidden: "#545b66",
  phases: {airflow: "#7d8590", sent: "#4b5563", queue: "#b45309", boot: "#6b3f00", runs: "#456cf6"},
  shares: {used: "#2f7d6e", unused: "#456cf6", idle: "#b45309", boot: "#6b3f00"},
};
export const DARK: Palette = {
  page: ["#09090b", "#18181b", "#171d2b"],
  machine: "#27303b",
  pale: "#1d4a68",
  running: "#0fa0ef",
  succeeded: "#b0fdf0",
  failed: "#de3b3f",
  cancelled: "#fbfa10",
  hidden: "#8b929c",
  phases: {airflow: "#8b929c", sent: "#d4d4d8", queue: "#f5b83d", boot: "#fde68a", runs: "#0fa0ef"},
  shares: {used: "#7fe3cd", unused: "#6ea8ff", idle: "#f5b83d", boot: "#fde68a"},
};

export const STATES = ["running", "succeeded", "failed", "cancelled"] as const;
export type ShownState = (typeof STATES)[number];
/** The angle of the hatching that a state has in addition to its colour, degrees; null: no hatching. */
export const SLANTS: Record<ShownState | "hidden", number | null> = {running: null, succeeded: 0, failed: 45, cancelled: 135, hidden: null};

/** The same for the phases of a try: waiting is hatched, running is not. */
export const PHASE_SLANTS: Record<string, number | null> = {airflow: 135, sent: 45, queue: 0, boot: 90, runs: null};

export const shownState = (state: string | null, hidden: boolean): ShownState | "hidden" =>
  hidden || !STATES.includes(state as ShownState) ? "hidden" : (state as ShownState);

/** A colour with hatching as a CSS background. */
export function hatched(color: string, slant: number | null): string {
  return slant === null ? color : `repeating-linear-gradient(${slant}deg, ${color} 0 3px, color-mix(in srgb, ${color} 60%, var(--l-page)) 3px 5px)`;
}

const linear = (hex: string) =>
  [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
const luminance = (hex: string) => {
  const [red, green, blue] = linear(hex);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
/** The contrast ratio of two colours according to WCAG 2, 1 to 21. */
export function contrast(one: string, other: string): number {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}

// Machado, Oliveira and Fernandes, A physiologically-based model for simulation of color vision deficiency, 2009.
const DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]];
const TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]];
const WHITE = [0.95047, 1, 1.08883];
const times = (matrix: number[][], vector: number[]) => matrix.map((row) => row.reduce((sum, each, at) => sum + each * vector[at], 0));
function lab(rgb: number[]): number[] {
  const [x, y, z] = times(TO_XYZ, rgb).map((part, at) => part / WHITE[at]).map((part) => (part > 0.008856 ? Math.cbrt(part) : 7.787 * part + 16 / 116));
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}
/** The distance of two colours as seen with deuteranopia: ΔE of CIE 1976. */
export function deltaE(one: string, other: string): number {
  const seen = [one, other].map((hex) => lab(times(DEUTERANOPIA, linear(hex)).map((part) => Math.min(1, Math.max(0, part)))));
  return Math.hypot(...seen[0].map((part, at) => part - seen[1][at]));
}
