"use strict";
// What each node did when. All spans are kept; what is drawn is as fine as the screen: a stretch that holds more spans than
// pixels shows for each moment how its time was shared, and one that holds fewer shows the spans themselves.
const Timelines = (() => {
  const KINDS = "cwt";
  const NAMES = { c: "computing", w: "waiting", t: "talking" };
  const LANE = 0.84;
  const states = new WeakMap();

  // packed: { tick, lanes: [{ kinds: "cwt...", times: [gap, length, gap, length, ...] in ticks }] }
  const unpack = (packed) => packed.lanes.map(({ kinds, times }) => {
    const begin = new Float64Array(kinds.length), end = new Float64Array(kinds.length);
    let now = 0;
    for (let i = 0; i < kinds.length; i += 1) {
      now += times[2 * i];
      begin[i] = now * packed.tick;
      now += times[2 * i + 1];
      end[i] = now * packed.tick;
    }
    return { kinds, begin, end };
  });

  // The first span that ends after a moment.
  const first = (lane, moment) => {
    let low = 0, high = lane.end.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.end[middle] > moment) high = middle; else low = middle + 1;
    }
    return low;
  };
  const within = (lane, from, to) => {
    const start = first(lane, from);
    let stop = start;
    while (stop < lane.begin.length && lane.begin[stop] < to) stop += 1;
    return [start, stop];
  };
  const spanAt = (lane, moment) => {
    const i = first(lane, moment);
    return i < lane.begin.length && lane.begin[i] <= moment ? i : -1;
  };

  // How much of each of `bins` equal parts of a stretch went into computing, waiting and talking.
  const shares = (lane, from, to, bins) => {
    const [start, stop] = within(lane, from, to);
    const width = (to - from) / bins;
    const found = { c: new Float64Array(bins), w: new Float64Array(bins), t: new Float64Array(bins) };
    for (let i = start; i < stop; i += 1) {
      const a = (Math.max(lane.begin[i], from) - from) / width, b = (Math.min(lane.end[i], to) - from) / width;
      const mine = found[lane.kinds[i]];
      for (let bin = Math.floor(a); bin < b && bin < bins; bin += 1) mine[bin] += Math.min(b, bin + 1) - Math.max(a, bin);
    }
    return found;
  };

  const outline = (shape, floor, heights, from, width) => {
    let open = false, last = 0;
    heights.forEach((height, bin) => {
      const x = from + bin * width;
      if (open && height === last) return;
      if (open) { shape.x.push(x); shape.y.push(floor - LANE * last); }
      if (height > 0) {
        if (!open) { shape.x.push(x); shape.y.push(floor); }
        shape.x.push(x); shape.y.push(floor - LANE * height);
      } else if (open) {
        shape.x.push(x, null); shape.y.push(floor, null);
      }
      open = height > 0; last = height;
    });
    if (open) {
      const x = from + heights.length * width;
      shape.x.push(x, x, null); shape.y.push(floor - LANE * last, floor, null);
    }
  };

  // The outlines to fill, one after the other: waiting below talking below computing.
  const shapes = (lanes, from, to, bins) => {
    const made = { w: { x: [], y: [] }, t: { x: [], y: [] }, c: { x: [], y: [] }, spans: 0, merged: 0 };
    lanes.forEach((lane, rank) => {
      const floor = rank + LANE / 2;
      const [start, stop] = within(lane, from, to);
      made.spans += stop - start;
      const seen = stop > start ? Math.min(to, lane.end[stop - 1]) - Math.max(from, lane.begin[start]) : 0;
      if (stop - start <= Math.max(2, bins * seen / (to - from))) {
        for (let i = start; i < stop; i += 1) {
          const { x, y } = made[lane.kinds[i]], a = lane.begin[i], b = lane.end[i];
          x.push(a, a, b, b, null); y.push(floor, floor - LANE, floor - LANE, floor, null);
        }
        return;
      }
      made.merged += 1;
      const found = shares(lane, from, to, bins);
      // Rounded, so that equal shares are equal and the outline has few corners.
      const round = (value) => Math.round(Math.min(1, value) * 64) / 64;
      const width = (to - from) / bins;
      outline(made.c, floor, Array.from(found.c, round), from, width);
      outline(made.t, floor, Array.from(found.t, (v, i) => round(v + found.c[i])), from, width);
      outline(made.w, floor, Array.from(found.w, (v, i) => round(v + found.c[i] + found.t[i])), from, width);
    });
    return made;
  };

  const colors = (index) => ({
    c: Charts.hue(index),
    t: Charts.mixed(Charts.color("--ink"), Charts.color("--panel"), 0.6),
    w: Charts.mixed(Charts.hue(index), Charts.color("--panel"), 0.22),
  });

  const height = (nodes) => Math.round(Math.min(640, nodes * Math.max(6, 26 - 0.45 * nodes)) + 32);

  const render = (div) => {
    const state = states.get(div), { data } = state;
    const [from, to] = state.range || state.whole;
    const bins = Math.max(60, Math.floor((div.clientWidth - 60) / 2));
    const made = shapes(data.lanes, from, to, bins), shade = colors(data.index);
    state.shown = { spans: made.spans, merged: made.merged };
    const every = Math.ceil(data.lanes.length / 16), ticks = data.lanes.map((_, i) => i).filter((i) => i % every === 0);
    return Plotly.react(div, ["w", "t", "c"].map((kind) => ({
      type: "scatter", mode: "lines", x: made[kind].x, y: made[kind].y, fill: "toself", fillcolor: shade[kind],
      line: { width: 0, simplify: false }, hoverinfo: "skip", name: NAMES[kind],
    })), Charts.layout({
      margin: { l: 10, r: 14, t: 6, b: 24 }, height: height(data.lanes.length),
      xaxis: Charts.axis({ range: [from, to], ticksuffix: " s", zeroline: false, nticks: 7, title: { text: "" } }),
      yaxis: Charts.axis({
        range: [data.lanes.length - 0.5, -0.5], fixedrange: true, showgrid: false, zeroline: false, automargin: true,
        tickvals: ticks, ticktext: ticks.map((i) => (data.names ? Charts.plain(data.names[i]) : String(i))), title: { text: "node", standoff: 4 },
      }),
    }), Object.assign({}, Charts.config, { doubleClick: false }));
  };

  const show = (div, range) => {
    const state = states.get(div), [low, high] = state.whole;
    if (range) {
      const width = Math.min(range[1] - range[0], high - low), from = Math.max(low, Math.min(range[0], high - width));
      range = width >= high - low ? null : [from, from + width];
    }
    state.range = range;
    render(div);
  };
  const move = (div, range) => {
    show(div, range);
    const { options, range: now } = states.get(div);
    if (options.onRange) options.onRange(now);
  };
  // Closer by a factor, and aside by a share of what is seen.
  const zoom = (div, factor, aside = 0) => {
    const state = states.get(div), [from, to] = state.range || state.whole, width = (to - from) * factor;
    const middle = (from + to) / 2 + aside * (to - from);
    move(div, [middle - width / 2, middle + width / 2]);
  };

  const describe = (data, rank, i) => {
    const lane = data.lanes[rank];
    return "node " + (data.names ? data.names[rank] : rank) + ": " + NAMES[lane.kinds[i]] + " for " +
      Charts.seconds(lane.end[i] - lane.begin[i]) + ", from " + lane.begin[i].toFixed(4) + " s to " + lane.end[i].toFixed(4) + " s";
  };
  const point = (div, event) => {
    const { data, options } = states.get(div), { xaxis, yaxis } = div._fullLayout || {};
    if (!options.tell || !xaxis) return;
    const box = div.getBoundingClientRect();
    const moment = xaxis.p2d(event.clientX - box.left - xaxis._offset), rank = Math.round(yaxis.p2d(event.clientY - box.top - yaxis._offset));
    const i = data.lanes[rank] ? spanAt(data.lanes[rank], moment) : -1;
    options.tell(i < 0 ? "" : describe(data, rank, i));
  };
  const KEYS = {
    "+": [0.5], "=": [0.5], "-": [2], ArrowLeft: [1, -0.25], ArrowRight: [1, 0.25],
  };
  const listen = (div) => {
    div.tabIndex = 0;
    div.on("plotly_relayout", () => {
      const state = states.get(div), [from, to] = div.layout.xaxis.range.map(Number), [a, b] = state.range || state.whole;
      if (from !== a || to !== b) move(div, [from, to]);
    });
    div.on("plotly_doubleclick", () => move(div, null));
    div.addEventListener("mousemove", (event) => point(div, event));
    div.addEventListener("click", (event) => point(div, event));
    div.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "0") move(div, null);
      else if (KEYS[event.key]) zoom(div, ...KEYS[event.key]);
      else return;
      event.preventDefault();
    });
    new ResizeObserver(() => { if (states.get(div).width !== div.clientWidth) { states.get(div).width = div.clientWidth; render(div); } }).observe(div);
  };

  // data: { index, lanes: [{ kinds, begin, end }] from first to last node, seconds?, names? }
  // options: { range?: [from, to] or null for all, onRange?(range), tell?(text) }
  const drawTimeline = (div, data, options = {}) => {
    const known = states.get(div);
    const whole = [0, data.seconds || Math.max(1e-9, ...data.lanes.map((lane) => (lane.end.length ? lane.end[lane.end.length - 1] : 0)))];
    states.set(div, { data, options, whole, range: options.range || null, width: div.clientWidth });
    div.style.height = height(data.lanes.length) + "px";
    const drawn = render(div);
    if (!known) listen(div);
    return drawn;
  };

  const shown = (div) => states.get(div) && states.get(div).shown;
  return { drawTimeline, height, unpack, shares, shapes, spanAt, colors, show, zoom, move, shown, KINDS, NAMES };
})();
