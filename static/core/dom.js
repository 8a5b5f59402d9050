// The DOM without markup strings: what a model, a file or a server says is text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
/** The element that carries this data-testid. */
export const handle = (name, root = document) => root.querySelector(`[data-testid="${name}"]`);

/** An element; `props` are attributes, `data` an object of data-* values; children are nodes or text. */
export function el(tag, { data = {}, ...props } = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  for (const [name, value] of Object.entries(data)) node.dataset[name] = value;
  node.append(...children.filter((child) => child != null));
  return node;
}

/** An icon from the sprites of the page. */
export function icon(name, className = "") {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", `ic ${className}`);
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** A number in tabular figures. */
export const num = (text) => el("b", { class: "num" }, String(text));

/** Set text only where it differs: unchanged cells cost no layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The value of a design token; `px` of one that is a length. */
export const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const px = (name) => parseFloat(token(name));

/** Up, Down, Home and End move the focus among a container's items; one item is in the tab order. */
export function roving(container, selector) {
  container.addEventListener("keydown", (event) => {
    const items = $$(selector, container);
    const at = items.indexOf(document.activeElement.closest?.(selector));
    const to = { ArrowDown: at + 1, ArrowUp: Math.max(at - 1, 0), Home: 0, End: items.length - 1 }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    items[Math.min(to, items.length - 1)]?.focus();
  });
}
