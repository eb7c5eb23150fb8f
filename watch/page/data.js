"use strict";
// What the page knows, and how numbers are written.

// Colours of runs: those of Okabe and Ito, which people with common forms of colour blindness distinguish.
const runColours = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8a6d00", "#7f7f7f", "#6a51a3", "#b15928"];

const state = {
  runs: [],          // as the server lists them
  hidden: new Set(), // ids of the runs that are not shown
  view: "curves",
  x: "step",
  zoom: null,        // [from, to] of x; null: all
  half: 0,           // of the smoothing, in steps
  log: false,
};

const $ = id => document.getElementById(id);
const colourOf = run => runColours[run.id % runColours.length];
const shown = () => state.runs.filter(r => !state.hidden.has(r.id));

// get asks the server for JSON.
async function get(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// element makes an element with attributes and children; texts are escaped by being texts.
function element(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") Object.assign(e.style, value);
    else e[key] = value;
  }
  e.append(...children.filter(c => c !== null && c !== undefined));
  return e;
}

// rows fills a table: a list of lists of cells, the first of which is the head.
function rows(table, list) {
  table.replaceChildren(...list.map((cells, i) => element("tr", {}, ...cells.map(c => element(i ? "td" : "th", {}, c)))));
}

function digits(x, n = 4) {
  if (x === null || x === undefined) return "not finite";
  const size = Math.abs(x);
  if (x === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return x.toExponential(n - 2);
  if (size >= 1000) return Math.round(x).toLocaleString("en").replaceAll(",", "\u2009");
  return String(+x.toPrecision(n));
}
function seconds(s) {
  if (s === 0) return "0";
  if (s >= 3600) return digits(s / 3600, 3) + " h";
  if (s >= 60) return digits(s / 60, 3) + " min";
  if (s >= 1) return digits(s, 3) + " s";
  if (s >= 1e-3) return digits(s * 1e3, 3) + " ms";
  return digits(s * 1e6, 3) + " \u00b5s";
}
function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  while (n >= 1024 && u < units.length - 1) { n /= 1024; u++; }
  return +n.toPrecision(4) + " " + units[u];
}
const percent = x => digits(100 * x, 3) + " %";
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
