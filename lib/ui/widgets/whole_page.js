// What the whole page needs, once: its charts are drawn, its controls are named, and one button is heard.
function render({ model }) {
  window.wholePageModel = model; // the title's cell may be drawn again
  if (window.wholePage) return;
  window.wholePage = true;
  drawCharts();
  watchRows();
  nameControls();
  document.addEventListener("click", (event) => {
    if (event.composedPath().some((one) => one.classList?.contains("lab-end"))) window.wholePageModel.send({ end: true });
  });
}
export default { render };
