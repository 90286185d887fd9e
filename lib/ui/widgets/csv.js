// Lines of comma-separated cells; a label may hold a comma, and is quoted then.
function csvLines(text) {
  return text.trim().split("\n").map((line) => (line.match(/("([^"]|"")*"|[^,]*)(,|$)/g) ?? []).map(
    (cell) => cell.replace(/,$/, "").replace(/^"|"$/g, "").replaceAll('""', '"')));
}
