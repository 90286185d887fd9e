// What the whole page needs, once: its charts are drawn, and its controls are named.
function render() {
  if (window.wholePage) return; // the title's cell may be drawn again
  window.wholePage = true;
  drawCharts();
  nameControls();
}
export default { render };
