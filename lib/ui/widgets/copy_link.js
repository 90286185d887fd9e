// Copies the page's address, which holds the state of all controls, or its first answer as text, which can be sent where the
// link does not open. The address gets a network that was typed but not submitted, and loses the access token.
const hereOnly = () => /^(localhost|127\.|\[::1\])/.test(location.host);

function link() {
  const url = new URL(location.href);
  url.searchParams.delete("access_token");
  for (const field of document.querySelectorAll(".lab-network input")) {
    if (field.value !== field.defaultValue) url.searchParams.set(field.name, field.value);
  }
  return url.href;
}

function answer() {
  const said = document.querySelector(".lab-sentence")?.innerText, form = document.querySelector(".lab-network");
  const rows = [...document.querySelectorAll(".ways li")].map((row) => `- ${row.ariaLabel}`);
  const notes = [...document.querySelectorAll(".lab-note > b:first-child")] // why, and the line to change
    .map((head) => head.parentElement.innerText.trim().replace(/\n+/g, "\n"));
  const [hidden, size] = form?.querySelectorAll("input:not([type=hidden])") ?? [];
  const network = form && ["span", "label"].map((name) => form.querySelector(name).innerText.trim());
  return [
    document.querySelector(".lab-title h1").innerText, said, ...notes, rows.join("\n"),
    form && `${network[0].replace("Your n", "N")}${hidden.defaultValue.replaceAll(/, */g, "→")}${network[1]} ${size.defaultValue}`,
    `${document.querySelector(".lab-line p").innerText}, ${new Date().toISOString().slice(0, 10)}`, hereOnly() ? "" : link(),
  ].filter(Boolean).join("\n\n");
}

function render({ el }) {
  el.classList.add("lab-buttons");
  const says = statusLine();
  says.classList.add("copy-says");
  async function copy(text, done, instead) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      done = instead; // no permission, or an insecure connection
    }
    says.textContent = done;
    setTimeout(() => { says.textContent = ""; }, Math.max(1500, 60 * done.length));
  }
  const opens = hereOnly() ? "Copied. This link opens on this computer only; “Copy answer” copies text to send" : "Copied";
  el.append(
    labButton("Copy link", { title: "Copy a link to this page with its current settings",
      press: () => copy(link(), opens, "Copy it from the address bar") }),
    labButton("Copy answer", { title: "Copy this page's answer and its figures as text",
      press: () => copy(answer(), "Copied as text", "The browser does not let this page copy; print it instead") }),
    says,
  );
}
export default { render };
