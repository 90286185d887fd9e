// A folder of images, chosen by a button or dropped on the field for files beside it: packed here into a ZIP archive, which that
// field then takes as if somebody had dropped it. By itself it would take the files without their folders, which are the classes.
const MOST_FILES = 0xffff; // a ZIP archive without the extension for more
const LOCAL = 0x04034b50, CENTRAL = 0x02014b50, END = 0x06054b50, VERSION = 20, UTF8 = 0x0800, FIRST_DAY = 0x21;

const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1;
  return byte;
});

function crc32(bytes) {
  let crc = ~0;
  for (const byte of bytes) crc = CRC[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  return ~crc >>> 0;
}

// A part of an archive: numbers as [bytes, value], little-endian, and bytes as they are.
function part(...fields) {
  return fields.flatMap((field) => {
    if (field instanceof Uint8Array) return [field];
    const [size, value] = field;
    return [Uint8Array.from({ length: size }, (_, place) => value >>> (8 * place))];
  });
}

// Images are compressed already, so they are stored as they are. The form: PKWARE's APPNOTE.TXT, 4.3.
async function zipped(files) {
  const parts = [], directory = [];
  let at = 0;
  const add = (more, into) => {
    into.push(...more);
    return more.reduce((sum, { length }) => sum + length, 0);
  };
  let directoryBytes = 0;
  for (const [path, file] of files) {
    const name = new TextEncoder().encode(path), content = new Uint8Array(await file.arrayBuffer());
    const about = [[2, VERSION], [2, UTF8], [2, 0], [2, 0], [2, FIRST_DAY], [4, crc32(content)], [4, content.length], [4, content.length],
      [2, name.length], [2, 0]];
    directoryBytes += add(part([4, CENTRAL], [2, VERSION], ...about, [2, 0], [2, 0], [2, 0], [4, 0], [4, at], name), directory);
    at += add(part([4, LOCAL], ...about, name, content), parts);
  }
  const count = [2, files.length];
  const end = part([4, END], [2, 0], [2, 0], count, count, [4, directoryBytes], [4, at], [2, 0]);
  return new Blob([...parts, ...directory, ...end], { type: "application/zip" });
}

// All files below a dropped file or folder, each with its path.
async function below(entry) {
  const path = entry.fullPath.replace(/^\//, "");
  if (entry.isFile) return [[path, await new Promise((done, failed) => entry.file(done, failed))]];
  const reader = entry.createReader(), found = [];
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed)); // a hundred at a time
    if (!some.length) return found;
    for (const one of some) found.push(...(await below(one)));
  }
}

function render({ model, el }) {
  const title = "A folder that holds a folder of PNG or JPEG files for each class; it may also be dropped above";
  const input = document.createElement("input"), says = statusLine();
  const button = labButton("Choose a folder of images", { title, press: () => input.click() });
  input.type = "file";
  input.webkitdirectory = true;
  input.hidden = true;

  async function bring(name, find) {
    says.textContent = "Packing the folder.";
    try {
      const files = await find(), size = files.reduce((sum, [, file]) => sum + file.size, 0), most = model.get("most_bytes");
      const mib = (bytes) => `${Math.ceil(bytes / 2 ** 20)} MiB`;
      if (!files.length) throw new Error(`expected a folder of images for each class, got no file in “${name}”`);
      if (files.length > MOST_FILES) {
        throw new Error(`expected at most ${MOST_FILES.toLocaleString("en")} files, got ${files.length.toLocaleString("en")}; bring fewer`);
      }
      if (size > most) throw new Error(`expected at most ${mib(most)} of images, got ${mib(size)}; bring fewer`);
      const carried = new DataTransfer(), field = fileField();
      carried.items.add(new File([await zipped(files)], `${name}.zip`, { type: "application/zip" }));
      field.files = carried.files;
      field.dispatchEvent(new Event("change", { bubbles: true, composed: true }));
      says.textContent = `${files.length.toLocaleString("en")} ${files.length === 1 ? "file" : "files"} of “${name}”.`;
    } catch (error) {
      says.textContent = `This folder cannot be used: ${error.message}.`;
    }
  }

  const panel = () => el.getRootNode().host?.closest(".lab-own-fields");
  const fileField = () => panel().querySelector("marimo-file").shadowRoot.querySelector("input[type=file]");

  input.addEventListener("change", () => {
    const files = [...input.files].map((file) => [file.webkitRelativePath, file]);
    input.value = ""; // so that the same folder can be chosen again
    if (files.length) bring(files[0][0].split("/")[0], async () => files);
  });
  function dropped(event) {
    if (!event.composedPath().includes(panel())) return;
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
    if (!entries.some((entry) => entry.isDirectory)) return; // files alone: the field takes them
    event.preventDefault();
    event.stopPropagation();
    event.composedPath()[0].dispatchEvent(new DragEvent("dragleave", { bubbles: true, composed: true }));
    bring(entries[0].name, async () => (await Promise.all(entries.map(below))).flat());
  }
  document.addEventListener("drop", dropped, { capture: true });
  el.append(button, input, says);
  return () => document.removeEventListener("drop", dropped, { capture: true });
}
export default { render };
