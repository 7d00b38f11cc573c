// Lading's components in Airflow's UI. Airflow looks up a component in globalThis by the name of its react_app; this bundle
// contains all of them.
import * as React from "react";
import {loadECharts} from "./chart/draw";
import {Page} from "./pages/page";
import {PAGE, rangeOf} from "./paths";
import {startPacking} from "./polling";
import {DagTab} from "./tabs/dag";
import {HomeTile} from "./tabs/home";
import {RunTab} from "./tabs/run";
import {TaskTab} from "./tabs/task";
import {Guarded} from "./ui/parts";

// Load the chart's library and data while Airflow mounts the page.
const address = globalThis.location, chosen = new URLSearchParams(address?.search ?? "");
if (address?.pathname.endsWith(PAGE) && chosen.get("view") === "machines") {
  void loadECharts().catch(() => undefined);
  startPacking({seconds: Number(rangeOf(chosen.get("range")))});
}

interface Props {dagId?: string; runId?: string; taskId?: string; mapIndex?: string}

function Lading({dagId, runId, taskId, mapIndex}: Props) {
  if (dagId && runId && taskId) return <TaskTab dagId={dagId} runId={runId} taskId={taskId} mapIndex={mapIndex} />;
  if (dagId && runId) return <RunTab dagId={dagId} runId={runId} />;
  return dagId ? <DagTab dagId={dagId} /> : <Page />;
}

Object.assign(globalThis, {
  "Lading": (props: Props) => <Guarded><Lading {...props} /></Guarded>,
  "Lading today": () => <Guarded><HomeTile /></Guarded>,
});
