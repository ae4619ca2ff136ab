// Brings the page up to date without loading it anew: what did not change stays, and with it the
// focus, the selection, and how far things are scrolled. Without it the page reloads itself.
"use strict";
const everyS = Number(document.documentElement.dataset.refresh);
const stale = document.getElementById("stale");

const isSame = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && (a.id || "") === (b.id || "");

function bringUp(here, there) {
  if (here.isEqualNode(there)) return;
  if (here.nodeType !== Node.ELEMENT_NODE) { here.nodeValue = there.nodeValue; return; }
  for (const { name } of [...here.attributes]) if (!there.hasAttribute(name)) here.removeAttribute(name);
  for (const { name, value } of [...there.attributes]) if (here.getAttribute(name) !== value) here.setAttribute(name, value);
  let old = here.firstChild;
  for (const next of [...there.childNodes]) {
    let match = old;
    if (next.id) while (match && !isSame(match, next)) match = match.nextSibling;
    if (match && isSame(match, next)) {
      while (old !== match) { const gone = old; old = old.nextSibling; gone.remove(); }
      bringUp(match, next);
      old = match.nextSibling;
    } else here.insertBefore(document.importNode(next, true), old);
  }
  while (old) { const gone = old; old = old.nextSibling; gone.remove(); }
}

async function refresh() {
  if (document.hidden) return;
  try {
    const from = location.origin + location.pathname + location.search;
    const answer = await fetch(from, { cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(15000) });
    if (!answer.ok) throw new Error(`it answers ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!page.querySelector("main")) throw new Error("it answers with another page");
    for (const name of ["header", "main"]) bringUp(document.querySelector(name), page.querySelector(name));
    document.title = page.title;
    stale.textContent = "";
  } catch (error) {
    stale.textContent = `Not up to date: ${error.name === "Error" ? error.message : "the server does not answer"}.`;
  }
}

async function keepUp() {
  for (;;) {
    await new Promise((done) => setTimeout(done, everyS * 1000));
    await refresh();
  }
}
if (everyS > 0) keepUp();
document.addEventListener("visibilitychange", () => { if (everyS > 0) refresh(); });
