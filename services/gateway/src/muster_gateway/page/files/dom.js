// Creates and updates elements. Text is set only as text and attributes only as attributes: nothing from the cluster
// is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const FIELDS = new Set(["INPUT", "SELECT", "TEXTAREA"]);

/** An HTML element. Children: elements, texts, numbers, arrays of these. null, undefined and false are left out. */
export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** An SVG element. */
export function s(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

// Props: `on` is a table of listeners, `style` one of CSS properties. `key` identifies an element among its siblings
// when the page is redrawn. `keep` names the owner of the element's inside, which fill() leaves alone: only the same
// owner's element is the same. `value` and `checked` are the field's own. All others are attributes.
//
// A redraw keeps the old elements and takes the new listeners: a listener finds its elements from event.currentTarget.
// Those that were made beside it are not in the document.
function filled(element, props, children) {
  const mine = { on: {}, types: new Set(), key: null, keep: null, style: null };
  element.mine = mine;
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") listen(element, value);
    else if (name === "key") mine.key = String(value);
    else if (name === "keep") mine.keep = value;
    else if (name === "style") restyle(element, value);
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  // A select accepts a value only after its options exist.
  if (element.tagName === "SELECT" && props && props.value !== undefined) element.value = props.value;
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== null && child !== undefined && child !== false) element.append(String(child));
  }
}

// In the place of all earlier listeners: those of an older tree know only its state.
function listen(element, table) {
  const { mine } = element;
  for (const type of Object.keys(table)) {
    if (!mine.types.has(type)) element.addEventListener(type, heard);
    mine.types.add(type);
  }
  mine.on = table;
}

function heard(event) {
  const listener = event.currentTarget.mine.on[event.type];
  if (listener) listener(event);
}

function restyle(element, wanted) {
  for (const name of Object.keys(element.mine.style ?? {})) if (!(name in wanted)) element.style.removeProperty(name);
  for (const [name, value] of Object.entries(wanted)) element.style.setProperty(name, String(value));
  element.mine.style = wanted;
}

/**
 * Makes an element's inside as wanted. Equal parts keep their elements, and with them focus, selection and scroll
 * positions.
 */
export function fill(element, ...children) {
  const wanted = document.createElement(element.tagName);
  append(wanted, children);
  const focused = document.activeElement;
  align(element, wanted);
  if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

function align(old, wanted) {
  const keyed = new Map();
  for (const child of old.children) if (child.mine?.key != null) keyed.set(child.mine.key, child);
  let here = old.firstChild;
  for (const next of [...wanted.childNodes]) {
    const key = next.mine?.key ?? null;
    let match = here;
    if (key !== null) match = keyed.get(key) ?? null;
    else while (match && match.mine?.key != null) match = match.nextSibling;
    if (match === null || !alike(match, next)) {
      old.insertBefore(next, here);
      if (match !== null && match === here && key === null) {
        here = match.nextSibling;
        match.remove();
      }
      continue;
    }
    if (match === here) here = here.nextSibling;
    else old.insertBefore(match, here);
    renew(match, next);
  }
  while (here) {
    const gone = here;
    here = here.nextSibling;
    gone.remove();
  }
}

function alike(old, next) {
  if (old.nodeType !== next.nodeType) return false;
  if (old.nodeType !== Node.ELEMENT_NODE) return true;
  return old.tagName === next.tagName && (old.mine?.key ?? null) === (next.mine?.key ?? null) && (old.mine?.keep ?? null) === (next.mine?.keep ?? null);
}

function renew(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  if (next.mine?.keep) return;
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && name !== "style" && !(name === "open" && old.tagName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.mine && next.mine) {
    listen(old, next.mine.on);
    restyle(old, next.mine.style ?? {});
  }
  const value = FIELDS.has(old.tagName) ? next.value : null; // read now: align() moves a select's options away
  align(old, next);
  // A focused field keeps the text that the user types.
  if (value !== null && old !== document.activeElement && old.value !== value) old.value = value;
  if (old.type === "checkbox") old.checked = next.checked;
}
