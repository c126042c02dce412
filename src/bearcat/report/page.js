// Tables sort by a click on a heading: numbers by size, words by the alphabet, empty cells last either way.
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const cell = row.cells[column];
    const value = cell.dataset.value ?? cell.dataset.rank; // a rank is not shown
    return value === undefined || value === "" ? cell.textContent.trim() : Number(value);
  };
  headings.forEach((heading, column) => {
    if ([...body.rows].some((row) => row.cells[column]?.dataset.value !== undefined)) {
      for (const cell of [heading, ...[...body.rows].map((row) => row.cells[column])]) cell?.classList.add("number");
    }
    if (body.rows.length < 2 || heading.dataset.plain !== undefined) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const numeric = [...body.rows].some((row) => typeof key(row, column) === "number");
      const empty = (value) => (numeric ? typeof value !== "number" : value === "" || value === "–");
      const rows = [...body.rows].map((row) => [key(row, column), row]);
      rows.sort(([a], [b]) => {
        if (empty(a) || empty(b)) return empty(a) - empty(b);
        const order = numeric ? a - b : a.localeCompare(b, undefined, { numeric: true });
        return down ? -order : order;
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
}
