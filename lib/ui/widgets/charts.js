// Draws the charts of the page: each by marimo's own renderer, inside the element that has its specification. Where the chart of
// before has the same frame, the rows and the ends of the axes are put into it: to draw another takes Vega several times as long.
const MIME = JSON.stringify("application/vnd.vegalite.v6+json");
const TEXTS = ["label", "color"]; // columns of CSV that are no numbers, whatever they look like
const drawings = new WeakMap(); // by element

// The domains of the axes as parameters, so that another end is no other frame; `domains` gets the different ones.
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

// Vega hands its view to nobody, but the group that it has drawn leads to it.
function viewOf(svg) {
  return svg.querySelector(".root > g")?.__data__?.context?.dataflow;
}

function putIn(drawing) {
  const svg = drawing.renderer.shadowRoot?.querySelector("svg.marks");
  if (!svg) return; // it is being drawn; what is put in then is asked for when it is there
  const view = viewOf(svg), { chart } = drawing;
  if (view && view === drawing.outdated) return; // another is being drawn
  if (view !== drawing.view) [drawing.view, drawing.inView] = [view, drawing.drawn]; // also where marimo drew it again
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
    drawAnew(drawing); // a Vega that keeps its view elsewhere
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
  new MutationObserver(() => putIn(drawing)).observe(drawing.renderer.shadowRoot, { childList: true, subtree: true });
}

// marimo fetches Vega for the first chart: an unseen one has it ready while the kernel is still at the page's first.
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
