// The form that asks for a guess: optional questions first, then the options, which submit the form, and a button to skip it.
function render({ model, el }) {
  const draw = () => {
    const asked = model.get("asked");
    if (!asked.lead) return el.replaceChildren();
    const said = {};
    const box = (tag, css, ...children) => {
      const made = document.createElement(tag);
      made.className = css;
      made.append(...children);
      return made;
    };
    const choices = ({ asks, words, options }) => {
      const radios = options.map((option) => {
        const input = Object.assign(document.createElement("input"), { type: "radio", name: `${asked.section} ${asks}`, value: option });
        input.addEventListener("change", () => { said[asks] = option; });
        return box("label", "", input, ` ${option} `);
      });
      return box("fieldset", "guess-optional", box("legend", "", words), ...radios);
    };
    const steps = ({ asks, words, options }) => {
      const input = Object.assign(document.createElement("input"), { type: "range", min: 0, max: options.length - 1, value: 0 });
      const shown = box("output", "", options[0]);
      input.addEventListener("input", () => {
        shown.textContent = options[input.value];
        input.ariaValueText = options[input.value];
        if (Number(input.value)) said[asks] = options[input.value];
        else delete said[asks];
      });
      return box("label", "guess-optional", `${words} `, input, " ", shown);
    };
    const [best, ...optional] = asked.questions;
    const press = (option) => ({ press: () => model.send({ section: asked.section, said: { ...said, [best.asks]: option } }), title: "Guess this, and see the result" });
    const options = box("div", "guess-options", ...best.options.map((option) => labButton(option, press(option))));
    options.setAttribute("role", "group");
    options.setAttribute("aria-label", best.words);
    el.replaceChildren(box("div", "guess lab-refused",
      box("p", "guess-lead", asked.lead),
      ...optional.map((one) => (one.options.length > 4 ? steps(one) : choices(one))),
      box("p", "lab-sentence", best.words),
      options,
      labButton(asked.skip, { title: asked.skip_means, press: () => model.send({ section: asked.section, skip: true }) }),
    ));
  };
  model.on("change:asked", draw);
  draw();
  return () => model.off("change:asked", draw);
}
export default { render };
