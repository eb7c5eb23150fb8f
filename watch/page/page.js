"use strict";
// The page: views, runs, keys, and what the server says of changes.

const views = ["curves", "step", "compare", "alerts", "samples"];

function show(view) {
  state.view = view;
  for (const v of views) {
    $(v).hidden = v !== view;
    $("tab-" + v).setAttribute("aria-selected", v === view);
    $("tab-" + v).tabIndex = v === view ? 0 : -1;
  }
  if (location.hash !== "#" + view) history.replaceState(null, "", "#" + view);
  draw();
}

function draw() {
  $("none").hidden = state.runs.length > 0;
  ({ curves: drawCurves, step: loadStep, compare: drawCompare, alerts: drawAlerts, samples: drawSamples })[state.view]();
}

// listRuns lists the runs with what they do.
function listRuns() {
  const list = $("runs"), focused = document.activeElement?.dataset?.run;
  list.replaceChildren(...state.runs.map(r => {
    const tick = element("input", { type: "checkbox", checked: !state.hidden.has(r.id) });
    tick.dataset.run = r.id;
    tick.addEventListener("change", () => { tick.checked ? state.hidden.delete(r.id) : state.hidden.add(r.id); draw(); });
    const of = r.config?.max_steps ? " of " + digits(+r.config.max_steps) : "";
    const told = r.rows ? `step ${digits(r.latest.step)}${of}, loss ${digits(r.latest.loss)}` : "not a step yet";
    const label = element("label", {}, tick, element("span", { className: "swatch", style: { background: colourOf(r) } }), element("span", { className: "name" }, r.name),
      element("span", { className: "state" }, told, r.live ? element("span", { className: "live" }, ` \u25cf live${eta(r)}`) : null,
        r.silent_seconds ? `; no step for ${seconds(r.silent_seconds)}` : null,
        r.firing ? element("span", { className: "bad" }, `; alerts: ${r.firing}`) : null,
        r.damaged_lines ? element("span", { className: "bad" }, `; ${r.damaged_lines} lines cannot be read`) : null,
        r.problem ? element("span", { className: "bad" }, "; " + r.problem) : null));
    return element("li", {}, label);
  }));
  if (focused !== undefined) list.querySelector(`[data-run="${focused}"]`)?.focus();
}

// eta says how long a run will take at the pace of its steps so far, within its max_time.
function eta(r) {
  const steps = +r.config?.max_steps - r.latest.step, pace = r.latest.elapsed_seconds / r.rows;
  const most = duration(r.config?.max_time) - r.latest.elapsed_seconds;
  const left = most > 0 ? Math.min(most, steps > 0 ? steps * pace : most) : steps * pace;
  return left > 0 && pace > 0 ? `, ${seconds(left)} left` : "";
}

// duration reads a time such as 1h30m; NaN: there is none.
function duration(text) {
  const each = { h: 3600, m: 60, s: 1, ms: 1e-3 };
  const parts = [...String(text ?? "").matchAll(/([\d.]+)(ms|h|m|s)/g)];
  return parts.length ? parts.reduce((sum, [, n, unit]) => sum + n * each[unit], 0) : NaN;
}

function drawCompare() {
  const list = shown();
  const value = (r, k, write = digits) => k in r.latest ? write(r.latest[k]) : "";
  const mean = r => r.rows ? r.latest.elapsed_seconds / r.rows : NaN;
  rows($("table"), [["run", "step", "tokens", "loss", "validation", "seconds per step, mean", "predicted", "tokens per second", "MFU"],
    ...list.map(r => [r.name, value(r, "step"), value(r, "tokens", short), value(r, "loss"), value(r, "val_loss"), r.rows ? seconds(mean(r)) : "",
      value(r, "predicted_step_seconds", seconds), value(r, "tokens_per_second"), value(r, "mfu", percent)])]);
  const keys = [...new Set(list.flatMap(r => Object.keys(r.config || {})))].sort();
  const differing = keys.filter(k => new Set(list.map(r => r.config?.[k])).size > 1);
  rows($("diff"), differing.length ? [["key", ...list.map(r => r.name)], ...differing.map(k => [k, ...list.map(r => r.config?.[k] ?? "\u2013")])]
    : [[list.length > 1 ? "nowhere" : "with one run there is nothing to compare"]]);
}

function drawAlerts() {
  const list = shown().flatMap(r => r.alerts.map(a => ({ r, a }))).sort((p, q) => q.a.step - p.a.step);
  rows($("alertlist"), list.length ? [["run", "step", "", "what"], ...list.map(({ r, a }) => [
    element("span", { style: { color: colourOf(r) } }, r.name), digits(a.step), a.firing ? element("b", { className: "bad" }, "fires") : "over", a.text])]
    : [["No alert has fired."]]);
}

async function drawSamples() {
  const parts = [];
  for (const r of shown().filter(r => r.samples_stamp)) {
    let text;
    try { text = await (await fetch("api/samples?run=" + r.id)).text(); } catch { continue; }
    for (const line of text.split("\n").slice(-50)) {
      let s;
      try { s = JSON.parse(line); } catch { continue; }
      parts.unshift(element("article", {}, element("strong", { style: { color: colourOf(r) } }, `${r.name}, step ${digits(s.step)}`),
        element("pre", {}, ...(s.text?.startsWith(s.prompt) ? [element("mark", {}, s.prompt), s.text.slice(s.prompt.length)] : [s.text || ""]))));
    }
  }
  $("texts").replaceChildren(...(parts.length ? parts : [element("p", { className: "empty" }, "These runs have no samples: sample in a configuration asks for one.")]));
}

// refresh asks what is new.
async function refresh() {
  let answer;
  try { answer = await get("api/runs"); } catch { return; }
  state.runs = answer.runs;
  listRuns();
  const firing = state.runs.reduce((n, r) => n + r.firing, 0);
  $("tab-alerts").textContent = firing ? `Alerts (${firing})` : "Alerts";
  $("tab-alerts").classList.toggle("bad", firing > 0);
  const live = state.runs.filter(r => r.live);
  document.title = live.length === 1 ? `${digits(live[0].latest.loss)} \u00b7 ${live[0].name}` : "Athanor";
  draw();
}

// follow is told of changes, and asks what they are: once at a time, and not while nobody looks.
function follow() {
  let busy = false, again = false;
  const ask = async () => {
    if (busy || document.hidden) { again = true; return; }
    busy = true; again = false;
    await refresh();
    busy = false;
    if (again) ask();
  };
  const source = new EventSource("api/changes");
  source.onmessage = ask;
  source.onopen = () => { $("link").className = ""; $("link").textContent = "connected"; };
  source.onerror = () => { $("link").className = "lost"; $("link").textContent = "not connected: these numbers stand still"; };
  document.addEventListener("visibilitychange", () => { if (!document.hidden && again) ask(); });
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  draw();
}

function start() {
  let saved = null;
  try { saved = localStorage.getItem("theme"); } catch { /* no storage: the system's theme */ }
  document.documentElement.dataset.theme = saved || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  for (const v of views) $("tab-" + v).addEventListener("click", () => show(v));
  document.querySelector("nav").addEventListener("keydown", e => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!move) return;
    show(views[(views.indexOf(state.view) + move + views.length) % views.length]);
    $("tab-" + state.view).focus();
  });
  const actions = {
    l: () => { $("log").checked = state.log = !state.log; draw(); },
    r: () => document.querySelector("#runs input")?.focus(),
    t: () => $("theme").click(),
    0: () => { state.zoom = null; if (step.data) unzoom(); draw(); },
  };
  views.forEach((v, i) => { actions[i + 1] = () => show(v); });
  addEventListener("keydown", e => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.tagName === "SELECT") return;
    actions[e.key]?.();
  });
  $("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", theme); } catch { /* it holds until the page is closed */ }
    setTheme(theme);
  });
  $("x").addEventListener("change", () => { state.x = $("x").value; state.zoom = null; draw(); });
  $("log").addEventListener("change", () => { state.log = $("log").checked; draw(); });
  $("smooth").addEventListener("input", () => {
    state.half = +$("smooth").value ? 2 ** +$("smooth").value : 0;
    $("smoothed").textContent = state.half ? `half in ${state.half} steps` : "none";
    draw();
  });
  $("reset").addEventListener("click", actions[0]);
  for (const id of ["axes", "what"]) $(id).addEventListener("submit", e => e.preventDefault());
  let resized;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(draw, 150); });
  startStep();
  const asked = location.hash.slice(1);
  show(views.includes(asked) ? asked : "curves");
  follow();
}
start();
