// What a person with other eyes or without a mouse would stumble over, in words. Run in the page by test_manners.py.
() => {
  const problems = [];
  const seen = (one) => one.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && one.getClientRects().length > 0;
  const said = (one) => `${one.tagName.toLowerCase()} ${(one.textContent || "").trim().slice(0, 40)}`;
  const numbers = (colour) => {
    const found = colour.match(/[\d.]+/g).map(Number);
    return found.length === 3 ? [...found, 1] : found;
  };
  const over = (top, ground) => top.slice(0, 3).map((part, at) => part * top[3] + ground[at] * (1 - top[3]));
  const light = (colour) => {
    const [r, g, b] = colour.map((part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const groundOf = (one) => {
    const layers = [];
    for (let at = one; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((ground, layer) => over(layer, ground), [255, 255, 255]);
  };
  const contrast = (one, other) => {
    const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };

  // 1. Each text against what is behind it. (What is not enabled need not stand out.)
  for (const one of document.querySelectorAll("body *")) {
    if (one.closest("svg, canvas, option, [hidden], :disabled") || !seen(one) || one.classList.contains("skip")) continue;
    if (![...one.childNodes].some((child) => child.nodeType === 3 && child.data.trim())) continue;
    const ground = groundOf(one);
    const found = contrast(over(numbers(getComputedStyle(one).color), ground), ground);
    if (found < 4.5) problems.push(`contrast: ${said(one)}: ${found.toFixed(2)}`);
  }
  for (const one of document.querySelectorAll("svg text")) {
    const box = one.ownerSVGElement;
    const found = contrast(numbers(getComputedStyle(one).fill).slice(0, 3), groundOf(box.parentElement));
    if (found < 4.5 && !one.classList.contains("instate")) problems.push(`contrast: ${said(one)}: ${found.toFixed(2)}`);
    if (one.classList.contains("instate")) {
      const inside = contrast(numbers(getComputedStyle(one).fill).slice(0, 3), numbers(getComputedStyle(one.previousElementSibling).fill).slice(0, 3));
      if (inside < 4.5) problems.push(`contrast: ${said(one)}: ${inside.toFixed(2)}`);
    }
  }
  const probe = document.createElement("span");
  probe.style.color = "var(--focus)";
  document.body.append(probe);
  for (const ground of ["body", ".top"]) {
    const found = contrast(numbers(getComputedStyle(probe).color).slice(0, 3), groundOf(document.querySelector(ground)));
    if (found < 3) problems.push(`contrast: the focus on ${ground}: ${found.toFixed(2)}`);
  }
  probe.remove();

  // 2. Each control, drawing and table has a name; what a name refers to is there.
  const nameOf = (one) => {
    const by = one.getAttribute("aria-labelledby");
    if (by) return by.split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join(" ");
    return one.getAttribute("aria-label") || [...(one.labels ?? [])].map((each) => each.textContent).join(" ") || one.caption?.textContent || one.textContent || "";
  };
  for (const one of document.querySelectorAll("a, button, input, select, table, nav, svg, canvas, [role=meter], [role=search], main section")) {
    if (seen(one) && !nameOf(one).trim()) problems.push(`name: ${one.outerHTML.slice(0, 120)}`);
  }
  for (const one of document.querySelectorAll("a")) if (!one.getAttribute("href")) problems.push(`link: ${said(one)}`);
  for (const one of document.querySelectorAll("[aria-describedby], [aria-labelledby]")) {
    for (const id of `${one.getAttribute("aria-describedby") ?? ""} ${one.getAttribute("aria-labelledby") ?? ""}`.trim().split(/\s+/)) {
      if (!document.getElementById(id)) problems.push(`refers to nothing: ${id}`);
    }
  }
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  for (const id of new Set(ids)) if (ids.filter((each) => each === id).length > 1) problems.push(`id twice: ${id}`);

  // 3. Headings have an order; there is one of the first level.
  let before = 0;
  for (const one of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const level = Number(one.tagName[1]);
    if (level > before + 1) problems.push(`heading: ${said(one)} behind h${before}`);
    before = level;
  }
  if (document.querySelectorAll("h1").length !== 1) problems.push(`h1: there are ${document.querySelectorAll("h1").length}`);
  return problems;
}
