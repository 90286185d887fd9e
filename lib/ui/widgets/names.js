// Adds ARIA attributes that marimo's controls lack: a slider's value (marimo gives its position), the range that a thumb belongs
// to, names without markup, the page's main landmark. Also makes scrolling tables reachable by keyboard. Writes only attributes
// that differ.
const SOON_MS = 250;
const CONTROLS = "marimo-ui-element > [data-label]";

function set(element, name, value) {
  if (element && element.getAttribute(name) !== value) element.setAttribute(name, value);
}

function withoutMarkup(html) {
  return new DOMParser().parseFromString(html, "text/html").body.textContent.trim();
}

function aid(control) {
  const root = control.shadowRoot;
  const label = withoutMarkup(JSON.parse(control.dataset.label) ?? "");
  const steps = JSON.parse(control.dataset.steps ?? "null");
  const thumbs = root.querySelectorAll("[role=slider]");
  thumbs.forEach((thumb, index) => {
    if (steps) set(thumb, "aria-valuetext", String(steps[thumb.getAttribute("aria-valuenow")]));
    if (thumbs.length === 2) set(thumb, "aria-label", `${label}, ${["lowest", "highest"][index]}`);
  });
  for (const named of root.querySelectorAll("[aria-label*='<']")) set(named, "aria-label", withoutMarkup(named.ariaLabel));
  set(root.querySelector("input[type=file]"), "aria-label", label);
}

function nameControls() {
  const followed = new WeakSet();
  let due = null;
  // Delayed past the drawing of a result, and reads all sizes before writing: otherwise each write would recompute styles.
  const soon = () => (due ??= setTimeout(look, SOON_MS));
  function look() {
    due = null;
    set(document.getElementById("App"), "role", "main");
    set(document.querySelector("button[aria-haspopup=menu]:not([data-testid])"), "aria-label", "Notebook menu");
    const boxes = [...document.querySelectorAll(".lab-scroll")].map((box) => [box, box.scrollWidth > box.clientWidth]);
    for (const [box, scrolls] of boxes) set(box, "tabindex", scrolls ? "0" : "-1");
    for (const control of document.querySelectorAll(CONTROLS)) {
      if (!control.shadowRoot || followed.has(control)) continue;
      followed.add(control);
      const what = { childList: true, subtree: true, attributeFilter: ["aria-valuenow", "aria-label"] };
      new MutationObserver(() => aid(control)).observe(control.shadowRoot, what);
      new MutationObserver(() => aid(control)).observe(control, { attributeFilter: ["data-label", "data-steps"] });
      aid(control);
    }
  }
  new MutationObserver(soon).observe(document.body, { childList: true, subtree: true });
  window.addEventListener("resize", soon);
  look();
}
