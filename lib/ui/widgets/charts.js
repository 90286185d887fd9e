// Draws each chart with marimo's renderer, inside the element that holds its specification. If the previous chart has the same
// frame, only its rows and axis domains are updated: Vega takes several times as long to draw a new one.
const MIME = JSON.stringify("application/vnd.vegalite.v6+json");
const TEXTS = ["label", "color"]; // CSV columns that hold text even if it looks like a number
const drawings = new WeakMap(); // by element
const onPaper = new CSSStyleSheet(); // narrower than the screen
onPaper.replaceSync("@media print { svg.marks { max-width: 100%; height: auto; } }");

// Replaces axis domains with parameters, so that a new domain does not change the frame. `domains` collects the distinct ones.
function withoutDomains(part, domains) {
  if (Array.isArray(part)) return part.map((one) => withoutDomains(one, domains));
  if (part === null || typeof part !== "object") return part;
  const copy = Object.fromEntries(Object.entries(part).map(([name, value]) => [name, withoutDomains(value, domains)]));
  if (!Array.isArray(part.domain) || part.domain.length !== 2 || !part.domain.every(Number.isFinite)) return copy;
  const same = JSON.stringify(part.domain);
  if (!domains.has(same)) domains.set(same, part.domain);
  const number = [...domains.keys()].indexOf(same);
  return { ...copy, domain: part.domain.map((_, end) => ({ expr: endOf(number, end) })) };
}

const endOf = (number, end) => `domain_${number}_${end}`;

function read(text) {
  const { datasets = {}, description, ...rest } = JSON.parse(text), domains = new Map(), frame = withoutDomains(rest, domains);
  const params = [...domains.values()].flatMap((ends, number) => ends.map((value, end) => ({ name: endOf(number, end), value })));
  return { text, datasets, params, frame, description, sameFrame: JSON.stringify([frame, description, Object.keys(datasets)]) };
}

function rowsOf(dataset) {
  if (typeof dataset !== "string") return dataset;
  const [head, ...lines] = csvLines(dataset);
  return lines.map((line) => Object.fromEntries(
    head.map((name, place) => [name, TEXTS.includes(name) ? line[place] : Number(line[place])])));
}

function drawAnew(drawing) {
  const { frame, description, datasets, params } = drawing.chart;
  const spec = JSON.stringify({ ...frame, description, datasets, params: [...(frame.params ?? []), ...params] });
  [drawing.drawn, drawing.outdated] = [drawing.chart, drawing.view];
  drawing.renderer.dataset.data = JSON.stringify(spec);
}

// Vega does not expose its view, but the group that it draws refers to it.
function viewOf(svg) {
  return svg.querySelector(".root > g")?.__data__?.context?.dataflow;
}

function putIn(drawing) {
  const svg = drawing.renderer.shadowRoot?.querySelector("svg.marks");
  if (!svg) return; // still being drawn; the observer calls again once it is there
  const view = viewOf(svg), { chart } = drawing;
  if (view && view === drawing.outdated) return; // its replacement is being drawn
  if (view !== drawing.view) [drawing.view, drawing.inView] = [view, drawing.drawn]; // also if marimo redrew it
  const before = drawing.inView;
  if (before === chart) return;
  drawing.inView = chart;
  try {
    for (const [name, dataset] of Object.entries(chart.datasets)) {
      if (JSON.stringify(dataset) !== JSON.stringify(before.datasets[name])) view.data(name, rowsOf(dataset));
    }
    for (const { name, value } of chart.params) view.signal(name, value);
    view.runAsync();
  } catch {
    drawAnew(drawing); // a Vega version that stores its view elsewhere
  }
}

function rendererOfCharts() {
  const renderer = document.createElement("marimo-mime-renderer");
  renderer.dataset.mime = MIME;
  return renderer;
}

function draw(place) {
  const known = drawings.get(place);
  if (!place.dataset.spec) {
    drawings.delete(place);
    known?.renderer.remove();
    return;
  }
  if (known?.chart.text === place.dataset.spec) return;
  const chart = read(place.dataset.spec);
  if (known) {
    const same = known.chart.sameFrame === chart.sameFrame;
    known.chart = chart;
    same ? putIn(known) : drawAnew(known);
    return;
  }
  const drawing = { chart, renderer: rendererOfCharts(), view: null };
  drawings.set(place, drawing);
  drawAnew(drawing);
  place.append(drawing.renderer);
  drawing.renderer.shadowRoot.adoptedStyleSheets.push(onPaper);
  new MutationObserver(() => putIn(drawing)).observe(drawing.renderer.shadowRoot, { childList: true, subtree: true });
}

// marimo fetches Vega for the first chart. A hidden chart triggers that while the kernel still computes the first visible one.
function fetchVega() {
  const unseen = rendererOfCharts();
  unseen.hidden = true;
  unseen.dataset.data = JSON.stringify(JSON.stringify({ data: { values: [] }, mark: "line", encoding: {} }));
  document.body.append(unseen);
}

function drawCharts() {
  new MutationObserver((changes) => {
    for (const { type, target, addedNodes } of changes) {
      if (type === "attributes") draw(target);
      for (const added of addedNodes) {
        if (added.matches?.("[data-spec]")) draw(added);
        added.querySelectorAll?.("[data-spec]").forEach(draw);
      }
    }
  }).observe(document.body, { childList: true, subtree: true, attributeFilter: ["data-spec"] });
  document.querySelectorAll("[data-spec]").forEach(draw);
  fetchVega();
}
