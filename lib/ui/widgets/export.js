// The export menu. The kernel generates rows and scripts on request. Pictures are made here from the current charts: light
// colours on white, the page's font embedded, the sentence above and the source below.
const INK = "#1d1d1f", GAP = 16, LINE = 20, SCALE = 2, DRAWN_LIMIT_MS = 10_000;
const SVG = "http://www.w3.org/2000/svg";

function save(parts, type, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(parts, { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function element(tag, attributes = {}, ...children) {
  const made = tag === "svg" || tag === "text" || tag === "rect" ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// The charts of the menu's experiment, each with its caption and its box on the page; null for a chart still being drawn,
// where marimo shows a spinner.
function chartsOf(lab) {
  return [...lab.querySelectorAll(".lab-figure")].flatMap((figure) => {
    const place = figure.querySelector("[data-spec]");
    const svg = place ? place.firstElementChild?.shadowRoot?.querySelector("svg.marks") : figure.querySelector("svg");
    if (!svg) return place ? [null] : [];
    return [{ svg, caption: figure.querySelector("figcaption")?.textContent ?? "", box: svg.getBoundingClientRect() }];
  });
}

async function drawnCharts(lab) {
  for (const until = Date.now() + DRAWN_LIMIT_MS; Date.now() < until; ) {
    const charts = chartsOf(lab);
    if (charts.length && charts.every(Boolean)) return charts;
    await new Promise((done) => setTimeout(done, 50));
  }
  throw new Error("the charts are not drawn yet; wait for the first result");
}

// Resolves colours mixed with the page's text colour: not every program supports color-mix and currentColor.
function plain(color) {
  const mixed = /^color\(srgb ([\d.]+) ([\d.]+) ([\d.]+)/.exec(color);
  return mixed ? `rgb(${mixed.slice(1).map((part) => Math.round(255 * part)).join(", ")})` : color;
}

function inInk(svg, holder) {
  const copy = svg.cloneNode(true);
  holder.replaceChildren(copy);
  for (const part of [copy, ...copy.querySelectorAll("*")]) {
    const style = getComputedStyle(part);
    for (const name of ["fill", "stroke"]) if (part.hasAttribute(name)) part.setAttribute(name, plain(style[name]));
  }
  return copy;
}

// The page's font as a data URL: a picture outside the page cannot load fonts.
async function font() {
  const rules = [...document.styleSheets].flatMap((sheet) => {
    try {
      return [...sheet.cssRules].map((rule) => [rule, sheet.href]);
    } catch {
      return []; // cross-origin
    }
  });
  const faces = rules.filter(([rule]) => rule instanceof CSSFontFaceRule && rule.style.fontFamily.includes("PT Sans"));
  const written = await Promise.all(faces.map(async ([rule, href]) => {
    const source = /url\("?([^")]+)"?\)/.exec(rule.style.src)[1];
    const bytes = await (await fetch(new URL(source, href ?? document.baseURI))).blob();
    const data = await new Promise((done) => {
      const reader = new FileReader();
      reader.onload = () => done(reader.result);
      reader.readAsDataURL(bytes);
    });
    const { fontWeight, fontStyle, unicodeRange } = rule.style;
    const range = unicodeRange ? `unicode-range:${unicodeRange};` : "";
    return `@font-face{font-family:"PT Sans";font-weight:${fontWeight || 400};font-style:${fontStyle || "normal"};${range}src:url(${data})}`;
  }));
  return written.join("");
}

function wrapped(text, width, px) {
  const pen = document.createElement("canvas").getContext("2d"), lines = [];
  pen.font = `${px}px "PT Sans", sans-serif`;
  for (const word of text.split(" ").filter(Boolean)) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && pen.measureText(longer).width <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

async function pictureOf(charts, title, source) {
  const holder = element("div", { style: `position:absolute;visibility:hidden;color:${INK};color-scheme:light` });
  document.body.append(holder);
  const left = Math.min(...charts.map(({ box }) => box.left)), top = Math.min(...charts.map(({ box }) => box.top));
  const width = Math.max(480, Math.max(...charts.map(({ box }) => box.right)) - left) + 2 * GAP;
  const picture = element("svg", { xmlns: SVG, width, "font-family": "PT Sans, sans-serif", fill: INK });
  picture.append(element("rect", { width: "100%", height: "100%", fill: "#ffffff" }));
  let y = GAP;
  const write = (text, px, weight) => {
    for (const line of wrapped(text, width - 2 * GAP, px)) {
      y += LINE;
      picture.append(element("text", { x: GAP, y, "font-size": px, "font-weight": weight }, line));
    }
  };
  write(title, 14, 400);
  const below = y + GAP + LINE;
  for (const { svg, caption, box } of charts) {
    const copy = inInk(svg, holder), x = GAP + box.left - left;
    const at = { x, y: below + box.top - top, width: box.width, height: box.height };
    for (const [name, value] of Object.entries(at)) copy.setAttribute(name, value);
    picture.append(copy, element("text", { x: x + 4, y: at.y - 6, "font-size": 12, "font-weight": 700 }, caption[0]?.toUpperCase() + caption.slice(1)));
  }
  holder.remove();
  y = below + Math.max(...charts.map(({ box }) => box.bottom)) - top;
  write(source, 11, 400);
  picture.setAttribute("height", y + GAP);
  const style = document.createElementNS(SVG, "style");
  style.textContent = await font();
  picture.prepend(style);
  return { text: new XMLSerializer().serializeToString(picture), width, height: y + GAP };
}

async function asPng({ text, width, height }) {
  const image = new Image(), canvas = element("canvas", { width: width * SCALE, height: height * SCALE });
  image.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  await image.decode();
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function render({ model, el }) {
  const menu = element("details", { class: "lab-details lab-export" }, element("summary", {}, "Export"));
  const box = element("div", { class: "lab-export-box" }), says = element("p", { role: "status", class: "lab-note" });
  menu.append(box, says);
  const choose = (label, options) => {
    const select = element("select", {}, ...options.map(([value, text]) => element("option", { value }, text)));
    return { select, row: element("label", {}, element("span", {}, label), select) };
  };
  const buttons = (label, named, ask) => {
    const made = Object.entries(named).map(([key, text]) => labButton(text, {
      press: () => {
        says.textContent = "";
        model.send(ask(key));
      },
    }));
    return element("div", { class: "lab-buttons", role: "group", "aria-label": label }, ...made);
  };
  function offer({ lines, libraries, rows, notes }) {
    const line = choose("Python file that trains", lines), kind = choose("Rows of", rows.map((name) => [name, name]));
    const script = buttons("Python file, with", libraries, (library) => ({ ask: "script", line: Number(line.select.value), library }));
    box.replaceChildren(
      ...(lines.length ? [line.row, script] : []),
      kind.row,
      buttons("Rows, as", { csv: "CSV" }, () => ({ ask: "rows", rows: kind.select.value })),
      element("span", {}, "Picture of the charts"),
      buttons("Picture, as", { svg: "SVG", png: "PNG" }, (form) => ({ ask: "picture", form })),
      ...notes.map((note) => element("p", { class: "lab-note" }, note)),
    );
  }
  async function draw({ form, file, title, source }) {
    await document.fonts.ready;
    const charts = await drawnCharts(el.getRootNode().host.closest(".lab"));
    const picture = await pictureOf(charts, title, source);
    if (form === "png") save([await asPng(picture)], "image/png", `${file}.png`);
    else save([picture.text], "image/svg+xml", `${file}.svg`);
    says.textContent = `${file}.${form} is saved.`;
  }
  function heard(content, buffers) {
    if (content.is === "choices") offer(content);
    else if (content.is === "sorry") says.textContent = content.sentence;
    else if (content.is === "picture") draw(content).catch((error) => { says.textContent = `No picture: ${error.message}.`; });
    else if (content.is === "file") {
      save(buffers, content.type, content.file);
      says.textContent = `${content.file} is saved.`;
    }
  }
  model.on("msg:custom", heard);
  menu.addEventListener("toggle", () => { if (menu.open) model.send({ ask: "open" }); });
  el.append(menu);
  return () => model.off("msg:custom", heard);
}
export default { render };
