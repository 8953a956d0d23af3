// The reader's place: #/view/thing?name=value. A link needs nothing else.

/** Parses a hash. An unknown or broken one is the overview. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = path.split("/").map(plain);
  return { view: parts[0] || "overview", thing: parts.slice(1).join("/"), params: Object.fromEntries(new URLSearchParams(query)) };
}

function plain(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The hash of a view, without empty parameters. */
export function hash(view, thing = "", params = {}) {
  const kept = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) if (value !== "" && value !== null && value !== undefined) kept.set(name, value);
  const query = kept.toString();
  return `#/${view}` + (thing ? `/${encodeURIComponent(thing)}` : "") + (query ? `?${query}` : "");
}
