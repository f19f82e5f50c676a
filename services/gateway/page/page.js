"use strict";
// What the gateway's /status says, once a second, and a chat with /v1/chat/completions. Everything is shown as text: nothing that comes
// from the service or the model becomes markup.

const $ = id => document.getElementById(id);
const SAMPLES = 300;
let key = sessionStorage.getItem("key") || "";
let samples = [], marked = null, asking = null;
const turns = [];

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

const known = value => value !== null && value !== undefined;
const fixed = digits => value => known(value) ? value.toFixed(digits) : "–";
const share = value => known(value) ? (100 * value).toFixed(value >= 0.9995 ? 0 : 1) + " %" : "–";
const rate = value => known(value) ? value.toFixed(value < 100 ? 1 : 0) : "–";
const ratio = (part, whole) => whole > 0 ? part / whole : null;

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < units.length - 1; unit++) bytes /= 1024;
  return bytes.toFixed(bytes < 10 && unit > 0 ? 1 : 0) + " " + units[unit];
}

function period(seconds) {
  if (seconds < 60) return Math.floor(seconds) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min";
  if (seconds < 86400) return Math.floor(seconds / 3600) + " h " + Math.floor(seconds % 3600 / 60) + " min";
  return Math.floor(seconds / 86400) + " d " + Math.floor(seconds % 86400 / 3600) + " h";
}

// Asking.

const headers = more => key ? { Authorization: "Bearer " + key, ...more } : { ...more };

function askKey(wrong) {
  if ($("key-dialog").open) return;
  $("key-wrong").hidden = !wrong;
  $("key").value = "";
  $("key-dialog").showModal();
}

function useKey(event) {
  event.preventDefault();
  key = $("key").value.trim();
  sessionStorage.setItem("key", key);
  $("key-dialog").close();
  look();
}

// Figures.

const figures = [
  ["tokens per second", s => rate(samples.length ? samples[samples.length - 1].tokens_per_s : null)],
  ["draft length K", s => fixed(1)(s.k)],
  ["utility of drafts", s => fixed(2)(s.utility)],
  ["drafts accepted", s => share(s.accepted)],
  ["expert hits", s => share(hitsOf(s))],
  ["sessions", s => s.running + " of " + s.places + (s.waiting ? ", " + s.waiting + " wait" : "")],
];

// Of the last samples where experts were used; else since the cache began.
function hitsOf(status) {
  for (let i = samples.length - 1; i >= 0 && i >= samples.length - 10; i--)
    if (known(samples[i].hits)) return samples[i].hits;
  return status.cache ? ratio(status.cache.hits, status.cache.hits + status.cache.misses) : null;
}

function showFigures(status) {
  for (const [i, [, value]] of figures.entries()) $("figures").children[i].firstChild.textContent = value(status);
}

// The timeline. One small curve each, all of the same moments.

const charts = [
  ["tokens_per_s", "Tokens per second", rate],
  ["k", "Draft length K", fixed(1)],
  ["utility", "Utility", fixed(2)],
  ["accepted", "Accepted", share, 1],
  ["hits", "Expert hits", share, 1],
  ["running", "Sessions running", fixed(0)],
];

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  return node;
}

function makeCharts() {
  for (const [field, title] of charts) {
    const chart = make("div", "chart"), picture = svg("svg", { viewBox: "0 0 " + SAMPLES + " 100", preserveAspectRatio: "none", role: "img" });
    picture.setAttribute("aria-label", title);
    picture.append(svg("path", { class: "area" }), svg("path", { class: "curve" }), svg("line", { class: "mark", y1: 0, y2: 100, visibility: "hidden" }));
    picture.addEventListener("pointermove", event => {
      const box = picture.getBoundingClientRect();
      marked = Math.round((event.clientX - box.left) / box.width * SAMPLES);
      showCharts();
    });
    picture.addEventListener("pointerleave", () => { marked = null; showCharts(); });
    chart.id = "chart-" + field;
    chart.append(make("span", "", title), picture, make("output"));
    $("charts").append(chart);
  }
  const ages = make("div", "ages");
  ages.append(make("span", "", "5 min ago"), make("span", "", "now"));
  $("charts").append(ages);
}

// The x of a sample: now is at the right. Stretches without a value are gaps.
function paths(field, most) {
  let curve = "", area = "", begun = null, last = 0;
  const close = () => { if (begun !== null) area += "L" + last + " 100L" + begun + " 100Z"; begun = null; };
  samples.forEach((sample, i) => {
    const x = SAMPLES - samples.length + i + 1, value = sample[field];
    if (!known(value)) { close(); return; }
    const y = (97 - 92 * Math.min(value / most, 1)).toFixed(1);
    curve += (begun === null ? "M" : "L") + x + " " + y;
    area += (begun === null ? "M" : "L") + x + " " + y;
    if (begun === null) begun = x;
    last = x;
  });
  close();
  return [curve, area];
}

function showCharts() {
  const at = marked === null ? samples.length - 1 : marked - (SAMPLES - samples.length) - 1;
  for (const [field, , print, bound] of charts) {
    const chart = $("chart-" + field), [area, curve, mark] = chart.querySelector("svg").children;
    const most = bound || Math.max(1, ...samples.map(s => s[field] || 0)) * 1.05;
    const [curvePath, areaPath] = paths(field, most);
    curve.setAttribute("d", curvePath);
    area.setAttribute("d", areaPath);
    mark.setAttribute("visibility", marked === null ? "hidden" : "visible");
    if (marked !== null) { mark.setAttribute("x1", marked); mark.setAttribute("x2", marked); }
    chart.querySelector("output").textContent = print(samples[at] ? samples[at][field] : null);
  }
}

// Tables.

function fill(table, rows) {
  const body = table.tBodies[0], fresh = document.createDocumentFragment();
  for (const [className, cells] of rows) {
    const row = make("tr", className);
    cells.forEach((text, i) => row.append(make("td", table.tHead.rows[0].cells[i].className, text)));
    fresh.append(row);
  }
  body.replaceChildren(fresh);
}

function showSessions(status) {
  const order = { running: 0, prefill: 1, queued: 2 };
  const all = [...status.sessions].sort((a, b) => (order[a.state] ?? 3) - (order[b.state] ?? 3) || a.age_s - b.age_s);
  fill($("sessions"), all.slice(0, 100).map(s => [s.state in order ? "" : "ended",
    [s.name.slice(0, 11), s.state, s.output_tokens + (s.max_tokens ? " of " + s.max_tokens : ""), s.k, s.draft_method,
      share(ratio(s.accepted, s.drafted)), fixed(2)(s.utility), s.tokens_per_s > 0 ? rate(s.tokens_per_s) : "–"]]));
  $("sessions-count").textContent = status.running + " running, " + status.waiting + " waiting";
  $("sessions-none").hidden = all.length > 0;
  $("sessions").hidden = all.length === 0;
}

function showProcesses(status) {
  fill($("processes"), status.processes.map(p => ["", [p.name, p.state, p.rss_bytes ? size(p.rss_bytes) : "–",
    p.uptime_s ? period(p.uptime_s) : "–", p.restarts]]));
  const cache = status.cache, list = [];
  if (status.kv_tokens) list.push(["KV cache", status.kv_held_tokens + " of " + status.kv_tokens + " tokens"]);
  if (cache) list.push(["Experts in memory", cache.resident + " of room for " + cache.slots + " (" + size(cache.budget_bytes) + ")"],
    ["Read", size(cache.loaded_bytes)], ["Cache policy", cache.policy]);
  if (status.policy) list.push(["K chosen by", status.policy]);
  $("memory").replaceChildren(...list.map(([name, value]) => {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", value));
    return pair;
  }));
}

function showState(text, className) {
  $("state").textContent = text;
  $("state").className = "state " + className;
}

function show(status) {
  const fresh = status.timeline;
  if (fresh.length && samples.length && fresh[0].number !== samples[samples.length - 1].number + 1) samples = [];
  samples = samples.concat(fresh).slice(-SAMPLES);
  $("model").textContent = status.model ? status.model + (status.context ? ", " + status.context + " tokens of context" : "") : "";
  showState(status.state, status.ready ? "ready" : "");
  if (!status.processes) return;
  showFigures(status);
  showCharts();
  showSessions(status);
  showProcesses(status);
}

async function look() {
  const after = samples.length ? samples[samples.length - 1].number : 0;
  try {
    const reply = await fetch("/status?after=" + after, { headers: headers(), cache: "no-store" });
    if (reply.status === 401) { showState("needs a key", ""); askKey(key !== ""); return; }
    if (!reply.ok) throw new Error("HTTP " + reply.status);
    show(await reply.json());
  } catch (error) {
    showState("the gateway does not answer", "down");
  }
}

// The chat.

function addTurn(who) {
  const turn = make("div", "turn " + who);
  $("chat").querySelector(".hint")?.remove();
  $("chat").append(turn);
  return turn;
}

function follow(change) {
  const chat = $("chat"), below = chat.scrollHeight - chat.scrollTop - chat.clientHeight < 30;
  change();
  if (below) chat.scrollTop = chat.scrollHeight;
}

function told(last, seconds) {
  const words = [];
  if (last.usage) words.push(last.usage.completion_tokens + " tokens");
  if (last.timings && last.timings.predicted_per_second > 0) words.push(last.timings.predicted_per_second.toFixed(1) + " tokens/s");
  if (seconds !== null) words.push("first after " + (seconds < 1 ? (1000 * seconds).toFixed(0) + " ms" : seconds.toFixed(1) + " s"));
  if (last.outrider && last.outrider.drafted) words.push(last.outrider.accepted + " of " + last.outrider.drafted + " drafted accepted");
  if (last.outrider) words.push("seed " + last.outrider.seed);
  return words.join(", ");
}

// The objects of a stream of server-sent events.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines)
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
  }
}

async function refused(reply) {
  let text = "HTTP " + reply.status;
  try { text = (await reply.json()).error.message; } catch (error) { /* it was no error object */ }
  if (reply.status === 401) askKey(key !== "");
  return new Error(text);
}

// Streams one answer into the turn; what was said.
async function stream(turn, signal) {
  const begun = performance.now(), said = make("span"), thought = make("span", "thought");
  let first = null, last = {};
  const body = { messages: turns, stream: true, stream_options: { include_usage: true } };
  if ($("greedy").checked) body.temperature = 0;
  const reply = await fetch("/v1/chat/completions",
    { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal });
  if (!reply.ok) throw await refused(reply);
  for await (const event of events(reply.body)) {
    if (event.error) throw new Error(event.error.message);
    const delta = event.choices.length ? event.choices[0].delta : {};
    if (event.usage) last = event;
    if (!delta.content && !delta.reasoning_content) continue;
    if (first === null) { first = (performance.now() - begun) / 1000; turn.append(said); }
    follow(() => {
      if (delta.reasoning_content) { if (!thought.parentNode) turn.prepend(thought); thought.append(delta.reasoning_content); }
      if (delta.content) said.append(delta.content);
    });
  }
  follow(() => turn.append(make("span", "told", told(last, first))));
  return said.textContent;
}

async function send() {
  const text = $("question").value.trim();
  if (asking) { asking.abort(); return; }
  if (!text) return;
  asking = new AbortController();
  $("question").value = "";
  $("send").textContent = "Stop";
  turns.push({ role: "user", content: text });
  follow(() => { addTurn("user").textContent = text; });
  const turn = addTurn("assistant");
  try {
    turns.push({ role: "assistant", content: await stream(turn, asking.signal) });
  } catch (error) {
    const stopped = error.name === "AbortError";
    // The conversation goes on from what there is.
    if (stopped && turn.textContent) turns.push({ role: "assistant", content: turn.textContent });
    else turns.pop();
    follow(() => turn.append(make("span", "told" + (stopped ? "" : " bad"), stopped ? "stopped" : error.message)));
  }
  asking = null;
  $("send").textContent = "Send";
  look();
}

function clearChat() {
  if (asking) asking.abort();
  turns.length = 0;
  $("chat").replaceChildren();
  $("question").focus();
}

// All of it.

for (const [title] of figures) {
  const figure = make("div", "figure");
  figure.append(make("b", "", "–"), make("span", "", title));
  $("figures").append(figure);
}
makeCharts();
$("send").addEventListener("click", send);
$("clear").addEventListener("click", clearChat);
$("question").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); if (!asking) send(); }
});
$("key-form").addEventListener("submit", useKey);
look();
setInterval(() => { if (!document.hidden && !$("key-dialog").open) look(); }, 1000);
