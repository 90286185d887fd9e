// Set-up once per page: draws charts, names controls, handles one button, scrolls to the section that the address names, and
// starts sections as they come near.
function render({ model }) {
  window.wholePageModel = model; // marimo may redraw the title's cell
  if (window.wholePage) return;
  window.wholePage = true;
  drawCharts();
  watchRows();
  nameControls();
  scrollToSection();
  sayWhatIsNear();
  setInterval(sayWhatIsNear, 200);
  setInterval(followNetwork, 200);
  document.addEventListener("click", (event) => {
    if (event.composedPath().some((one) => one.classList?.contains("lab-end"))) window.wholePageModel.send({ end: true });
  });
}

// marimo draws a page long after the browser has looked for the fragment, and content drawn above it later moves it again.
function scrollToSection() {
  const until = performance.now() + 5000, name = decodeURIComponent(location.hash.slice(1));
  const moved = new AbortController(); // by the reader
  for (const kind of ["wheel", "touchmove", "keydown", "pointerdown"]) {
    window.addEventListener(kind, () => moved.abort(), { once: true, signal: moved.signal });
  }
  (function look() {
    if (!name || moved.signal.aborted || performance.now() > until) return moved.abort();
    document.getElementById(name)?.scrollIntoView();
    setTimeout(look, 100);
  })();
}
// The first page's slider changes the address's batch size. Copies it to the title and to the links to other pages.
function followNetwork() {
  for (const [name, value] of new URLSearchParams(location.search)) {
    if (!name.startsWith("net.")) continue;
    const field = document.querySelector(`.lab-network [name="${name}"]`);
    if (field && field.value === field.defaultValue && field.value !== value) field.value = field.defaultValue = value;
    for (const link of document.querySelectorAll(".lab-nav li:not(.lab-edit) a:not([href='/'])")) {
      const url = new URL(link.href);
      if (url.searchParams.get(name) === value) continue;
      url.searchParams.set(name, value);
      link.href = url.href;
    }
  }
}
const told = new Set(); // the names of sections that came near

// A section begins half a screen before the reader reaches it. The first message is sent even without names: Python sends
// everything to a page that never reports.
function sayWhatIsNear() {
  const near = [...document.querySelectorAll("[data-out-of-sight]")].filter((one) => {
    const { top, bottom } = one.getBoundingClientRect();
    return one.checkVisibility() && top < 1.5 * innerHeight && bottom > -innerHeight / 2;
  }).map((one) => one.dataset.outOfSight).filter((name) => !told.has(name));
  if (told.size && !near.length) return;
  window.wholePageModel.send({ near });
  for (const name of ["", ...near]) told.add(name);
}
export default { render };
