// One kind of chart for all: lines or steps with bands, read by pointer and by arrow keys.

const tooltip = find("tooltip");
const say = (text) => {
  find("live").textContent = text;
};

function showTooltip(event, title, rows) {
  tooltip.replaceChildren(
    element("b", {}, title),
    ...rows.map(([mark, label, value]) =>
      element(
        "div",
        {},
        element("span", {}, mark, element("bdi", {}, label)),
        element("span", {}, value),
      ),
    ),
  );
  tooltip.hidden = false;
  const { innerWidth, scrollX, scrollY } = window;
  const left =
    event.clientX + 18 + tooltip.offsetWidth > innerWidth
      ? event.clientX - 18 - tooltip.offsetWidth
      : event.clientX + 18;
  tooltip.style.left = `${Math.max(4, left) + scrollX}px`;
  tooltip.style.top = `${event.clientY + scrollY - tooltip.offsetHeight / 2}px`;
}
const hideTooltip = () => {
  tooltip.hidden = true;
};

function chart(
  host,
  {
    series,
    xLabel,
    yLabel,
    x: [x0, x1],
    y: [y0, y1],
    height,
    title,
    xTitle,
    format,
    step,
    rule,
    whole,
    marks,
  },
) {
  const width = Math.max(280, host.clientWidth);
  const edge = { left: 46, right: 14, top: 22, bottom: 42 };
  const right = width - edge.right,
    bottom = height - edge.bottom;
  const px = (value) => edge.left + ((value - x0) / (x1 - x0 || 1)) * (right - edge.left);
  const py = (value) => bottom - ((value - y0) / (y1 - y0 || 1)) * (bottom - edge.top);
  const picture = drawn("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    tabindex: 0,
    "aria-label": title,
  });
  for (const tick of ticks(y0, y1, 5)) {
    picture.append(
      drawn("line", { class: "grid", x1: edge.left, x2: right, y1: py(tick), y2: py(tick) }),
    );
    picture.append(
      drawn("text", { x: edge.left - 8, y: py(tick) + 4, "text-anchor": "end" }, String(tick)),
    );
  }
  for (const tick of ticks(x0, x1, Math.min(10, width / 80)).filter(
    (value) => !whole || Number.isInteger(value),
  )) {
    picture.append(
      drawn("text", { x: px(tick), y: bottom + 18, "text-anchor": "middle" }, String(tick)),
    );
    picture.append(
      drawn("line", { class: "axis", x1: px(tick), x2: px(tick), y1: bottom, y2: bottom + 4 }),
    );
  }
  picture.append(
    drawn("line", { class: "axis", x1: edge.left, x2: right, y1: bottom, y2: bottom }),
  );
  picture.append(drawn("text", { x: right, y: height - 6, "text-anchor": "end" }, xLabel));
  picture.append(drawn("text", { x: 0, y: 11 }, yLabel));
  const clip = `clip-${host.id}`;
  picture.append(
    drawn(
      "clipPath",
      { id: clip },
      drawn("rect", { x: edge.left, y: 0, width: right - edge.left, height: bottom }),
    ),
  );
  const inside = drawn("g", { "clip-path": `url(#${clip})` });
  picture.append(inside);
  if (rule !== undefined) {
    inside.append(
      drawn("line", {
        class: "rule",
        x1: edge.left,
        x2: right,
        y1: py(rule.value),
        y2: py(rule.value),
      }),
    );
    picture.append(
      drawn("text", { class: "halo", x: edge.left + 4, y: py(rule.value) - 5 }, rule.label),
    );
  }
  const line = (xs, ys) => {
    let path = "",
      last = null;
    ys.forEach((value, i) => {
      if (value === null) {
        last = null;
        return;
      }
      const at = `${px(xs[i]).toFixed(2)},${py(value).toFixed(2)}`;
      path +=
        last === null
          ? `M${at}`
          : step
            ? `H${px(xs[i]).toFixed(2)}V${py(value).toFixed(2)}`
            : `L${at}`;
      last = value;
    });
    return path;
  };
  for (const one of series) {
    if (!one.low) continue;
    const there = one.low.map((value, i) => i).filter((i) => one.low[i] !== null);
    const points = [
      ...there.map((i) => `${px(one.x[i]).toFixed(2)},${py(one.high[i]).toFixed(2)}`),
      ...there.toReversed().map((i) => `${px(one.x[i]).toFixed(2)},${py(one.low[i]).toFixed(2)}`),
    ];
    inside.append(
      drawn("path", {
        class: "band",
        colour: one.colour,
        d: points.length ? `M${points.join("L")}Z` : "",
      }),
    );
  }
  for (const one of series) {
    const path = drawn("path", {
      class: one.strong ? "line strong" : "line",
      colour: one.colour,
      "data-method": one.label,
      d: line(one.x, one.y),
      "stroke-dasharray": one.dashes?.length
        ? one.dashes.map((dash) => dash * 1.4).join(" ")
        : null,
      opacity: one.faint ? 0.3 : null,
    });
    path.series = { x: one.x, y: one.y };
    inside.append(path);
    if (one.dots)
      one.x.forEach((at, i) =>
        picture.append(
          drawn("circle", {
            class: "dot",
            colour: one.colour,
            cx: px(at),
            cy: py(one.y[i]),
            r: one.x.length > 40 ? 2 : 3.5,
          }),
        ),
      );
  }
  for (const mark of marks ?? []) {
    picture.append(
      drawn("circle", { class: "ring", colour: mark.colour, cx: px(mark.x), cy: py(mark.y), r: 8 }),
    );
    picture.append(
      drawn(
        "text",
        { class: "strong-text halo", x: px(mark.x) + 13, y: py(mark.y) + 1 },
        mark.label,
      ),
    );
  }

  // The cursor reads the value that stands at x: at a round's end, and until the next one ends.
  const cursor = drawn("line", { class: "cursor", y1: edge.top, y2: bottom, visibility: "hidden" });
  const spots = drawn("g", {});
  picture.append(cursor, spots);
  let at = x0;
  const read = (value) =>
    series
      .filter((one) => !one.faint)
      .map((one) => {
        let index = -1;
        if (step) for (let i = 0; i < one.x.length && one.x[i] <= value; i++) index = i;
        else
          one.x.forEach((there, i) => {
            if (index < 0 || Math.abs(there - value) < Math.abs(one.x[index] - value)) index = i;
          });
        return { one, index, value: index < 0 ? null : one.y[index] };
      })
      .filter(({ value: height }) => height !== null)
      .sort((a, b) => b.value - a.value);
  const point = (value) => {
    at = Math.min(x1, Math.max(x0, value));
    if (whole) at = Math.round(at);
    const rows = read(at);
    cursor.setAttribute("x1", px(at));
    cursor.setAttribute("x2", px(at));
    cursor.setAttribute("visibility", "visible");
    spots.replaceChildren(
      ...rows.map(({ one, value: height }) =>
        drawn("circle", { class: "dot", colour: one.colour, cx: px(at), cy: py(height), r: 4 }),
      ),
    );
    return rows.map(({ one, index, value: height }) => [
      sample(one),
      one.label,
      format(height, one, index),
    ]);
  };
  const leave = () => {
    cursor.setAttribute("visibility", "hidden");
    spots.replaceChildren();
    hideTooltip();
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const value =
      x0 +
      ((((event.clientX - box.left) * width) / box.width - edge.left) / (right - edge.left)) *
        (x1 - x0);
    const rows = point(value);
    showTooltip(event, xTitle(at), rows);
  });
  picture.addEventListener("pointerleave", leave);
  picture.addEventListener("blur", leave);
  picture.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const rows = point(at + move * (whole ? 1 : (x1 - x0) / 50));
    const box = picture.getBoundingClientRect();
    showTooltip(
      { clientX: box.left + (px(at) * box.width) / width, clientY: box.top + box.height / 2 },
      xTitle(at),
      rows,
    );
    say(`${xTitle(at)}: ${rows.map(([, label, value]) => `${label} ${value}`).join(", ")}`);
  });
  host.replaceChildren(picture);
}

const bounds = (values, floor, ceiling) => {
  const real = values.filter((value) => value !== null && Number.isFinite(value));
  if (!real.length) return [floor, ceiling];
  const low = Math.min(...real),
    high = Math.max(...real),
    room = Math.max(1e-9, (high - low) * 0.05);
  return [Math.max(floor, low - room), Math.min(ceiling, high + room)];
};
const high = () => Math.max(230, Math.min(380, window.innerHeight * 0.5));
