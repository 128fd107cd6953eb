"use strict";

// Charts of more marks than the server draws (`[data-chart]`): Apache ECharts draws them as SVG of what the page's JSON
// says, in the place of the server's drawing. That stays where the script cannot do so; the table is there in any case.
// What is told beneath the pointer is drawn as text, and every style is set from here: the policy takes none in markup.
{
  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  // A text in ECharts' own markup `{style|text}` would lose what looks like it.
  const plain = (text) => String(text).replaceAll("{", "{\u200b");
  const figures = (value) => (Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(5)));

  const axis = (name) => ({
    type: "value",
    scale: true,
    name,
    nameLocation: "middle",
    nameGap: 28,
    nameTextStyle: { color: token("soft") },
    axisLine: { show: true, lineStyle: { color: token("strong") } },
    axisTick: { show: false },
    axisLabel: { color: token("soft"), hideOverlap: true, formatter: figures },
    splitLine: { lineStyle: { color: token("line") } },
  });

  const frame = () => ({
    animation: false,
    textStyle: { fontFamily: getComputedStyle(document.body).fontFamily },
    tooltip: {
      renderMode: "richText",
      confine: true,
      backgroundColor: token("raised"),
      borderColor: token("strong"),
      textStyle: { color: token("ink"), width: 240, overflow: "break" },
    },
  });

  // The wheel zooms with Ctrl only, so that it goes on scrolling the page.
  const zooms = (axes) => axes.map((index) => ({ type: "inside", [index]: 0, filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false }));

  const map = (found, figure) => {
    const most = Number(figure.dataset.most);
    const alike = new Set(figure.dataset.alike?.split(" ")); // those that the page names, before the first of all
    const places = [...found.places.filter((one) => alike.has(one.ref)), ...found.places.filter((one) => !alike.has(one.ref))].slice(0, most);
    const spots = places.map((one) => ({ name: one.domain, value: [one.x, one.y], ref: one.ref, share: one.posterior }));
    const label = { show: true, position: "right", padding: 3, color: token("ink"), width: 160, overflow: "truncate", formatter: (one) => plain(one.name) };
    const drawn = [{
      type: "scatter",
      data: spots,
      symbolSize: 10,
      itemStyle: { color: token("mark"), opacity: 1, borderColor: token("raised"), borderWidth: 1 },
      label,
      labelLayout: { hideOverlap: true },
    }];
    if (figure.dataset.text) {
      drawn.push({
        type: "scatter",
        data: [{ name: "your text", value: figure.dataset.text.split(" ").map(Number) }],
        symbol: "diamond",
        symbolSize: 22,
        z: 3,
        itemStyle: { color: token("accent"), opacity: 1, borderColor: token("raised"), borderWidth: 1.5 },
        label: { ...label, fontWeight: "bold" },
      });
    }
    const hidden = { axisLabel: { show: false }, axisTick: { show: false }, axisLine: { show: false }, splitLine: { show: false } };
    return {
      ...frame(),
      grid: { left: 12, right: 12, top: 12, bottom: 12 },
      xAxis: { type: "value", scale: true, ...hidden },
      yAxis: { type: "value", scale: true, ...hidden },
      dataZoom: zooms(["xAxisIndex", "yAxisIndex"]),
      tooltip: { ...frame().tooltip, trigger: "item", formatter: ({ data }) => plain(data.ref ? `${data.name}\n${data.ref}` : data.name) },
      series: drawn,
    };
  };

  const losses = (found) => {
    const { by, best, training, held_out } = found.losses;
    const line = (name, data, color, dashed) => ({
      type: "line",
      name,
      data,
      showSymbol: data.length === 1,
      symbolSize: 6,
      itemStyle: { color: token(color) },
      lineStyle: { color: token(color), width: 2, type: dashed ? "dashed" : "solid" },
      emphasis: { disabled: true },
    });
    const kept = held_out.filter(([step]) => step === best);
    return {
      ...frame(),
      grid: { left: 12, right: 20, top: 16, bottom: 34, containLabel: true },
      xAxis: axis(by),
      yAxis: axis(""),
      dataZoom: zooms(["xAxisIndex"]),
      tooltip: {
        ...frame().tooltip,
        trigger: "axis",
        axisPointer: { lineStyle: { color: token("strong") } },
        formatter: (rows) => [`${by} ${rows[0].value[0]}`, ...rows.map((one) => `${one.seriesName}: ${figures(one.value[1])}`)].join("\n"),
      },
      series: [
        line("held out", held_out, "mark", false),
        line("in training", training, "mark-2", true),
        { type: "scatter", name: "kept", data: kept, symbolSize: 11, z: 3, itemStyle: { color: token("mark"), opacity: 1, borderColor: token("raised"), borderWidth: 2 } },
      ],
    };
  };

  const kinds = { map, losses };

  // Buttons that do what the pointer does: nearer, farther, and to the sides.
  const steer = (chart, figure) => {
    const range = (number) => {
      const { start, end } = chart.getOption().dataZoom[number];
      return [start, end];
    };
    const show = (number, start, end) => {
      const wide = Math.min(100, Math.max(1, end - start));
      const from = Math.min(100 - wide, Math.max(0, start));
      chart.dispatchAction({ type: "dataZoom", dataZoomIndex: number, start: from, end: from + wide });
    };
    const count = chart.getOption().dataZoom.length;
    const each = (change) => {
      for (let number = 0; number < count; number += 1) show(number, ...change(...range(number)));
    };
    const scaled = (by) => each((start, end) => {
      const [middle, half] = [(start + end) / 2, ((end - start) / 2) * by];
      return half >= 50 ? [0, 100] : [middle - half, middle + half];
    });
    const moved = (number, by) => {
      const [start, end] = range(number);
      show(number, start + (end - start) * by, end + (end - start) * by);
    };
    const doings = [
      ["Nearer", () => scaled(0.5)],
      ["Farther", () => scaled(2)],
      ["Left", () => moved(0, -0.25)],
      ["Right", () => moved(0, 0.25)],
      ...(count > 1 ? [["Up", () => moved(1, 0.25)], ["Down", () => moved(1, -0.25)]] : []),
      ["All of it", () => each(() => [0, 100])],
    ];
    const bar = document.createElement("p");
    bar.className = "steer";
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", "What is shown of the chart");
    for (const [name, act] of doings) {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "plain", textContent: name });
      button.addEventListener("click", act);
      bar.append(button);
    }
    figure.insertBefore(bar, figure.querySelector("figcaption"));
  };

  const draw = async (figure) => {
    const answer = await fetch(figure.dataset.twin);
    if (!answer.ok) return;
    const found = await answer.json();
    const place = document.createElement("div");
    place.className = `drawn drawn-${figure.dataset.chart}`;
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", figure.querySelector("svg").getAttribute("aria-label"));
    figure.prepend(place);
    const kind = kinds[figure.dataset.chart];
    let chart;
    try {
      chart = echarts.init(place, null, { renderer: "svg" });
      chart.setOption(kind(found, figure));
    } catch (error) {
      place.remove();
      throw error;
    }
    for (const one of figure.querySelectorAll(":scope > svg, [data-fewer]")) one.setAttribute("hidden", "");
    for (const one of figure.querySelectorAll("[data-all]")) one.hidden = false;
    steer(chart, figure);
    new ResizeObserver(() => chart.resize()).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      const { dataZoom } = chart.getOption();
      chart.setOption(kind(found, figure), { notMerge: true });
      dataZoom.forEach(({ start, end }, number) => chart.dispatchAction({ type: "dataZoom", dataZoomIndex: number, start, end }));
    });
  };

  for (const figure of document.querySelectorAll("[data-chart]")) draw(figure).catch(() => {}); // the server's drawing stays
}
