// Animates rows, and the marks in them, to their new positions when a list's `data-moved` changes, with the order or the times.
const MOVE = { duration: 150, easing: "ease-out" };
const rowsBefore = new Map(); // by row name: the last positions of the row and its mark

function moveRows(list) {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  for (const row of list.children) {
    const mark = row.querySelector(".ways-mark"), name = row.dataset.row;
    const now = { top: row.offsetTop, left: mark ? mark.style.left : null }, before = rowsBefore.get(name);
    rowsBefore.set(name, now);
    if (!before || still) continue;
    if (before.top !== now.top) row.animate({ transform: [`translateY(${before.top - now.top}px)`, "none"] }, MOVE);
    if (mark && before.left && before.left !== now.left) mark.animate({ left: [before.left, now.left] }, MOVE);
  }
}

function watchRows() {
  new MutationObserver((changes) => {
    const lists = new Set();
    for (const { target, addedNodes } of changes) {
      if (target.matches?.("[data-moved]")) lists.add(target);
      for (const added of addedNodes) added.querySelectorAll?.("[data-moved]").forEach((list) => lists.add(list));
    }
    lists.forEach(moveRows);
  }).observe(document.body, { childList: true, subtree: true, attributeFilter: ["data-moved"] });
  document.querySelectorAll("[data-moved]").forEach(moveRows);
}
