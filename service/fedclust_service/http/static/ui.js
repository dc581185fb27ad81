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

// A check while typing lists what is wrong. Each message also stands at its own input.
function markWrong() {
  if (document.getElementById("checked") === null) return;
  for (const each of document.querySelectorAll("[aria-invalid]")) {
    each.removeAttribute("aria-invalid");
  }
  for (const each of document.querySelectorAll("[data-wrong]:not(:empty)")) each.textContent = "";
  for (const link of document.querySelectorAll("#checked a")) {
    const input = document.querySelector(link.hash);
    if (input?.matches("input, select, textarea")) input.setAttribute("aria-invalid", "true");
    const message = document.getElementById(`${link.hash.slice(1)}-wrong`);
    if (message !== null) message.textContent = link.nextSibling.textContent.replace(/^: /, "");
  }
}

// The table of columns: what is pasted, or the first line of a file, is read here and fills rows.
const columns = document.getElementById("columns");
// What spreadsheets call headings, roles and kinds; others are known by their own name.
const WORDS = {
  name: /^(column|name|variable|feature)s?$/i, kind: /^(kind|type)$/i,
  role: /^(role|use|usage|rolle)$/i, lower: /^(lower|min)/i,
  upper: /^(upper|max)/i, levels: /^(level|code|categorie)s$/i, transform: /^(transform|scale)/i,
  log: /^(log|ln)$/i, outcome: /^out|^target|^endp/i,
  feature: /^feat|^input|^covar|^predict|^variable$|^clust/i,
  numeric: /^num|^int(eger|\d*$)|^count$|^float|^real|^cont|^(ganz)?zahl|^stetig/i,
  binary: /^bin|^bool|^yes|^y ?\/ ?n|^ja|^dich/i,
  categorical: /^cat|^kat|^nominal|^factor|^faktor/i, ordered: /^ord|^rang/i,
  time: /^time|^surv|^zeit/i, trajectory: /^traj|^verlauf/i,
};

function known(text, among) {
  return among.find((each) => (WORDS[each] ?? RegExp(`^${each}s?$`, "i")).test(text?.trim() ?? ""));
}

// Returns the rows of a table as text. A cell in quotes may hold separators and line breaks.
function cellsOf(text, separator) {
  const cell = new RegExp(`(?:"((?:[^"]|"")*)"|([^${separator}\n]*))([${separator}\n])`, "gy");
  const lines = [[]];
  for (const [, quoted, bare, end] of `${text.replace(/\r\n?/g, "\n")}\n`.matchAll(cell)) {
    lines.at(-1).push((quoted?.replaceAll('""', '"') ?? bare).replace(/\s+/g, " ").trim());
    if (end === "\n") lines.push([]);
  }
  return lines.filter((cells) => cells.some(Boolean));
}

// Returns the row below, after adding so many where there is none: all at once, for speed. The last
// row was empty when it came, and what is typed is not in its HTML; that it is open is.
function rowAfter(row, count = 1) {
  if (row.nextElementSibling === null) {
    const next = Number(row.id.slice(4)) + 1;
    const html = row.outerHTML.replace(/>\s+</g, "><").replace("<details open", "<details");
    const parts = html.split(/(?<=features[-/]|row-|value=")\d+/);
    const more = Array.from({ length: count }, (_, place) => parts.join(next + place));
    row.insertAdjacentHTML("afterend", more.join(""));
  }
  return row.nextElementSibling;
}

function fillRows(row, first, lines) {
  const isNumber = (text) => /^[-+]?\d[\d.,]*$/.test(text ?? "");
  const inputs = [...row.querySelectorAll("input, select")];
  const all = inputs.map((each) => each.name.split("/").pop());
  const choices = (column) => [...(inputs[all.indexOf(column)]?.options ?? [])].map((e) => e.text);
  const headings = lines[0].map((text) => known(text, all));
  // Whatever it is called, a column that says "outcome" has the roles.
  const asked = lines[0].findIndex((_, place) =>
    lines.slice(1).some((cells) => /^(outcome|endpoint)s?$/i.test(cells[place] ?? "")));
  if (asked >= 0 && !headings.includes("role") && !headings[asked]) headings[asked] = "role";
  const headed = headings.includes("name") && lines.length > 1;
  const order = headed ? headings : [first];
  const names = lines.length === 1 && first === "name";
  const rows = headed ? lines.slice(1) : names ? lines[0].map((name) => [name]) : lines;
  const name = order.indexOf("name");
  const word = order.findIndex((each) => each === "role" || each === "kind");
  // Rows of patients must not leave the browser. So several cells a row are taken only if headings
  // say that they describe columns, and nothing is sent before the reader has seen them.
  const says = (cells) => known(cells[word], choices(order[word])) !== undefined;
  const described = headed && order.filter(Boolean).length > 1 && (word < 0 || rows.some(says));
  const refused = (!described && rows.some((cells) => cells.length > 1))
    || rows.some((cells) => isNumber(cells[name]) || isNumber(cells[word]))
    || rows.some((cells) => cells.length === 1 && /;|,.*,/.test(cells[0]));
  const role = order.indexOf("role");
  const outcomes = rows.filter((cells) => known(cells[role], ["outcome"])).length;
  const others = lines[0].filter((text, place) => headed && text && !headings[place]);
  const unread = others.length > 0 ? ` Not taken, heading not known: ${others.join(", ")}.` : "";
  const note = document.getElementById("pasted");
  note.className = refused || others.length > 0 ? "wrong" : "soft";
  note.textContent = refused
    ? "These may be rows of patients. Nothing was taken: paste a row for each column, below a " +
      "row of headings such as name, kind and unit."
    : `Filled: ${rows.length} (${outcomes} outcomes).${unread} Look, then Check.`;
  if (refused) return;
  const bodies = [...columns.tBodies];
  const lacking = rows.length - bodies.slice(bodies.indexOf(row)).length + 1;
  if (lacking > 0) rowAfter(bodies.at(-1), lacking);
  for (const cells of rows) {
    const own = row.querySelectorAll("input, select");
    if (name >= 0) for (const input of own) input.value = "";
    order.forEach((column, place) => {
      const input = own[all.indexOf(column)];
      const bound = ["lower", "upper"].includes(column);
      const text = bound ? (cells[place] ?? "").replace(/ ?%$/, "") : cells[place] ?? "";
      if (input === undefined || text === "") return;
      // 10,080 may be ten thousand: the check asks.
      const decimal = bound && /^[-+]?\d+,(?!\d{3}$)\d+$/.test(text);
      const word = known(text, choices(column)) ?? (decimal ? text.replace(",", ".") : text);
      const option = [...(input.options ?? [])].find((each) => each.text === word);
      // A word that no choice has stays: its message says what it may be.
      if (option !== undefined) option.selected = true;
      else if (input.options !== undefined) input.add(new Option(word, word, true, true));
      else input.value = word;
    });
    row = rowAfter(row);
  }
  // Until the reader has seen the rows, what was checked before would be wrong about them.
  outdated = true;
  for (const each of document.querySelectorAll("#checked, #definition")) {
    each.textContent = "The new rows are not checked yet.";
  }
  document.getElementById("consent")?.replaceChildren();
}

// Whether rows were filled after the check that is on its way began.
let outdated = false;

function pasteRows(event) {
  const lines = cellsOf(event.clipboardData.getData("text/plain"), "\t");
  if (lines.flat().length < 2) return;
  event.preventDefault();
  const column = event.target.name.split("/").pop();
  const shown = document.getElementById(`c-${column}`) !== null;
  fillRows(event.target.closest("tbody"), shown ? column : "name", lines);
}

async function readHeader({ target }) {
  const bytes = await target.files[0].slice(0, 65_536).arrayBuffer();
  const utf8 = new TextDecoder().decode(bytes, { stream: true });
  const text = utf8.includes("\ufffd") ? new TextDecoder("windows-1252").decode(bytes) : utf8;
  const [line] = text.trimStart().split(/[\r\n]/, 1);
  const [names] = cellsOf(text, ["\t", ";", ","].find((each) => line.includes(each)) ?? "\n");
  const last = [...columns.tBodies].findLast((row) => row.querySelector("input").value !== "");
  const row = last === undefined ? columns.tBodies[0] : rowAfter(last);
  if (names !== undefined) fillRows(row, "name", names.map((name) => [name]));
}

if (columns !== null) {
  columns.addEventListener("paste", pasteRows);
  columns.addEventListener("keydown", (event) => {
    // Enter would press the first button of the form.
    if (event.key === "Enter" && event.target.matches("input")) event.preventDefault();
  });
  columns.addEventListener("input", (event) => rowAfter(event.target.closest("tbody")));
  document.getElementById("header").addEventListener("change", readHeader);
}

function prepare(root) {
  localTimes(root);
  sortable(root);
  copies(root);
}

function say(text, ...more) {
  const line = document.getElementById("failure");
  // The first click on a link ends the typing, which asks again: a new link would not be followed.
  if (!line.hidden && line.textContent.startsWith(text)) return;
  line.replaceChildren(text, ...more);
  line.hidden = false;
}

function sayFailure() {
  say("The coordinator does not answer. What you see may be old. Try again later.");
}

function saySignedOut() {
  const link = document.createElement("a");
  Object.assign(link, { href: "/ui/sign-in", target: "_blank", textContent: "Sign in" });
  say("You are signed out. What you typed is still here. ", link, " in another tab, then go on.");
  document.getElementById("failure").scrollIntoView({ block: "nearest" });
}

document.documentElement.classList.add("scripts");

prepare(document);
document.addEventListener("htmx:afterSettle", (event) => {
  markWrong();
  if (!event.detail.requestConfig?.elt.matches("[name=check]")) return;
  document.getElementById("checked-title").focus({ preventScroll: true });
  document.getElementById("checked").scrollIntoView({ block: "center" });
});
document.addEventListener("htmx:load", (event) => prepare(event.target));
document.addEventListener("htmx:beforeRequest", (event) => {
  // A page that nobody looks at does not ask what has changed.
  if (document.hidden && event.target.id === "poll") event.preventDefault();
  outdated = false;
});
document.addEventListener("htmx:beforeSwap", (event) => {
  if (outdated) event.detail.shouldSwap = false;
});
document.addEventListener("htmx:sendError", sayFailure);
document.addEventListener("htmx:responseError", (event) => {
  if (event.detail.xhr.status === 401) saySignedOut();
  else sayFailure();
});
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful) document.getElementById("failure").hidden = true;
});
