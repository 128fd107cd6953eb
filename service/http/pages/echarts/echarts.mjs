// What the pages use of Apache ECharts 6, from which echarts.min.js is made by the command that VENDORED.json says:
// lines and scattered points in a grid, zoom, what is told beneath the pointer, labels that give way, drawn as SVG.
import { LineChart, ScatterChart } from "echarts/charts.js";
import { DataZoomInsideComponent, GridComponent, TooltipComponent } from "echarts/components.js";
import { init, use } from "echarts/core.js";
import { LabelLayout } from "echarts/features.js";
import { SVGRenderer } from "echarts/renderers.js";

use([LineChart, ScatterChart, DataZoomInsideComponent, GridComponent, TooltipComponent, LabelLayout, SVGRenderer]);
export { init };
