// Copies the page's address, which holds the state of all controls, without an access token.
function render({ el }) {
  const button = document.createElement("button");
  button.textContent = "Copy link";
  button.className = "lab-button";
  button.title = "Copy a link to this page with all its controls as they are";
  button.addEventListener("click", async () => {
    const url = new URL(window.location.href);
    url.searchParams.delete("access_token");
    let done = "Copied";
    try {
      await navigator.clipboard.writeText(url.href);
    } catch {
      done = "Copy it from the address bar"; // no permission, or no secure connection
    }
    button.textContent = done;
    setTimeout(() => { button.textContent = "Copy link"; }, 1500);
  });
  el.append(button);
}
export default { render };
