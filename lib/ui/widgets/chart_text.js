// Describes line charts drawn by JavaScript as text and a table for screen readers, in the same wording as
// `lib/ui/views/chart_text.py` uses for all other charts. Must precede the scripts that draw.
const LISTED = new Intl.ListFormat("en-GB");

// axes: a sentence per axis; measure: the y axis's quantity; lines: [name, values from left to right]; written: formats a value.
function toldLines(axes, measure, lines, written) {
  const drawn = lines.map(([name, values]) => [name, values.filter(Number.isFinite)]).filter(([, values]) => values.length);
  if (!drawn.length) return { text: `${axes} No values yet.`, head: [], rows: [] };
  const ends = drawn.map(([name, values]) => [values.at(-1), name]).sort(([one], [other]) => one - other);
  const [low, high] = [ends[0], ends.at(-1)].map(([value, name]) => `${written(value)} (${name})`);
  const last = ends.length > 1 ? `lowest ${low}, highest ${high}` : low;
  const n = `${drawn.length} line${drawn.length > 1 ? "s" : ""}`;
  const least = (values) => values.reduce((a, b) => Math.min(a, b)), most = (values) => values.reduce((a, b) => Math.max(a, b));
  return {
    text: `${axes} ${n}: ${LISTED.format(drawn.map(([name]) => name))}. Last ${measure}: ${last}.`,
    head: ["line", `first ${measure}`, "lowest", "highest", "last"],
    rows: drawn.map(([name, values]) => [name, ...[values[0], least(values), most(values), values.at(-1)].map(written)]),
  };
}

// Sets the drawing's label, and lists its text and values in a `details` element below it. Does nothing if both are unchanged.
function tellDrawing(drawing, title, { text, head, rows }) {
  const label = `${title}. ${text}`, said = JSON.stringify([label, rows]);
  if (drawing.said === said) return;
  drawing.said = said;
  drawing.setAttribute("aria-label", label);
  drawing.details ??= drawing.parentNode.appendChild(closedDetails(title));
  const [note, box] = ["p", "table"].map((name) => drawing.details.querySelector(name));
  note.textContent = text;
  const cells = (kind, row) => row.map((cell, index) => {
    const made = document.createElement(kind === "td" && !index ? "th" : kind);
    if (kind === "td" && !index) made.scope = "row";
    made.textContent = cell;
    return made;
  });
  const line = (kind, row) => {
    const made = document.createElement("tr");
    made.append(...cells(kind, row));
    return made;
  };
  box.replaceChildren(...(head.length ? [line("th", head)] : []), ...rows.map((row) => line("td", row)));
}

function closedDetails(title) {
  const details = document.createElement("details");
  details.className = "lab-details";
  details.innerHTML = '<summary>Values as text<span class="lab-unseen"></span></summary><p class="lab-note"></p>'
    + '<div class="lab-scroll" tabindex="0"><table class="lab-table lab-values"></table></div>';
  details.querySelector(".lab-unseen").textContent = `: ${title}`;
  return details;
}
