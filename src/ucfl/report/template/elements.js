// Elements and numbers. Names come from people and files, so they are only ever text nodes: nothing
// here writes markup.

const find = (id) => document.getElementById(id);
const every = (selector) => [...document.querySelectorAll(selector)];

function fill(node, properties, children) {
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on")
      for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (key === "colour") node.style.setProperty("--c", value);
    else if (key === "width%") node.style.width = `${value}%`;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const element = (tag, properties, ...children) =>
  fill(document.createElement(tag), properties, children);
const drawn = (tag, properties, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
// <bdi> keeps a right-to-left name from turning its surroundings around.
const name = (text) => element("bdi", { class: "name", title: text }, text);
// The same where it may be wrapped, between a method's name and its options.
const wrapped = (text) =>
  element(
    "bdi",
    { class: "name", title: text },
    ...text.split(/(?<=:)/).flatMap((part) => [part, element("wbr", {})]),
  );
const sample = (method) =>
  drawn(
    "svg",
    { class: "sample", width: 18, height: 8, viewBox: "0 0 18 8", "aria-hidden": "true" },
    drawn("path", {
      class: "line strong",
      colour: method.colour,
      d: "M0,4H18",
      "stroke-dasharray": method.dashes?.length ? method.dashes.join(" ") : null,
    }),
  );
const swatch = (colour) => element("i", { class: "swatch", colour, "aria-hidden": "true" });

const short = (value) => Number(value.toFixed(value < 10 ? 2 : value < 1000 ? 1 : 0)).toString();
const both = (colours) => `light-dark(${colours[0]}, ${colours[1]})`;
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++)
    found.push(Number((i * step).toPrecision(12)));
  return found;
}
