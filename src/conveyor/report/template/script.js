"use strict";
function enhance() {
  for (const head of document.querySelectorAll("table.sortable th")) {
    head.tabIndex = 0;
    const sort = () => {
      const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = row => { const cell = row.cells[column]; return cell.dataset.v !== undefined ? Number(cell.dataset.v) : cell.textContent.trim(); };
      const order = (a, b) => { const x = value(a), y = value(b); return typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true }); };
      body.append(...Array.from(body.rows).sort((a, b) => (up ? 1 : -1) * order(a, b)));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); } });
  }
  for (const chart of document.querySelectorAll("svg.chart")) {
    const series = JSON.parse(chart.dataset.series), figure = chart.closest("figure"), box = chart.viewBox.baseVal;
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
    cursor.setAttribute("class", "cursor"); cursor.setAttribute("y1", 10); cursor.setAttribute("y2", box.height - 34);
    let tip = null;
    const hide = () => { if (tip) { tip.remove(); tip = null; cursor.remove(); } };
    chart.addEventListener("pointermove", event => {
      const area = chart.getBoundingClientRect(), scale = area.width / box.width, x = (event.clientX - area.left) / scale;
      const near = series.map(s => [s, s.p.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a)]);
      const [, at] = near.reduce((a, b) => Math.abs(b[1][0] - x) < Math.abs(a[1][0] - x) ? b : a);
      if (!tip) { tip = document.createElement("div"); tip.className = "tip"; figure.append(tip); chart.append(cursor); }
      cursor.setAttribute("x1", at[0]); cursor.setAttribute("x2", at[0]);
      tip.replaceChildren(`${chart.dataset.x} ${at[2]}`, ...near.flatMap(([s, p]) => {
        const row = document.createElement("div"), key = document.createElement("span");
        key.className = `key c${s.c}`; row.append(key, `${s.n} ${p[3]}`); return [row];
      }));
      const left = at[0] * scale + (chart.getBoundingClientRect().left - figure.getBoundingClientRect().left);
      tip.style.left = `${left > area.width / 2 ? left - tip.offsetWidth - 10 : left + 10}px`;
      tip.style.top = `${chart.offsetTop || 24}px`;
    });
    chart.addEventListener("pointerleave", hide);
  }
}
enhance();
if (document.documentElement.dataset.live) {
  let known = "";
  const look = async () => {
    try {
      const { stamp } = await (await fetch("state")).json();
      if (known && stamp !== known) {
        const fresh = new DOMParser().parseFromString(await (await fetch("./")).text(), "text/html");
        const open = Array.from(document.querySelectorAll("details"), one => one.open);
        document.querySelector("main").replaceWith(fresh.querySelector("main"));
        document.querySelectorAll("details").forEach((one, at) => { one.open = Boolean(open[at]); });
        document.title = fresh.title;
        enhance();
      }
      known = stamp;
    } catch (error) { document.getElementById("live").textContent = "; no longer refreshed: conveyor report --watch has ended"; }
    setTimeout(look, 2000);
  };
  look();
}
