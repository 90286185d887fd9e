// Splits CSV into lines of cells. A label with a comma is quoted.
function csvLines(text) {
  return text.trim().split("\n").map((line) => (line.match(/("([^"]|"")*"|[^,]*)(,|$)/g) ?? []).map(
    (cell) => cell.replace(/,$/, "").replace(/^"|"$/g, "").replaceAll('""', '"')));
}
