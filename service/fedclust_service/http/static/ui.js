// Times in the reader's zone, tables that sort, and what htmx could not load. Nothing needs it.
"use strict";

const zone = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

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
        sortRows(table, column, descending);
      });
    });
  }
}

function prepare(root) {
  localTimes(root);
  sortable(root);
}

function sayFailure() {
  const line = document.getElementById("failure");
  line.textContent =
    "The coordinator does not answer. What you see may be old: load the page again.";
  line.hidden = false;
}

prepare(document);
document.addEventListener("htmx:load", (event) => prepare(event.target));
document.addEventListener("htmx:sendError", sayFailure);
document.addEventListener("htmx:responseError", (event) => {
  if (event.detail.xhr.status !== 401) sayFailure();
});
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful) document.getElementById("failure").hidden = true;
});
