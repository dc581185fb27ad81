// Times in the reader's zone, tables that sort, and what htmx could not load. Nothing needs it.
"use strict";

const zone = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric",
  hour: "2-digit", minute: "2-digit", timeZoneName: "short" });

function localTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]:not([data-local])")) {
    element.textContent = zone.format(new Date(element.dateTime));
    element.dataset.local = "";
  }
}

function sortValue(cell) {
  if (cell === undefined) return "";
  const time = cell.querySelector("time[datetime]");
  if (time !== null) return time.dateTime;
  return cell.dataset.sort ?? cell.textContent.trim();
}

function sortRows(table, column, descending) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [sortValue(row.cells[column]), row]);
  rows.sort(([a], [b]) => {
    const order = a.localeCompare(b, undefined, { numeric: true });
    return descending ? -order : order;
  });
  body.append(...rows.map(([, row]) => row));
}

// How the reader has sorted tables, which a part of the page that comes again keeps.
const sorted = new Map();

function sortable(root) {
  for (const table of root.querySelectorAll("table.sortable:not([data-sortable])")) {
    table.dataset.sortable = "";
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      if (cell.textContent.trim() === "" || cell.hasAttribute("data-fixed")) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...cell.childNodes);
      cell.append(button);
      button.addEventListener("click", () => {
        const descending = cell.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sorted.set(table.id, [column, descending]);
        sortRows(table, column, descending);
      });
    });
    if (table.id !== "" && sorted.has(table.id)) {
      const [column, descending] = sorted.get(table.id);
      const cell = table.tHead.rows[0].cells[column];
      cell?.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortRows(table, column, descending);
    }
  }
}

// A list of choices that shows only those with the typed text; what is chosen stays.
function filters(root) {
  for (const input of root.querySelectorAll("input[data-filter]:not([data-ready])")) {
    input.dataset.ready = "";
    input.closest(".scripted").hidden = false;
    input.addEventListener("input", (event) => {
      event.stopPropagation();
      const wanted = input.value.trim().toLowerCase();
      for (const label of document.getElementById(input.dataset.filter).children) {
        label.hidden = !label.textContent.toLowerCase().includes(wanted);
      }
    });
    input.addEventListener("change", (event) => event.stopPropagation());
  }
}

// Buttons that copy the text of an element of their section.
function copies(root) {
  for (const button of root.querySelectorAll("button[data-copy]:not([data-ready])")) {
    if (navigator.clipboard === undefined) continue; // Browsers have it on secure pages only.
    button.dataset.ready = "";
    button.closest(".scripted").hidden = false;
    const copied = button.closest("section").querySelector(button.dataset.copy);
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(copied.textContent);
      button.textContent = "Copied";
    });
  }
}

// Of a pasted table only the line with the names stays: rows must not leave the browser.
function firstLine(event) {
  if (!event.target.matches("textarea[data-first-line]")) return;
  const [first, ...rest] = event.target.value.trimStart().split("\n");
  if (rest.length > 0) event.target.value = first;
}

// An input is invalid as long as there is a message about it.
function markWrong() {
  for (const message of document.querySelectorAll("[data-wrong]")) {
    const input = document.getElementById(message.dataset.wrong);
    if (input === null || !input.matches("input, select, textarea")) continue;
    if (message.textContent.trim() === "") input.removeAttribute("aria-invalid");
    else input.setAttribute("aria-invalid", "true");
  }
}

function prepare(root) {
  localTimes(root);
  sortable(root);
  filters(root);
  copies(root);
}

function say(text, ...more) {
  const line = document.getElementById("failure");
  line.replaceChildren(text, ...more);
  line.hidden = false;
}

function sayFailure() {
  if (kept === null) {
    say("The coordinator does not answer. What you see may be old: load the page again.");
  } else say("The coordinator does not answer. What you typed is still here: try again later.");
}

// A long form stays on the page when its sign-in has ended: the reader signs in elsewhere and goes
// on here, with the token against forged requests that belongs to the new sign-in.
const kept = document.querySelector("form[data-keep]");
let signedOut = false;

function saySignedOut() {
  signedOut = true;
  const link = document.createElement("a");
  Object.assign(link, { href: "/ui/sign-in", target: "_blank", textContent: "Sign in" });
  say("You are signed out. What you typed is still here. ", link, " in another tab, then go on.");
  document.getElementById("failure").scrollIntoView({ block: "nearest" });
}

async function renew() {
  const answer = await fetch(location.href);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const who = page.querySelector(".who a")?.textContent;
  if (!answer.ok || who !== document.querySelector(".who a").textContent) return false;
  const { value } = page.querySelector("input[name=csrf]");
  for (const input of document.querySelectorAll("input[name=csrf]")) input.value = value;
  document.body.setAttribute("hx-headers", page.body.getAttribute("hx-headers"));
  if (signedOut) document.getElementById("failure").hidden = true;
  signedOut = false;
  return true;
}

function keepForm() {
  let sending = false;
  kept.addEventListener("submit", async (event) => {
    if (sending) return;
    event.preventDefault();
    const { submitter } = event;
    try {
      if (await renew()) {
        sending = true;
        kept.requestSubmit(submitter);
      } else saySignedOut();
    } catch {
      sayFailure();
    }
  });
  document.addEventListener("htmx:beforeOnLoad", (event) => {
    if (![401, 403].includes(event.detail.xhr.status)) return;
    event.preventDefault();
    if (!signedOut) saySignedOut();
    else renew().then((again) => again && htmx.trigger(kept, "change"));
  });
  document.addEventListener("visibilitychange", () => {
    if (signedOut && !document.hidden) renew().catch(() => {});
  });
}

if (kept !== null) keepForm();

document.documentElement.classList.add("scripts");

// Over HTTP/1.1 a browser opens six connections to a host at most, and a stream keeps one. So all
// pages of a browser together hold STREAMS, and one that nobody looks at holds none. A page without
// a stream asks at intervals. What happened while a stream was away comes first when it begins.
const STREAMS = 4;
const ASK_AGAIN_MS = 10_000;
let stream = null;
let asking = 0;
const places = [];

function leavePlaces() {
  for (const leave of places.splice(0)) leave();
}

// Take one of the places for streams, unless another page holds it.
function takePlace(number) {
  return new Promise((taken) => {
    navigator.locks.request(`stream-${number}`, { ifAvailable: true }, (lock) => {
      taken(lock !== null);
      return lock && new Promise((leave) => places.push(leave));
    });
  });
}

async function follow() {
  clearTimeout(asking);
  const element = document.getElementById("stream");
  if (element === null || document.hidden) return;
  for (let number = 0; number < STREAMS; number += 1) {
    if (await takePlace(number)) {
      const again = element.cloneNode();
      again.setAttribute("sse-connect", again.dataset.events);
      element.replaceWith(again);
      htmx.process(again);
      return;
    }
  }
  htmx.trigger(element, "sse:changed");
  asking = setTimeout(follow, ASK_AGAIN_MS);
}

function stopFollowing() {
  stream?.close();
  leavePlaces();
}

document.addEventListener("htmx:sseOpen", (event) => {
  stream = event.detail.source;
  if (document.hidden) stopFollowing();
  document.getElementById("failure").hidden = true;
});
document.addEventListener("htmx:sseClose", leavePlaces);
document.addEventListener("htmx:sseError", (event) => {
  sayFailure();
  // Closed by the coordinator's answer: the page's own request says why.
  const { source } = event.detail;
  if (source.readyState === EventSource.CLOSED) htmx.trigger(event.target, "sse:changed");
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stopFollowing();
  else follow();
});
document.addEventListener("DOMContentLoaded", follow);

prepare(document);
document.addEventListener("htmx:afterSettle", markWrong);
document.addEventListener("input", firstLine, true);
document.addEventListener("htmx:load", (event) => prepare(event.target));
document.addEventListener("htmx:sendError", sayFailure);
document.addEventListener("htmx:responseError", (event) => {
  if (event.detail.xhr.status !== 401) sayFailure();
});
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful) document.getElementById("failure").hidden = true;
});
