// The tile on Airflow's Home.
import {useAnswer} from "./data.js";
import {Link, Section, Tile, Tiles, Trouble, h} from "./ui.js";
import {cost, count, inUse, midnight} from "./words.js";

export function HomeTile() {
  const [found, trouble] = useAnswer("summary", {}, 10), [today] = useAnswer("costs", {since: midnight()}, 60);
  if (!found) return h(Trouble, {words: trouble});
  return h(Section, {title: "Lading", more: h(Link, {to: "/plugin/lading"}, "What runs where")}, h(Tiles, null,
    h(Tile, {label: "Running", value: count(found.running)}),
    h(Tile, {label: "Waiting", value: count(found.waiting)}),
    h(Tile, {label: "cpus in use", value: count(found.cpus_used), help: inUse(found)}),
    h(Tile, {label: "Today", value: today ? cost(today.usd, today.cpu_hours) : "…"})));
}
