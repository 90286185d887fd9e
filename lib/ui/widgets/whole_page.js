// What the whole page needs, once: its charts are drawn, its controls are named, one button is heard, and the section
// that the address names is scrolled to.
function render({ model }) {
  window.wholePageModel = model; // the title's cell may be drawn again
  if (window.wholePage) return;
  window.wholePage = true;
  drawCharts();
  watchRows();
  nameControls();
  scrollToSection();
  document.addEventListener("click", (event) => {
    if (event.composedPath().some((one) => one.classList?.contains("lab-end"))) window.wholePageModel.send({ end: true });
  });
}

// marimo draws a page long after the browser has looked for its fragment; what is drawn above it later moves it again.
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
export default { render };
