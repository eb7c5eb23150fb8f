"use strict";
// One step: the timeline, predicted above measured, and the memory of a tier over it. Both are drawn on canvases with the
// same axis of time; boxes are found by their places.

const step = {
  run: null,      // id of the run whose step this is
  stamp: 0,       // of its step.json
  data: null,
  from: 0, to: 0, // seconds shown
  blocks: [],     // what is drawn on the timeline: {x, y, w, h, text}
  boxes: [],      // likewise on the map, the largest last
  at: -1,         // the box that is explained
};

const margin = 96, rowTall = 16, rowStep = 19, mapTall = 340;

// loadStep loads the step of the first run that is shown and has one.
async function loadStep() {
  const run = shown().find(r => r.step_stamp);
  $("stepbody").hidden = $("what").hidden = !run;
  $("nostep").hidden = !!run;
  if (!run) { $("nostep").textContent = "None of the runs that are shown has a step.json: a run writes it as it begins."; step.run = null; return; }
  if (step.run === run.id && step.stamp === run.step_stamp) { drawStep(); return; }
  let data;
  try { data = await get("api/step?run=" + run.id); } catch (e) { $("nostep").hidden = false; $("nostep").textContent = String(e.message || e); return; }
  const another = step.run !== run.id;
  Object.assign(step, { run: run.id, stamp: run.step_stamp, data });
  choose($("rank"), [...new Set(data.runs.map(r => String(r.rank)))], another);
  if (another) unzoom();
  drawStep();
  await loadRoof(run);
}

// loadRoof shows what binds the calls of a run's step, as it was planned.
async function loadRoof(run) {
  let roof;
  try { roof = run.roof_stamp ? await get("api/roof?run=" + run.id) : null; } catch { roof = null; }
  $("roofs").hidden = !roof?.kinds;
  if (!roof?.kinds) return;
  $("roof").src = `api/roof.svg?run=${run.id}&stamp=${run.roof_stamp}`;
  rows($("kinds"), [["call", "stream", "FLOP/B", "of the step", "bound by"],
    ...roof.kinds.slice(0, 12).map(k => [k.name, k.stream, k.intensity ? digits(k.intensity) : "", percent(k.share), k.bound])]);
  const gains = roof.gains || [];
  rows($("gains"), gains.length ? [["twice as fast", "the step takes", "saved"], ...gains.map(g => [g.part, seconds(g.step_seconds), percent(g.saved)])]
    : [["no part alone would bring anything"]]);
}

// choose fills a list of choices and keeps what was chosen.
function choose(select, values, anew) {
  const before = select.value;
  select.replaceChildren(...values.map(v => element("option", { value: v }, v)));
  if (!anew && values.includes(before)) select.value = before;
}

const ranOf = name => step.data.runs.find(r => String(r.rank) === $("rank").value && r.name.startsWith(name));

function unzoom() {
  step.from = 0;
  step.to = Math.max(...step.data.runs.map(r => r.seconds), 1e-9);
}

// canvasOf prepares a canvas for pixels of its screen.
function canvasOf(id, tall) {
  const canvas = $(id), wide = canvas.clientWidth, ratio = devicePixelRatio || 1;
  canvas.style.height = tall + "px";
  canvas.width = wide * ratio; canvas.height = tall * ratio;
  const g = canvas.getContext("2d");
  g.scale(ratio, ratio);
  g.clearRect(0, 0, wide, tall);
  g.font = "11px system-ui, sans-serif";
  g.textBaseline = "middle";
  return [g, wide, tall];
}

function drawStep() {
  if (!step.data || state.view !== "step") return;
  const predicted = ranOf("predicted") || step.data.runs[0], measured = ranOf("measured");
  drawTimeline([predicted, measured].filter(Boolean));
  const option = [...$("which").options].find(o => o.value === "measured");
  option.disabled = !measured;
  if (!measured) $("which").value = "predicted";
  const ran = $("which").value === "measured" ? measured : predicted;
  choose($("tier"), ran.tiers.map(t => t.name), false);
  const tier = ran.tiers.find(t => t.name === $("tier").value);
  if (tier) drawMap(ran, tier);
  tellBytes(predicted, measured);
  tellStalls(predicted, measured);
  const run = state.runs.find(r => r.id === step.run);
  $("maptitle").textContent = `Memory of ${run.name}: ${tier ? tier.name : "none"}` + (tier?.omitted_boxes ? ` (without the ${tier.omitted_boxes} smallest boxes)` : "");
}

function drawTimeline(rans) {
  const tall = 24 + rans.reduce((n, r) => n + 22 + r.streams.length * rowStep, 0);
  const [g, wide] = canvasOf("timeline", tall);
  const scale = (wide - margin - 8) / (step.to - step.from), place = t => margin + (t - step.from) * scale;
  step.blocks = [];
  let y = 4;
  for (const r of rans) {
    g.fillStyle = css("--text");
    g.fillText(`${r.name}: ${seconds(r.seconds)}`, 6, y + 9);
    y += 20;
    for (const s of r.streams) {
      g.fillStyle = css("--dim");
      g.fillText(`${s.name} ${Math.round(100 * s.busy_seconds / r.seconds)}%`, 6, y + rowTall / 2);
      g.save();
      g.beginPath(); g.rect(margin, y, wide - margin - 8, rowTall); g.clip();
      for (const b of s.blocks) {
        const x = place(b.s), w = Math.max((b.e - b.s) * scale, .5);
        if (x > wide || x + w < margin) continue;
        g.fillStyle = step.data.works[b.w].colour;
        g.fillRect(x, y, w, rowTall);
        step.blocks.push({ x, y, w: Math.max(w, 2), h: rowTall, text: `${r.name}, ${s.name}: ${b.t}; ${seconds(b.e - b.s)} at ${seconds(b.s)}` });
      }
      for (const b of s.stalls || []) {
        const x = place(b.s), w = (b.e - b.s) * scale;
        if (x > wide || x + w < margin) continue;
        hatch(g, x, y, w, rowTall);
        step.blocks.push({ x, y, w: Math.max(w, 2), h: rowTall, text: `${r.name}: stalled ${seconds(b.e - b.s)} on ${b.on}: ${b.t}` });
      }
      g.restore();
      y += rowStep;
    }
    y += 2;
  }
  axis(g, wide, tall, place);
  legend("works", [...step.data.works, { name: "stall", colour: css("--bad") }]);
}

// hatch marks a stall.
function hatch(g, x, y, w, h) {
  g.save();
  g.beginPath(); g.rect(x, y, w, h); g.clip();
  g.strokeStyle = css("--bad"); g.lineWidth = 1;
  g.beginPath();
  for (let d = Math.max(x, margin) - h; d < Math.min(x + w, g.canvas.width); d += 5) { g.moveTo(d, y + h); g.lineTo(d + h, y); }
  g.stroke();
  g.strokeRect(x + .5, y + .5, w - 1, h - 1);
  g.restore();
}

function axis(g, wide, tall, place) {
  g.fillStyle = css("--dim");
  g.textAlign = "center";
  const marks = Math.max(2, Math.floor((wide - margin) / 130));
  for (let i = 0; i <= marks; i++) {
    const t = step.from + (step.to - step.from) * i / marks;
    g.textAlign = i === marks ? "right" : i ? "center" : "left";
    g.fillText(t ? seconds(t) : "0", place(t), tall - 8);
  }
  g.textAlign = "left";
}

function drawMap(ran, tier) {
  const [g, wide, tall] = canvasOf("map", mapTall);
  const top = Math.max(tier.planned_bytes, tier.reached_bytes, 1), base = tall - 20, up = (base - 14) / top;
  const scale = (wide - margin - 8) / (step.to - step.from), place = t => margin + (t - step.from) * scale;
  step.boxes = [];
  g.save();
  g.beginPath(); g.rect(margin, 0, wide - margin - 8, base); g.clip();
  for (const b of tier.boxes) {
    const x = place(b.s), w = Math.max((b.e - b.s) * scale, .5), h = Math.max(b.n * up, .5), y = base - b.a * up - h;
    if (x > wide || x + w < margin) continue;
    g.fillStyle = step.data.classes[b.c].colour;
    g.fillRect(x, y, w, h);
    if (h > 2 && w > 2) { g.strokeStyle = "rgba(0,0,0,.35)"; g.lineWidth = .5; g.strokeRect(x, y, w, h); }
    step.boxes.push({ x, y, w, h, box: b, text: `${step.data.classes[b.c].name}: ${b.t}; ${bytes(b.n)} at ${b.a}; ${seconds(b.s)} to ${seconds(b.e)}` });
  }
  g.restore();
  step.boxes.sort((a, b) => b.box.n - a.box.n);
  g.strokeStyle = css("--text"); g.setLineDash([5, 4]);
  const line = base - tier.planned_bytes * up;
  g.beginPath(); g.moveTo(margin, line); g.lineTo(wide - 8, line); g.stroke();
  g.setLineDash([]);
  g.fillStyle = css("--text");
  g.fillText(bytes(tier.planned_bytes), 6, line + 2);
  g.fillStyle = css("--dim");
  g.fillText("planned", 6, line + 15);
  g.fillText("0", 6, base - 4);
  axis(g, wide, tall, place);
  const used = step.data.classes.filter((_, i) => tier.boxes.some(b => b.c === i));
  legend("classes", used);
  if (step.at >= step.boxes.length) step.at = -1;
  mark();
}

// mark frames the box that is explained.
function mark() {
  const b = step.boxes[step.at];
  if (!b) return;
  const g = $("map").getContext("2d");
  g.strokeStyle = css("--text"); g.lineWidth = 2;
  g.strokeRect(Math.max(b.x, margin) + 1, b.y + 1, Math.max(b.w - 2, 1), Math.max(b.h - 2, 1));
}

function legend(id, list) {
  $(id).replaceChildren(...list.map(c => element("span", {}, element("i", { style: { background: c.colour } }), c.name)));
}

// tellBytes puts what is planned beside what was reached: of each tier, and of each class.
function tellBytes(predicted, measured) {
  const list = [["bytes", "planned", measured ? "reached" : "", ""]];
  predicted.tiers.forEach(t => {
    const m = measured?.tiers.find(o => o.name === t.name);
    list.push([t.name, t.planned_bytes.toLocaleString("en"), m ? m.reached_bytes.toLocaleString("en") : "", verdict(t.planned_bytes, m?.reached_bytes)]);
    step.data.classes.forEach((c, i) => {
      if (t.most_bytes[i]) list.push(["\u2003" + c.name + ", most at once", t.most_bytes[i].toLocaleString("en"), m ? m.most_bytes[i].toLocaleString("en") : "", ""]);
    });
  });
  rows($("bytes"), list);
}

const verdict = (planned, reached) => reached === undefined ? "" : reached === planned ? "as planned" : reached < planned ? "less" : "more than planned: a bug";

// tellStalls sums stalls by what the compute stream waits for.
function tellStalls(predicted, measured) {
  const sum = ran => {
    const by = {};
    for (const s of ran?.streams || []) for (const b of s.stalls || []) by[b.on] = (by[b.on] || 0) + b.e - b.s;
    return by;
  };
  const p = sum(predicted), m = sum(measured), names = [...new Set([...Object.keys(p), ...Object.keys(m)])];
  const list = [["computing waits for", "predicted", measured ? "measured" : ""]];
  for (const n of names) list.push([n, cell(p[n], predicted), measured ? cell(m[n], measured) : ""]);
  if (!names.length) list.push(["nothing", "", ""]);
  rows($("stalls"), list);
}
const cell = (s, ran) => s ? `${seconds(s)} (${percent(s / ran.seconds)})` : "0";

// found returns the topmost thing at a place.
function found(list, e) {
  const x = e.offsetX, y = e.offsetY;
  for (let i = list.length - 1; i >= 0; i--) {
    const b = list[i];
    if (x >= b.x && x <= b.x + b.w && y >= b.y && y <= b.y + b.h) return i;
  }
  return -1;
}

// zoomable lets a canvas be dragged across.
function zoomable(canvas) {
  let began = null;
  const time = x => step.from + (Math.min(Math.max(x, margin), canvas.clientWidth - 8) - margin) / (canvas.clientWidth - margin - 8) * (step.to - step.from);
  canvas.addEventListener("pointerdown", e => { began = e.offsetX; });
  addEventListener("pointerup", e => {
    if (began === null) return;
    const a = time(began), b = time(e.target === canvas ? e.offsetX : began);
    if (Math.abs(b - a) * (canvas.clientWidth - margin) / (step.to - step.from) > 6) { step.from = Math.min(a, b); step.to = Math.max(a, b); drawStep(); }
    began = null;
  });
  canvas.addEventListener("dblclick", () => { unzoom(); drawStep(); });
}

function startStep() {
  zoomable($("timeline"));
  zoomable($("map"));
  $("timeline").addEventListener("pointermove", e => { const i = found(step.blocks, e); if (i >= 0) $("box").textContent = step.blocks[i].text; });
  const explain = i => { step.at = i; drawStep(); if (step.boxes[i]) $("box").textContent = step.boxes[i].text; };
  for (const event of ["pointermove", "pointerdown"]) $("map").addEventListener(event, e => {
    const i = found(step.boxes, e);
    if (i !== step.at && (i >= 0 || event === "pointerdown")) explain(i);
  });
  $("map").addEventListener("keydown", e => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
    if (!move || !step.boxes.length) return;
    e.preventDefault();
    explain((step.at + move + step.boxes.length) % step.boxes.length);
  });
  for (const id of ["rank", "tier", "which"]) $(id).addEventListener("change", () => { step.at = -1; drawStep(); });
  $("unzoom").addEventListener("click", () => { unzoom(); drawStep(); });
}
