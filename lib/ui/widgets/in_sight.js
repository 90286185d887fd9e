// Shows nothing: it tells which section of the page is looked at, by the number of its heading: the last one above the
// middle of the window. Headings are looked for each time, as one is another element when its cell has run again.
const SOON_MS = 200;

function render({ model }) {
  let told = null, due = null;
  const look = () => {
    due = null;
    const above = [...document.querySelectorAll("h2")].filter((e) => e.getBoundingClientRect().top < innerHeight / 2);
    const section = Math.max(1, above.length);
    if (section !== told) model.send({ section: (told = section) });
  };
  const soon = () => (due ??= setTimeout(look, SOON_MS));
  const of = { capture: true, passive: true }; // also what scrolls within the page
  document.addEventListener("scroll", soon, of);
  soon();
  return () => {
    document.removeEventListener("scroll", soon, of);
    clearTimeout(due);
  };
}
export default { render };
