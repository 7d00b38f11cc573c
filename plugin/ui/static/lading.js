// What Airflow's UI shows of Lading. No build step: React, Chakra and the router are the host's own, on globalThis.
// Airflow takes a component from globalThis by the name of its react_app; all of them come from this one bundle.
// All modules are named here, so that a browser asks for them at once instead of finding one in the other.
import "./words.js";
import "./csv.js";
import "./packing.js";
import "./data.js";
import "./chart.js";
import "./packing_chart.js";
import "./tries.js";
import {DagTab} from "./dag_tab.js";
import {Page} from "./page.js";
import {RunTab} from "./run_tab.js";
import {TaskTab} from "./task_tab.js";
import {HomeTile} from "./home_tile.js";
import {Guarded, h} from "./ui.js";

const which = ({dagId, runId, taskId}) => (taskId && runId ? TaskTab : runId ? RunTab : dagId ? DagTab : Page);

globalThis["Lading"] = (props) => h(Guarded, null, h(which(props), props));
globalThis["Lading today"] = () => h(Guarded, null, h(HomeTile));
