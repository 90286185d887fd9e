// A button as all of this page look, and the words beside it that say what came of a press.
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
