// The page's button, and the status text next to it that reports the result of a press.
function labButton(text, { title = "", label = null, press }) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "lab-button", textContent: text, title, ariaLabel: label });
  button.addEventListener("click", press);
  return button;
}

function statusLine() {
  const says = document.createElement("span");
  says.className = "lab-note";
  says.setAttribute("role", "status");
  return says;
}
