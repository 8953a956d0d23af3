// The pointer over charts: a line at its place in all charts of a view that have the same axis of times, and in each of
// them the nearest point and its value.

import { fill, s } from "./dom.js";

/**
 * Where the reader points, for the charts of one axis. It belongs to the view, so it outlives redraws.
 * `share`: of the axis' length, from 0 to 1; null: nowhere.
 */
export function pointer(context, axis) {
  const all = (context.memory.pointers ??= {});
  return (all[axis] ??= { axis, share: null });
}

/**
 * What a chart needs to follow the pointer: {props, parts}. `props` are the svg's, `parts` its last child.
 * @param pointed see pointer()
 * @param frame the plot's place in the svg: width of the svg, left, right, top, bottom; readoutY: the text's baseline
 * @param near the chart's point at a share of the axis: (share) => {x, y, text}
 * @param rest the marked point while nobody points, {x, y}; null: none
 */
export function crosshair(pointed, { width, left, right, top, bottom, readoutY = top + 4 }, { near, rest = null, kind = "a" }) {
  const drawn = () => {
    const found = pointed.share === null ? rest : near(pointed.share);
    const x = left + pointed.share * (width - left - right);
    return [
      found ? s("circle", { class: `mark ${kind}`, r: 3.5, cx: found.x, cy: found.y }) : null,
      pointed.share === null ? null : s("line", { class: "cross", x1: x, x2: x, y1: top, y2: bottom }),
      pointed.share === null ? null : s("text", { class: "axis readout", x: width - right, y: readoutY, "text-anchor": "end" }, found?.text ?? ""),
    ];
  };
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const share = ((event.clientX - box.left) * (width / box.width) - left) / (width - left - right);
    show(pointed, Math.min(1, Math.max(0, share)));
  };
  // (A finger that is lifted leaves the chart: what it pointed at stays.)
  const leave = (event) => { if (event.pointerType !== "touch") show(pointed, null); };
  return {
    props: { "data-axis": pointed.axis, on: { pointerdown: point, pointermove: point, pointerleave: leave, crosshair: (event) => fill(event.currentTarget.querySelector(".pointed"), drawn()) } },
    parts: s("g", { class: "pointed" }, drawn()),
  };
}

function show(pointed, share) {
  pointed.share = share;
  for (const chart of document.querySelectorAll(`svg[data-axis="${pointed.axis}"]`)) chart.dispatchEvent(new Event("crosshair"));
}
