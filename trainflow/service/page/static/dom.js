// Build elements. Text is only ever set as text: nothing of a job is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...children);
  return node;
}

/** Return an element; children are nodes, or texts. Attributes that are null or false are left out. */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Return an element of a drawing. */
export function drawn(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** Set a text, if it is another one: what reads the page aloud is not to hear it again. */
export function setText(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** Return a row of table cells; `numbers` says which columns are numbers. */
export function row(cells, numbers = []) {
  return element(
    "tr",
    {},
    ...cells.map((cell, index) =>
      element("td", { class: numbers.includes(index) ? "number" : null }, cell),
    ),
  );
}

/** Return a table that scrolls by itself, and its body. */
export function table(caption, headings, numbers = []) {
  const body = element("tbody");
  const cells = headings.map((heading, index) =>
    element("th", { scope: "col", class: numbers.includes(index) ? "number" : null }, heading),
  );
  const whole = element(
    "table",
    {},
    element("caption", { class: "unseen" }, caption),
    element("thead", {}, element("tr", {}, ...cells)),
    body,
  );
  const frame = { class: "scrolled", tabindex: "0", role: "region", "aria-label": caption };
  return { frame: element("div", frame, whole), body };
}

/** Return a section with its heading. */
export function section(title, ...children) {
  const id = `section-${title.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  const heading = element("h2", { id }, title);
  return element("section", { "aria-labelledby": id }, heading, ...children);
}
