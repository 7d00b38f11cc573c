// The page's style sheet, which uses Chakra's variables if the host has them.
import {DARK, LIGHT, type Palette} from "../chart/colors";

const variables = ({running, succeeded, failed, cancelled, hidden, machine, phases, shares, page}: Palette) =>
  Object.entries({page: page[0], running, succeeded, failed, cancelled, hidden, machine, ...phases, ...shares})
    .map(([name, color]) => `--l-${name}: ${color};`).join(" ");

const CSS = `
.lading { ${variables(LIGHT)} --l-line: color-mix(in srgb, currentColor 20%, transparent); --l-soft: color-mix(in srgb, currentColor 6%, transparent);
  --l-bg: var(--chakra-colors-bg, #fff); --l-error: var(--chakra-colors-fg-error, #b91c1c); --l-link: var(--chakra-colors-fg-info, #1d4ed8);
  height: 100%; overflow-y: auto; display: flex; flex-direction: column; gap: 16px; padding: 0 16px 32px; scroll-padding-top: calc(var(--l-top, 52px) + 44px); }
.dark .lading { ${variables(DARK)} --l-bg: var(--chakra-colors-bg, #09090b); --l-error: var(--chakra-colors-fg-error, #fca5a5); --l-link: var(--chakra-colors-fg-info, #93c5fd); }
.lading > header { position: sticky; top: 0; z-index: 6; background: var(--l-bg); border-bottom: 1px solid var(--l-line); padding: 8px 0 0; display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: end; justify-content: space-between; }
.lading > * { width: 100%; max-width: 1920px; margin-inline: auto; }
.lading nav { min-width: 0; max-width: 100%; }
.lading nav ul { display: flex; gap: 2px; list-style: none; margin: 0; padding: 0; overflow-x: auto; }
.lading nav a { display: block; padding: 8px 14px; border-bottom: 3px solid transparent; white-space: nowrap; }
.lading nav a[aria-current=page] { border-bottom-color: var(--l-running); font-weight: 600; }
.lading nav a:hover { background: var(--l-soft); }
.lading .find { display: flex; gap: 4px; padding-bottom: 6px; }
.lading .skip { position: absolute; left: -9999px; }
.lading .skip:focus { position: static; }
.lading section > .head { position: sticky; top: var(--l-top, 52px); z-index: 4; background: var(--l-bg); padding: 6px 0; display: flex; flex-wrap: wrap; justify-content: space-between; align-items: center; gap: 6px 12px; }
/* The heading leaves with the last 80 pixels of its section, rather than stay above the next one where scrolling ends. */
.lading section > .head { margin-bottom: 80px; }
.lading section > .body { margin-top: -80px; }
.lading.tab section > .head { top: 0; }
.lading h2 { font-weight: 600; font-size: 1.1em; margin: 0; }
.lading a.link { color: inherit; text-decoration: underline; text-decoration-color: color-mix(in srgb, currentColor 45%, transparent); text-underline-offset: 2px; }
.lading a.link:hover { text-decoration-color: currentColor; }
.lading :is(a, button, select, input, [tabindex]):focus-visible { outline: 2px solid var(--l-running); outline-offset: 1px; }
.lading .muted { opacity: 0.75; font-size: 0.875em; }
.lading .row { display: flex; flex-wrap: wrap; gap: 2px 8px; align-items: center; }
.lading .nowrap { flex-wrap: nowrap; }
.lading .tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; }
.lading .tile { border: 1px solid var(--l-line); border-radius: 6px; padding: 10px 12px; display: block; height: 100%; }
.lading button.tile { font: inherit; color: inherit; background: none; text-align: start; width: 100%; cursor: pointer; display: flex; flex-direction: column; }
.lading :is(a, button).tile:hover { background: var(--l-soft); }
.lading .tile .whole { font: inherit; color: inherit; background: none; border: 0; padding: 0; display: block; width: 100%; text-align: start; cursor: pointer; }
.lading .tile .to { font: inherit; font-size: 0.875em; color: inherit; background: none; border: 0; padding: 1px 0; display: block; max-width: 100%; text-align: start; cursor: pointer; overflow-wrap: anywhere; text-decoration: underline; text-decoration-color: color-mix(in srgb, currentColor 45%, transparent); text-underline-offset: 2px; }
.lading .tile :is(.whole, .to):hover { background: var(--l-soft); }
.lading tr.marked > td { background: color-mix(in srgb, var(--l-running) 14%, var(--l-bg)); }
.lading .advice { margin-top: 10px; }
.lading .advice :is(ol, ul) { margin: 2px 0 6px; padding-inline-start: 1.6em; }
.lading .advice ol { list-style: decimal; }
.lading .advice ul { list-style: disc; }
.lading .tile .label { font-size: 0.85em; opacity: 0.8; }
.lading .tile .value { font-size: 1.4em; white-space: nowrap; font-weight: 600; font-variant-numeric: tabular-nums; }
.lading .tile.bad { border-color: var(--l-failed); border-inline-start-width: 4px; }
.lading .plain { border: 1px solid var(--l-line); border-radius: 4px; padding: 0 8px; background: transparent; color: inherit; }
.lading ul.found { margin: 4px 0; padding: 0; list-style: none; display: flex; flex-wrap: wrap; gap: 2px 24px; }
.lading .lead { font-size: 1.1em; font-weight: 600; margin: 0 0 8px; }
.lading .trouble { color: var(--l-error); margin: 4px 0; }
.lading .banner { border: 1px solid var(--l-error); border-inline-start-width: 5px; border-radius: 4px; padding: 6px 12px; background: var(--l-bg); width: 100%; margin-bottom: 6px; }
/* Airflow hides the first pixels of a tab. */
.lading.tab .banner { margin-top: 10px; }
.lading .scroll { overflow: auto; max-height: max(320px, 78vh); border: 1px solid var(--l-line); border-radius: 6px; position: relative; }
/* A table grows with the page, because a box that scrolls in a page that scrolls hides rows. */
.lading .scroll:has(> table) { max-height: none; overflow-y: hidden; }
.lading table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 0.875rem; }
.lading th { position: sticky; top: var(--l-under, 0); z-index: 2; background: var(--l-bg); text-align: start; font-weight: 600; padding: 6px 8px; border-bottom: 1px solid var(--l-line); vertical-align: bottom; }
.lading td { padding: 5px 8px; border-bottom: 1px solid var(--l-line); vertical-align: top; background: var(--l-bg); overflow-wrap: break-word; max-width: 34em; }
.lading td:first-child { overflow-wrap: anywhere; max-width: 22em; min-width: 5em; }
.lading td:first-child:has(code) { max-width: 44em; }
.lading tr:last-child td { border-bottom: 0; }
.lading :is(th, td):first-child { position: sticky; left: 0; z-index: 1; }
.lading th:first-child { z-index: 3; }
.lading td.number { max-width: none; }
.lading .number { text-align: end; font-variant-numeric: tabular-nums; }
.lading td.number { white-space: nowrap; }
.lading th abbr { text-decoration: underline dotted; text-underline-offset: 3px; cursor: help; }
.lading th button { font: inherit; background: none; border: 0; padding: 0; cursor: pointer; color: inherit; text-align: inherit; }
.lading .long, .lading td .row { overflow-wrap: anywhere; }
.lading .line { white-space: nowrap; }
.lading .clamp { overflow-wrap: anywhere; display: -webkit-box; -webkit-box-orient: vertical; overflow: hidden; }
.lading .dags { min-width: 10em; max-width: 14em; }
.lading .dags > span { min-width: 0; }
.lading .text { min-width: 15em; }
.lading .note { min-width: 7em; }
.lading .note .text { min-width: 0; }
.lading .starts { min-width: 9.5em; }
.lading .starts .text { min-width: 0; }
.lading .more { background: none; border: 0; padding: 0; text-decoration: underline; cursor: pointer; font-size: 0.85em; color: inherit; }
.lading .head .slot { display: contents; }
.lading .tools { display: flex; flex-wrap: wrap; justify-content: flex-end; align-items: center; gap: 8px; margin: 4px 0; }
.lading .chips { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; }
.lading .chip { display: inline-flex; gap: 6px; align-items: center; border: 1px solid var(--l-line); border-radius: 999px; padding: 1px 10px; font-size: 0.875em; background: var(--l-soft); }
.lading .chip button { background: none; border: 0; cursor: pointer; color: inherit; padding: 0 2px; }
.lading .bar { display: flex; height: 14px; border-radius: 3px; overflow: hidden; min-width: 60px; gap: 1px; background: var(--l-soft); }
.lading .bar > span { display: block; min-width: 2px; }
.lading .split { display: grid; grid-template-columns: 1fr 1fr; gap: 0 10px; font-size: 0.85em; min-width: 15em; max-width: 24em; font-variant-numeric: tabular-nums; }
.lading .scale { font-size: 10px; border-bottom: 1px dashed var(--l-line); margin-bottom: 2px; }
.lading .swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-inline-end: 5px; }
.lading .legend { display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: 0.8em; }
.lading code { font-size: 0.88em; }
.lading dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: 4px 16px; }
.lading dl.facts dd { margin: 0; overflow-wrap: anywhere; }
.lading .hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.lading .two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 16px; }
.lading svg text { fill: currentColor; }
@media (max-width: 640px) {
  .lading .pointer { display: none; }
  .lading { padding: 0 8px 24px; gap: 12px; scroll-padding-top: calc(var(--l-top, 76px) + 44px); }
  .lading .banner { padding: 4px 8px; font-size: 0.8em; }
  .lading > header { gap: 0 8px; }
  .lading nav a { padding: 8px 4px; font-size: 0.84em; }
  .lading .find { width: 100%; }
  .lading .find > :first-child { flex: 1; }
  .lading section > .head { position: static; }
  .lading .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .lading .tile { padding: 6px 8px; }
  .lading .tile .value { font-size: 1.15em; white-space: normal; }
  .lading table, .lading tbody, .lading tr, .lading td { display: block; width: auto; max-width: none; }
  .lading thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .lading .scroll:has(> table) { border: 0; overflow: visible; }
  .lading tbody tr { border: 1px solid var(--l-line); border-radius: 6px; margin-bottom: 8px; padding: 4px 8px; }
  .lading td, .lading tr:last-child td { border: 0; padding: 2px 0; display: grid; grid-template-columns: 7.5em minmax(0, 1fr); gap: 0 8px; }
  .lading td::before { content: attr(data-title); opacity: 0.75; font-size: 0.875em; grid-column: 1; grid-row: 1 / span 9; }
  .lading td > * { grid-column: 2; }
  .lading td:empty, .lading td:first-child::before { display: none; }
  .lading td:first-child, .lading td:first-child:has(code), .lading tr:last-child td:first-child { display: block; position: static; max-width: none; font-weight: 600; }
  .lading td.number { text-align: start; white-space: normal; }
  .lading td .row code { white-space: nowrap; overflow-x: auto; }
  .lading td .line { white-space: normal; overflow-wrap: anywhere; }
  .lading td .text, .lading td .dags, .lading td .starts { min-width: 0; max-width: none; }
  .lading .split { min-width: 0; }
  .lading dl.facts { grid-template-columns: 1fr; gap: 0; }
  .lading dl.facts dd { margin-bottom: 6px; }
}
@media print { .lading { overflow: visible; height: auto; } .lading .scroll { overflow: visible; } }
`;

/** Adds the style sheet to the document once. */
export function addStyle(): void {
  if (document.getElementById("lading-style")) return;
  const element = document.createElement("style");
  element.id = "lading-style";
  element.textContent = CSS;
  document.head.append(element);
}
