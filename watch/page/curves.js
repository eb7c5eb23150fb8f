"use strict";
// The curves. The server reduces them to the width of a picture without losing a spike, anew for each zoom.

// One row per picture: its title, the columns that it shows, how values are written. Dashed: what was predicted.
const pictures = [
  { title: "Loss", keys: ["loss", "val_loss"], names: { val_loss: "validation" }, log: true, smooth: true, unit: "nats per token" },
  { title: "Learning rate", keys: ["learning_rate"], log: true },
  { title: "Gradient norm", keys: ["grad_norm", "grad_norm_bound"], names: { grad_norm_bound: "bound" }, dashed: ["grad_norm_bound"], log: true, smooth: true, unit: "before clipping" },
  { title: "Tokens per second", keys: ["tokens_per_second", "predicted_tokens_per_second"], names: { predicted_tokens_per_second: "predicted" }, dashed: ["predicted_tokens_per_second"], smooth: true },
  { title: "MFU", keys: ["mfu", "predicted_mfu"], names: { predicted_mfu: "predicted" }, dashed: ["predicted_mfu"], smooth: true, write: percent, unit: "of the measured peak" },
  { title: "Seconds per step", keys: ["step_seconds", "predicted_step_seconds"], names: { predicted_step_seconds: "predicted" }, dashed: ["predicted_step_seconds"], log: true, smooth: true, write: seconds },
];
// Columns that need no picture of their own.
const unpictured = new Set(["step", "tokens", "elapsed_seconds", "skipped", "crc", "skipped_steps", ...pictures.flatMap(p => p.keys)]);

const charts = new Map(); // by title: {picture, plot, box, request}

// allPictures adds a picture for each column that no row names, such as rewards of pairs.
function allPictures() {
  const more = new Set();
  for (const r of shown()) for (const k of r.keys) if (!unpictured.has(k)) more.add(k);
  return [...pictures, ...[...more].sort().map(k => ({ title: k.replaceAll("_", " "), keys: [k], smooth: true }))];
}

function drawCurves() {
  const wanted = allPictures().filter(p => shown().some(r => p.keys.some(k => r.keys.includes(k))));
  for (const [title, c] of charts) {
    if (!wanted.some(p => p.title === title)) { c.plot?.destroy(); c.box.remove(); charts.delete(title); }
  }
  for (const p of wanted) {
    if (!charts.has(p.title)) {
      const box = element("div", { className: "chart" }, element("h3", {}, p.title, element("small", {}, p.unit || "")),
        element("div", { className: "plot" }), element("div", { className: "tip" }), element("div", { className: "broken" }));
      $("charts").append(box);
      charts.set(p.title, { picture: p, box, plot: null, request: 0 });
    }
    refreshChart(charts.get(p.title));
  }
}

// refreshChart asks for a picture's curves and draws them. Of two answers the later request's counts.
async function refreshChart(c) {
  const request = ++c.request, p = c.picture;
  const width = Math.max(200, c.box.clientWidth - 20);
  const query = new URLSearchParams({ x: state.x, pixels: Math.round(width * devicePixelRatio) });
  for (const r of shown()) query.append("run", r.id);
  for (const k of p.keys) query.append("key", k);
  if (state.zoom) { query.set("from", state.zoom[0]); query.set("to", state.zoom[1]); }
  if (state.half && p.smooth) query.set("smooth", state.half);
  let answer;
  try { answer = await get("api/series?" + query); } catch { return; }
  if (request !== c.request) return;
  const curves = answer.curves.filter(v => v.x.length > 0);
  const broken = curves.flatMap(v => v.x.filter((_, i) => v.y[i] === null).map(x => `${nameOf(v, p)} at ${digits(x)}`));
  c.box.querySelector(".broken").textContent = broken.length ? "not finite: " + broken.slice(0, 4).join(", ") + (broken.length > 4 ? ", ..." : "") : "";
  plotCurves(c, curves, width);
}

const nameOf = (curve, p) => {
  const run = state.runs.find(r => r.id === curve.run), name = p.names?.[curve.key];
  return (run ? run.name : "") + (name ? " " + name : "");
};

// plotCurves draws curves that have points of their own: uPlot wants one list of x for all.
function plotCurves(c, curves, width) {
  const p = c.picture, write = p.write || digits;
  const data = curves.length ? uPlot.join(curves.map(v => [v.x, v.y])) : [[]];
  const signature = curves.map(v => v.run + v.key).join() + width + state.log + document.documentElement.dataset.theme + state.x;
  c.curves = curves;
  if (c.plot && c.signature === signature) { c.plot.setData(data, false); fit(c.plot, data); return; }
  c.plot?.destroy();
  c.signature = signature;
  const tip = c.box.querySelector(".tip");
  const axis = { stroke: css("--dim"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 }, font: "11px system-ui, sans-serif" };
  c.plot = new uPlot({
    width, height: 210, legend: { show: false },
    scales: { x: { time: false }, y: { distr: state.log && p.log ? 3 : 1 } },
    axes: [
      { ...axis, size: 34, values: (u, list) => list.map(v => state.x === "elapsed_seconds" ? seconds(v) : short(v)) },
      { ...axis, size: 62, values: (u, list) => list.map(v => v === null ? "" : write(v, 3)) },
    ],
    series: [{}, ...curves.map(v => ({
      stroke: colourOf(state.runs.find(r => r.id === v.run)), width: v.key === "val_loss" ? 2 : 1.2,
      dash: p.dashed?.includes(v.key) ? [6, 4] : undefined, // what is not finite, null, is a gap; where only another curve has a point, undefined, there is none
      points: { show: v.x.length < 60 || v.key === "val_loss", size: v.key === "val_loss" ? 6 : 4 },
    }))],
    cursor: { sync: { key: "x" }, drag: { x: true, y: false, setScale: false }, y: false, dataIdx: nearest },
    hooks: {
      setSelect: [u => {
        if (u.select.width < 3) return;
        state.zoom = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        drawCurves();
      }],
      setCursor: [u => tip.replaceChildren(...readOut(u, c, write), ...(u.cursor.left < 0 ? [key(p, c.curves)] : []))],
      ready: [u => u.over.addEventListener("dblclick", () => { state.zoom = null; drawCurves(); })],
    },
  }, data, c.box.querySelector(".plot"));
  tip.replaceChildren(key(p, curves));
  fit(c.plot, data);
}

// key says which lines are which, where a picture has several of a run.
const key = (p, curves) => Object.entries(p.names || {}).filter(([k]) => curves.some(v => v.key === k)).map(([k, name]) => `${p.dashed?.includes(k) ? "dashed" : "with dots"}: ${name}`).join(", ");

// fit shows the chosen range of x, or all.
function fit(u, data) {
  const x = data[0];
  if (!x.length) return;
  u.setScale("x", state.zoom ? { min: state.zoom[0], max: state.zoom[1] } : { min: x[0], max: x[x.length - 1] > x[0] ? x[x.length - 1] : x[0] + 1 });
}

// nearest returns the index at which a series has its point nearest to the pointer.
function nearest(u, series, at) {
  if (series === 0) return at;
  const y = u.data[series];
  for (let d = 0; d < y.length; d++) {
    if (y[at - d] !== undefined && y[at - d] !== null) return at - d;
    if (y[at + d] !== undefined && y[at + d] !== null) return at + d;
  }
  return at;
}

// readOut lists the values at the pointer.
function readOut(u, c, write) {
  if (u.cursor.idx === null || u.cursor.left < 0) return [];
  const list = [`${state.x === "elapsed_seconds" ? "after" : state.x} `, element("b", {}, state.x === "elapsed_seconds" ? seconds(u.data[0][u.cursor.idx]) : digits(u.data[0][u.cursor.idx])), " "];
  c.curves.forEach((v, i) => {
    const y = u.data[i + 1]?.[u.cursor.idxs?.[i + 1] ?? u.cursor.idx];
    if (y === undefined || y === null) return;
    const run = state.runs.find(r => r.id === v.run), name = c.picture.names?.[v.key];
    list.push(element("span", { style: { color: colourOf(run) } }, ` ${c.curves.length > 1 ? (name || run.name) + " " : ""}`), element("b", {}, write(y)));
  });
  return list;
}

function short(v) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (Math.abs(v) >= size) return +(v / size).toPrecision(4) + unit;
  return String(+v.toPrecision(6));
}
