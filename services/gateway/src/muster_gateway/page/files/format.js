// Figures and times for people.

const BINARY = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const BYTES = /^(memory|ephemeral-storage|hugepages-.*|storage)$/;

/** A quantity in its type's unit, without the unit's name: vcore in cores, memory in Gi, other types unchanged. */
export function quantity(type, value, beside = value) {
  if (type === "vcore") return number(value / 1000, beside / 1000);
  if (BYTES.test(type)) return bytes(value);
  return number(value, beside);
}

/** What a type is drawn in: quantities are divided by `by`, and the axis says the unit. */
export function drawnIn(type) {
  if (type === "vcore") return { by: 1000, unit: "cores" };
  return BYTES.test(type) ? { by: 2 ** 30, unit: `${type}, Gi` } : { by: 1, unit: type };
}

/** The used part: "299 of 753 cores". */
export function usedOf(type, used, total) {
  return `${quantity(type, used, total)} of ${quantity(type, total)}${unit(type) ? ` ${unit(type)}` : ""}`;
}

/** The unit after a quantity. */
export function unit(type) {
  return type === "vcore" ? "cores" : "";
}

/** Bytes, with a binary prefix. */
export function bytes(value) {
  let left = Math.abs(value);
  let step = 0;
  while (left >= 1024 && step < BINARY.length - 1) {
    left /= 1024;
    step += 1;
  }
  return (value < 0 ? "−" : "") + short(left) + BINARY[step];
}

/** A number: exact up to 99,999, then with k, M, G. Beside a larger number it has that number's precision. */
export function number(value, beside = value) {
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size < 1000 || Math.max(size, Math.abs(beside)) < 100_000) return sign + (Number.isInteger(size) ? grouped(size) : short(size));
  for (const [limit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= limit) return sign + short(size / limit) + letter;
  }
  return sign + grouped(size);
}

/** A whole number with all its digits. */
export function grouped(value) {
  return Math.round(value).toLocaleString("en-US");
}

function short(value) {
  const digits = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  const text = value.toFixed(digits);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : grouped(value);
}

/** All of a resource in one line: "2 cores, 4Gi memory". */
export function resource(quantities) {
  return types(quantities).map((type) => amount(type, quantities[type])).join(", ") || "nothing";
}

/** One quantity with its unit or type. */
export function amount(type, value) {
  return `${quantity(type, value)} ${unit(type) || type}`;
}

/** Orders names, with the numbers in them as numbers. */
export const natural = new Intl.Collator("en", { numeric: true });

/** The types of some resources: vcore and memory first, then by name. */
export function types(...resources) {
  const found = new Set(resources.flatMap((each) => Object.keys(each ?? {})));
  const rank = (type) => (type === "vcore" ? 0 : type === "memory" ? 1 : 2);
  return [...found].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : a > b ? 1 : 0));
}

/** The used percentage of a total, rounded down; null without a total. */
export function percent(used, total) {
  if (!(total > 0)) return used > 0 ? 100 : null;
  return Math.floor((100 * used) / total);
}

/** The entry of a type, else 0. Own entries only, because the table comes from the cluster. */
export function of(quantities, type) {
  return quantities && Object.hasOwn(quantities, type) ? quantities[type] : 0;
}

/** "1 node", "2 nodes". */
export function count(value, one, many = `${one}s`) {
  return `${grouped(value)} ${value === 1 ? one : many}`;
}

// ---- times: REST has nanoseconds since 1970 ------------------------------------------------------------------------

export function ms(ns) {
  return ns / 1e6;
}

/** A duration in its two largest units. */
export function duration(milliseconds) {
  if (milliseconds > 0 && milliseconds < 0.995) return `${Math.ceil(milliseconds * 1000)} µs`;
  if (milliseconds < 1000) return `${Math.max(0, Math.round(milliseconds))} ms`;
  let seconds = milliseconds / 1000;
  if (seconds < 10) return `${seconds.toFixed(1).replace(/\.0$/, "")} s`;
  seconds = Math.round(seconds);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return pair(Math.floor(seconds / 60), "min", seconds % 60, "s");
  if (seconds < 86_400) return pair(Math.floor(seconds / 3600), "h", Math.floor((seconds % 3600) / 60), "min");
  return pair(Math.floor(seconds / 86_400), "d", Math.floor((seconds % 86_400) / 3600), "h");
}

function pair(large, largeUnit, small, smallUnit) {
  return small ? `${large} ${largeUnit} ${small} ${smallUnit}` : `${large} ${largeUnit}`;
}

/** The time since a moment. The clocks of cluster and reader may differ a little, so a future moment is "now". */
export function ago(ns, now = Date.now()) {
  const passed = now - ms(ns);
  return passed < 1000 ? "now" : `${duration(Math.floor(passed / 1000) * 1000)} ago`;
}

const pad = (value, width = 2) => String(value).padStart(width, "0");

/** The time of the day, in the reader's zone. */
export function clock(milliseconds, { millis = false, seconds = true } = {}) {
  const date = new Date(milliseconds);
  const minutes = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
  if (!seconds) return minutes;
  return `${minutes}:${pad(date.getSeconds())}` + (millis ? `.${pad(date.getMilliseconds(), 3)}` : "");
}

/** The day of the year, in the reader's zone. */
export function day(milliseconds) {
  const date = new Date(milliseconds);
  return `${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
}

/** Day and time, in the reader's zone. */
export function moment(ns) {
  if (!ns || ns < 0) return "never";
  const date = new Date(ms(ns));
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${clock(date.getTime())}`;
}
