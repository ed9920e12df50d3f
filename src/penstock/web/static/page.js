// Keeps an open page current: one stream of events, parts of the page that are exchanged where they have changed.
"use strict";

const root = document.querySelector("[data-live]");
const linkState = document.getElementById("link-state");
const charts = window.penstockCharts ? window.penstockCharts(root) : null;
const shown = new Map();
let source = null;
let watchdog = 0;

function say(word, text) {
  if (linkState.textContent !== text) linkState.textContent = text;
  linkState.className = `link-state ${word}`;
}

// The server has escaped every name and value in a part; the page's policy lets no script in it run.
function exchange(id, html) {
  const part = document.getElementById(id);
  if (!part || shown.get(id) === html) return;
  shown.set(id, html);
  const focused = part.contains(document.activeElement) ? [...part.querySelectorAll("a, button, summary, [tabindex]")].indexOf(document.activeElement) : -1;
  const open = [...part.querySelectorAll("details")].map((one) => one.open);
  const scrolled = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  part.innerHTML = html;
  part.querySelectorAll("details").forEach((one, number) => { if (number in open) one.open = open[number]; });
  part.querySelectorAll(".scroll").forEach((one, number) => { one.scrollLeft = scrolled[number] || 0; });
  if (focused >= 0) {
    const again = part.querySelectorAll("a, button, summary, [tabindex]")[focused];
    if (again) again.focus({ preventScroll: true });
  }
}

function hear(event) {
  const seen = JSON.parse(event.data);
  for (const [id, html] of Object.entries(seen.parts)) exchange(id, html);
  if (charts) charts.add(seen.sample);
  const at = new Date(seen.sample[0] * 1000).toISOString().slice(11, 19);
  say("live", `live, seen ${at}`);
  linkState.removeAttribute("role");
  watch();
}

// After a sleep, or behind a proxy, a stream may be dead and the browser not know it.
function watch() {
  clearTimeout(watchdog);
  watchdog = setTimeout(() => {
    linkState.setAttribute("role", "status");
    say("lost", "nothing new for 90 s; trying again");
    source.close();
    reconnect();
  }, 90000);
}

async function reconnect() {
  // An event source does not tell why it has ended.
  try {
    const answer = await fetch("/alive", { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (answer.status === 401) {
      linkState.setAttribute("role", "status");
      say("lost", "the token has changed: open the address that penstock prints");
      return;
    }
    if (answer.ok) { connect(); return; }
  } catch { /* It is not there yet. */ }
  setTimeout(reconnect, 3000);
}

function connect() {
  if (source) source.close();
  source = new EventSource(root.dataset.live);
  source.addEventListener("seen", hear);
  watch();
  source.addEventListener("error", () => {
    linkState.setAttribute("role", "status");
    say("lost", "the page's server does not answer; trying again");
    source.close();
    clearTimeout(watchdog);
    setTimeout(reconnect, 1500);
  });
}

if (root) {
  if (charts) charts.load();
  connect();
  // A browser keeps few connections to one server: a tab that nobody sees needs none.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source.close(); clearTimeout(watchdog); return; }
    if (charts) charts.load();
    connect();
  });
  // A page that was put aside comes back with what is true now.
  window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
}
