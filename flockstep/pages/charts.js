"use strict";
// Losses and bytes between pairs, drawn from data that is handed in. Every draw function may be called again to update.
const Charts = (() => {
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star", "cross", "triangle-down"];
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const hue = (index) => color("--s" + (index % SYMBOLS.length));
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const faded = (hex, alpha) => "rgba(" + parts(hex).join(",") + "," + alpha + ")";
  const mixed = (one, other, share) =>
    "rgb(" + parts(one).map((v, i) => Math.round(v * share + parts(other)[i] * (1 - share))).join(",") + ")";
  // The plotting library reads markup in labels: what a user wrote must reach it as entities.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const scaled = (value, steps, base) => {
    let unit = 0;
    while (value >= 999.5 && unit < steps.length - 1) { value /= base; unit += 1; }
    return Number(value.toPrecision(3)) + " " + steps[unit];
  };
  const bytes = (count) => scaled(count, ["B", "kB", "MB", "GB", "TB"], 1000);
  const seconds = (time) =>
    time >= 120 ? Math.floor(time / 60) + " min " + String(Math.floor(time % 60)).padStart(2, "0") + " s"
      : time >= 1 ? Number(time.toPrecision(4)) + " s"
        : time >= 1e-3 ? Number((time * 1e3).toPrecision(3)) + " ms" : Number((time * 1e6).toPrecision(3)) + " µs";

  const layout = (more) => Object.assign({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { color: color("--ink"), family: "system-ui, sans-serif", size: 12 },
    hoverlabel: { bgcolor: color("--paper"), bordercolor: color("--line"), font: { color: color("--ink") }, align: "left" },
    // A finger that slides over a plot means the page.
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
  }, more);
  const config = { displayModeBar: false, displaylogo: false, responsive: true, showTips: false };
  const axis = (more) => Object.assign({ gridcolor: color("--line"), zerolinecolor: color("--line"), linecolor: color("--line") }, more);

  // Where an axis counts in powers, zero has no place.
  const kept = (points, logX, logY) => {
    const good = points.x.map((x, i) => (!logX || x > 0) && (!logY || (points.low || points.middle)[i] > 0));
    const pick = (values) => values && values.filter((_, i) => good[i]);
    return { x: pick(points.x), middle: pick(points.middle), low: pick(points.low), high: pick(points.high) };
  };

  // data: { curves: [{ index, label, points: { x, middle, low?, high? }, gone? }], target?, unit, title, logX, logY }
  const drawLosses = (div, data) => {
    const bands = [], lines = [];
    data.curves.forEach((curve) => {
      const { x, middle, low, high } = kept(curve.points, data.logX, data.logY);
      const shade = hue(curve.index), round = Math.floor(curve.index / SYMBOLS.length);
      if (low && low.some((value, i) => value !== high[i])) {
        bands.push({
          type: "scatter", mode: "lines", x: x.concat([...x].reverse()), y: high.concat([...low].reverse()),
          fill: "toself", fillcolor: faded(shade, 0.18), line: { width: 0 }, hoverinfo: "skip", name: "band " + curve.index,
        });
      }
      lines.push({
        type: "scatter", mode: "lines+markers", x, y: middle, name: plain(curve.label), opacity: curve.gone ? 0.45 : 1,
        line: { color: shade, width: 2.2, dash: DASHES[round % DASHES.length] },
        marker: { color: shade, size: 6, symbol: SYMBOLS[(curve.index + round) % SYMBOLS.length], maxdisplayed: 24 },
        customdata: x.map((_, i) => (low && low[i] !== high[i] ? "<br>seeds " + low[i].toPrecision(4) + " to " + high[i].toPrecision(4) : "")),
        hovertemplate: "<b>" + plain(curve.label) + "</b><br>loss %{y:.4~g}<br>%{x:.4~s}" + data.unit + "%{customdata}<extra></extra>",
      });
    });
    const target = data.target === null || data.target === undefined || (data.logY && data.target <= 0) ? [] : [data.target];
    return Plotly.react(div, [...bands, ...lines], layout({
      margin: { l: 10, r: 14, t: 12, b: 10 }, uirevision: data.title + data.logX + data.logY, hovermode: "closest",
      xaxis: axis({
        title: { text: data.title, standoff: 8 }, type: data.logX ? "log" : "linear", automargin: true, zeroline: false,
        tickformat: "~s", ticksuffix: data.unit, nticks: 8, rangemode: "tozero",
      }),
      yaxis: axis({
        title: { text: "loss", standoff: 6 }, type: data.logY ? "log" : "linear", automargin: true, zeroline: false,
        tickformat: "~g", nticks: 8, minorloglabels: "complete",
      }),
      shapes: target.map((y) => ({
        type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: color("--quiet"), width: 1.3, dash: "dot" },
      })),
      annotations: target.map((y) => ({
        xref: "paper", x: 1, xanchor: "right", y: data.logY ? Math.log10(y) : y, yanchor: "bottom", showarrow: false,
        text: "target " + Number(y.toPrecision(4)), font: { color: color("--quiet"), size: 11 },
      })),
    }), config);
  };

  // data: { index, bytes: rows of senders, columns of receivers, names? }
  const drawMatrix = (div, data) => {
    const size = data.bytes.length, names = data.names || data.bytes.map((_, i) => String(i));
    const most = Math.max(1, ...data.bytes.map((row) => Math.max(...row)));
    const every = Math.ceil(size / 6), ticks = names.map((_, i) => i).filter((i) => i % every === 0);
    const side = axis({ tickvals: ticks, ticktext: ticks.map((i) => plain(names[i])), showgrid: false, zeroline: false, fixedrange: true, tickangle: 0 });
    return Plotly.react(div, [{
      type: "heatmap", z: data.bytes.map((row) => row.map((count) => count || null)), zmin: 0, zmax: most, hoverongaps: false,
      xgap: size <= 40 ? 1 : 0, ygap: size <= 40 ? 1 : 0,
      colorscale: [[0, mixed(hue(data.index), color("--panel"), 0.12)], [1, hue(data.index)]],
      customdata: data.bytes.map((row) => row.map(bytes)),
      hovertemplate: "node %{y} to node %{x}<br>%{customdata}<extra></extra>",
      colorbar: { thickness: 10, outlinewidth: 0, len: 1, tickformat: "~s", ticksuffix: "B", nticks: 5, tickfont: { size: 10 }, xpad: 6 },
    }], layout({
      margin: { l: 10, r: 6, t: 10, b: 10 }, dragmode: false,
      xaxis: Object.assign({}, side, { title: { text: "to node", standoff: 4 }, side: "bottom", automargin: true, constrain: "domain" }),
      yaxis: Object.assign({}, side, {
        title: { text: "from node", standoff: 4 }, automargin: true, autorange: "reversed", scaleanchor: "x", constrain: "domain",
      }),
    }), config);
  };

  return { drawLosses, drawMatrix, hue, mixed, color, plain, bytes, seconds, layout, config, axis };
})();
