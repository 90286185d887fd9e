// Shows nothing: it tells which section of the page is looked at, by the number of its heading: the last one above the
// middle of the window. Cells are watched in their place: a heading is another element when its cell has run again.
function render({ model }) {
  const headings = [...document.querySelectorAll("h2")].map((heading) => heading.closest("[data-cell-id]") ?? heading);
  const above = new Set();
  let told = null;
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) isIntersecting ? above.add(target) : above.delete(target);
    const section = Math.max(1, above.size);
    if (section !== told) model.send({ section: (told = section) });
  }, { rootMargin: "1000000px 0px -50% 0px" });
  headings.forEach((heading) => observer.observe(heading));
  return () => observer.disconnect();
}
export default { render };
