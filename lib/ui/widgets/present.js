// The presenter's view: one section of the page per screen, enlarged for a projector. A section begins with a heading. Screen 0
// holds everything before the first heading, and comes first only if it contains an experiment. The address holds the screen's
// number, as `present`, for this page alone; the kernel ignores it. Page down and page up move between screens, because a
// presenter's remote sends those keys.
const LAID_OUT_PX = 1240; // the layout's width; wider windows enlarge the page
const NAME = "present";
const EXPERIMENT = ".answer, .lab, .race-head"; // experiments start with their controls or their state

function address(number) {
  const url = new URL(window.location.href);
  if (number === null) url.searchParams.delete(NAME);
  else url.searchParams.set(NAME, String(number));
  history.replaceState(history.state, "", url);
}

function screens() {
  const found = [[]];
  for (const cell of document.querySelectorAll("#App .marimo-cell")) {
    if (cell.querySelector(`h2, ${EXPERIMENT}`)?.matches("h2")) found.push([]); // a heading within an experiment does not count
    found.at(-1).push(cell);
  }
  return found;
}

function titleOf(cells) {
  return cells.map((cell) => cell.querySelector("h2, h1")?.textContent).find(Boolean) ?? "";
}

// Whether the focused element uses the arrow keys itself.
function inControl() {
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  return Boolean(at?.closest("input, select, textarea, summary, [role=slider], [role=combobox], [role=listbox], [contenteditable]"));
}

function isTyping(event) {
  return event.composedPath()[0]?.matches?.("textarea, [contenteditable]");
}

function presenter() {
  let at = null, bar = null, due = 0, watched = null;

  function arrange() {
    due = 0;
    const found = screens();
    const number = Math.min(at, found.length - 1);
    const shown = new Set(found[number]);
    let changed = false;
    for (const cell of found.flat()) {
      const off = shown.has(cell) ? null : "";
      if ((cell.dataset.offScreen ?? null) === off) continue;
      if (off === null) delete cell.dataset.offScreen;
      else cell.dataset.offScreen = off;
      changed = true;
    }
    // A class, because a rule below `#App:has(.lab-beside)` makes the browser recompute all styles at each change.
    const beside = found[number].some((cell) => cell.querySelector(".lab-beside"));
    document.documentElement.classList.toggle("presenting-beside", beside);
    const place = number ? ` (${number} of ${found.length - 1})` : "";
    bar.querySelector("[role=status]").textContent = titleOf(found[number]) + place;
    bar.querySelector("[data-go='-1']").disabled = number === 0;
    bar.querySelector("[data-go='1']").disabled = number === found.length - 1;
    if (changed) window.dispatchEvent(new Event("resize")); // a chart drawn while hidden has no width yet
  }

  function enlarge() {
    document.getElementById("App").style.zoom = at === null ? "" : String(Math.max(1, window.innerWidth / LAID_OUT_PX));
  }

  function go(step) {
    at = Math.max(0, Math.min(at + step, screens().length - 1));
    address(at);
    arrange();
    document.getElementById("App").scrollTo(0, 0);
  }

  function enter(number) {
    if (at !== null) return;
    at = number;
    bar = document.createElement("nav");
    bar.className = "lab-presenter";
    bar.ariaLabel = "Presentation";
    const back = labButton("‹", { label: "Previous screen", press: () => go(-1) });
    const on = labButton("›", { label: "Next screen", press: () => go(1) });
    [back.dataset.go, on.dataset.go] = ["-1", "1"];
    bar.append(back, statusLine(), on, labButton("Leave", { label: "Leave the presentation", press: leave }));
    document.body.append(bar);
    document.documentElement.classList.add("presenting");
    address(at);
    enlarge();
    arrange();
    watched = new MutationObserver(() => { due ||= requestAnimationFrame(arrange); });
    watched.observe(document.getElementById("App"), { childList: true, subtree: true });
  }

  function leave() {
    if (at === null) return;
    const [here] = screens()[Math.min(at, screens().length - 1)];
    at = null;
    watched.disconnect();
    cancelAnimationFrame(due);
    due = 0;
    bar.remove();
    document.documentElement.classList.remove("presenting", "presenting-beside");
    for (const cell of document.querySelectorAll("[data-off-screen]")) delete cell.dataset.offScreen;
    address(null);
    enlarge();
    window.dispatchEvent(new Event("resize"));
    here?.scrollIntoView();
  }

  window.addEventListener("keydown", (event) => {
    if (at === null || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
    const steps = { PageDown: 1, PageUp: -1, ...(inControl() ? {} : { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }) };
    if (event.key === "Escape") leave();
    else if (steps[event.key] && !isTyping(event)) go(steps[event.key]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }, { capture: true }); // before a focused slider handles page down
  window.addEventListener("resize", () => { if (at !== null) enlarge(); });
  return { enter };
}

function render({ el }) {
  const page = (window.presenter ??= presenter());
  const press = () => page.enter(screens()[0].some((cell) => cell.querySelector(EXPERIMENT)) ? 0 : 1);
  const start = labButton("Present", { title: "One section per screen, for a projector; Esc exits", press });
  const asked = new URL(window.location.href).searchParams.get(NAME);
  const offer = () => {
    if (screens().length < 2) return; // one screen needs no presentation, and most sections arrive after the title
    sections.disconnect();
    el.append(start);
    if (asked !== null) page.enter(Math.max(0, Math.trunc(Number(asked)) || 0));
  };
  const sections = new MutationObserver(offer);
  sections.observe(document.getElementById("App"), { childList: true, subtree: true });
  offer();
  return () => sections.disconnect();
}
export default { render };
