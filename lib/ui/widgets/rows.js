// Rows of a list with `data-moved`, which changes with every order or time: each row and its mark move from where they were.
const MOVE = { duration: 150, easing: "ease-out" };
const rowsBefore = new Map(); // by the row's name: where it and its mark were drawn

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
