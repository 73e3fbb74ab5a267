// Line plots as SVG without inline styles.
import {element} from "/ui/dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 480, HEIGHT = 150, LEFT = 44, BOTTOM = 20, TOP = 8;

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// The next of 1, 2, 5, 10, ... that is not below the value.
function niceMost(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((most) => most >= value);
}

const short = (value) => value >= 1000 ? `${+(value / 1000).toPrecision(3)}k` : `${+value.toPrecision(3)}`;

// `series`: [{name, values}], where null is a gap. `most`: the least top of the axis.
export function plot(title, unit, series, count, {most = 0} = {}) {
  const points = series.flatMap((s) => s.values).filter((v) => v !== null);
  const top = niceMost(Math.max(most, ...points, 0));
  const x = (index, length) => LEFT + (WIDTH - LEFT - 6) * (count - length + index) / Math.max(count - 1, 1);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
  const latest = (line) => (line.values.at(-1) ?? null) === null ? "–" : short(line.values.at(-1));
  const drawing = svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
    "aria-label": `${title} (${unit}): ${series.map((line) => `${line.name} ${latest(line)}`).join(", ")}`});
  for (const share of [0, 0.5, 1]) {
    const label = svg("text", {x: LEFT - 6, y: y(top * share) + 4, class: "axis", "text-anchor": "end"});
    label.textContent = short(top * share);
    const at = y(top * share);
    drawing.append(svg("line", {x1: LEFT, x2: WIDTH - 6, y1: at, y2: at, class: "rule"}), label);
  }
  for (const [text, at, anchor] of [[`${count} s ago`, LEFT, "start"], ["now", WIDTH - 6, "end"]]) {
    const label = svg("text", {x: at, y: HEIGHT - 4, class: "axis", "text-anchor": anchor});
    label.textContent = text;
    drawing.append(label);
  }
  series.forEach((line, number) => {
    let path = "", pen = "M";
    line.values.forEach((value, index) => {
      if (value === null) { pen = "M"; return; }
      path += `${pen}${x(index, line.values.length).toFixed(1)} ${y(value).toFixed(1)}`;
      if (pen === "M") path += "h0.1";
      pen = "L";
    });
    drawing.append(svg("path", {d: path, class: `line line-${number}`}));
  });
  const legend = element("p", {class: "legend"}, ...series.map((line, number) =>
    element("span", {class: `key key-${number}`, text: `${line.name} ${latest(line)}`})));
  return element("figure", {class: "card"}, element("figcaption", {}, element("h2", {text: title}),
    element("span", {class: "unit", text: unit})), drawing, legend);
}
