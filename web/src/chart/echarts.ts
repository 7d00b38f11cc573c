// The parts of ECharts that the page uses, about a third of its size.
import {CustomChart, LineChart} from "echarts/charts";
import {AriaComponent, AxisPointerComponent, DataZoomComponent, GridComponent, LegendComponent, TooltipComponent} from "echarts/components";
import {graphic, init, use} from "echarts/core";
import {CanvasRenderer} from "echarts/renderers";

use([CustomChart, LineChart, AriaComponent, AxisPointerComponent, DataZoomComponent, GridComponent, LegendComponent, TooltipComponent, CanvasRenderer]);
export {graphic, init};
