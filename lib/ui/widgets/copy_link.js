// Copies the page's address, which holds the state of all controls. Adds a network that was typed but not submitted, and
// removes the access token.
function render({ el }) {
  const button = labButton("Copy link", { title: "Copy a link to this page with its current settings", press: copy });
  async function copy() {
    const url = new URL(window.location.href);
    url.searchParams.delete("access_token");
    for (const field of document.querySelectorAll(".lab-network input")) {
      if (field.value !== field.defaultValue) url.searchParams.set(field.name, field.value);
    }
    const own = /^(localhost|127\.|\[::1\])/.test(url.host);
    let done = own ? "Copied. This link opens on this computer only; to send the result, print the page to a PDF" : "Copied";
    try {
      await navigator.clipboard.writeText(url.href);
    } catch {
      done = "Copy it from the address bar"; // no permission, or an insecure connection
    }
    says.textContent = done;
    setTimeout(() => { says.textContent = ""; }, own ? 6000 : 1500);
  }
  const says = statusLine();
  says.classList.add("copy-says");
  el.append(button, says);
}
export default { render };
