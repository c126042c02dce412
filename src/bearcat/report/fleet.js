// The table of points: links open what they lead to; a filter by words and by status, an order where there are no
// headings, and newer rows where a server has them.
const reveal = () => document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", "");
addEventListener("hashchange", reveal);
reveal();
const controls = document.getElementById("controls");
if (controls) {
  controls.hidden = false;
  const find = document.getElementById("find"), order = document.getElementById("order"), matches = document.getElementById("matches");
  const rows = () => document.querySelectorAll("#points > tr");
  const apply = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const statuses = new Set([...controls.querySelectorAll("input:checked")].map((box) => box.value));
    let shown = 0;
    for (const row of rows()) {
      const cells = [0, 1, 3].map((place) => row.cells[place]); // no dates, no numbers
      const text = cells.map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !statuses.has(row.dataset.status) || !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    const all = rows().length;
    matches.textContent = shown === all ? `${all} points` : `${shown} of ${all} points`;
  };
  const sorted = () => document.querySelector(".points th[aria-sort]");
  const button = (place) => document.querySelectorAll(".points thead th")[place].querySelector("button");
  controls.addEventListener("input", apply);
  controls.addEventListener("submit", (event) => event.preventDefault());
  order.addEventListener("change", () => {
    const place = Number(order.value);
    sorted()?.removeAttribute("aria-sort");
    button(place)?.click();
    if (place > 1) button(place)?.click(); // the newest first
  });
  apply();
  if (document.body.dataset.live !== undefined) {
    setInterval(async () => {
      if (document.hidden) return;
      const answer = await fetch(location.href).catch(() => null);
      if (!answer?.ok) return;
      const newer = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const id of ["summary", "points"]) {
        const part = newer.getElementById(id);
        if (part) document.getElementById(id)?.replaceChildren(...part.childNodes);
      }
      const heading = sorted(), down = heading?.getAttribute("aria-sort") === "descending";
      heading?.removeAttribute("aria-sort");
      heading?.querySelector("button").click();
      if (down) heading.querySelector("button").click();
      apply();
    }, 30_000);
  }
}
