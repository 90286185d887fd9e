// A table with selectable cells. Python computes everything shown, and receives the selected cell's key.
function render({ model, el }) {
  const table = document.createElement("table");
  table.className = "race";
  const scroll = document.createElement("div");
  scroll.className = "race-scroll";
  scroll.tabIndex = 0; // makes it scroll by keyboard
  scroll.append(table);
  const scale = document.createElement("p");
  scale.className = "race-scale";
  el.append(scroll, scale);

  // The legend of the cells' background, from lightest to darkest.
  function drawScale(told) {
    if (!told) return scale.replaceChildren();
    const ramp = document.createElement("i");
    ramp.setAttribute("aria-hidden", "true");
    const legend = document.createElement("span");
    legend.textContent = told.words + " · ★ best at its batch size · italic: scaled from part of an epoch · ";
    const unmeasured = document.createElement("span");
    unmeasured.className = "race-cell race-waiting";
    unmeasured.textContent = "–";
    scale.replaceChildren(told.low, ramp, told.high, legend, unmeasured, "not measured");
  }

  function cellOf(cell) {
    const td = document.createElement("td");
    const button = document.createElement(cell.key ? "button" : "span");
    button.className = "race-cell race-" + cell.state;
    button.title = cell.title;
    if (cell.level !== null) button.style.setProperty("--level", cell.level);
    if (cell.best) {
      button.classList.add("race-best");
      button.title = "best at this batch size: " + cell.title;
    }
    button.append(cell.best ? "★ " + cell.text : cell.text);
    if (cell.key) {
      button.setAttribute("aria-pressed", String(model.get("selected") === cell.key));
      button.addEventListener("click", () => {
        model.set("selected", cell.key);
        model.save_changes();
      });
    }
    td.append(button);
    return td;
  }

  function headOf(group) {
    const tr = document.createElement("tr"), th = document.createElement("th");
    th.scope = "rowgroup";
    th.colSpan = model.get("table").columns.length + 1;
    th.textContent = group;
    tr.append(th);
    return tr;
  }

  function draw() {
    const { columns, rows, corner, scale: told } = model.get("table");
    if (!columns) return;
    const held = document.activeElement?.shadowRoot?.activeElement ?? document.activeElement;
    const focused = held?.closest?.("td") && table.contains(held) ? [held.closest("tr").rowIndex, held.closest("td").cellIndex] : null;
    const head = document.createElement("tr");
    for (const text of [corner, ...columns]) {
      const th = document.createElement("th");
      th.scope = "col";
      th.textContent = text;
      head.append(th);
    }
    const body = rows.flatMap((row, place) => {
      const tr = document.createElement("tr");
      if (row.group) tr.className = "race-others";
      const th = document.createElement("th");
      th.scope = "row";
      th.textContent = row.label;
      tr.append(th, ...row.cells.map(cellOf));
      return row.group === (rows[place - 1]?.group ?? "") ? tr : [headOf(row.group), tr];
    });
    table.replaceChildren(head, ...body);
    drawScale(told);
    if (focused) table.rows[focused[0]]?.cells[focused[1]]?.querySelector("button")?.focus();
  }

  model.on("change:table", draw);
  model.on("change:selected", draw);
  draw();
}
export default { render };
