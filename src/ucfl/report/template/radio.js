// What methods cost in a radio cell: seconds and joules that ucfl.wireless computed.

function showRadio() {
  const cell = story.cells[state.site],
    inTime = state.spent === "time";
  every("[data-site]").forEach((button) =>
    button.setAttribute("aria-pressed", String(button.dataset.site === state.site)),
  );
  every("[data-spent]").forEach((button) =>
    button.setAttribute("aria-pressed", String(button.dataset.spent === state.spent)),
  );
  find("radio-words").textContent = `${state.site}: ${cell.words}.`;
  const series = shown().map((method) => ({
    label: method.label,
    colour: method.colour,
    dashes: method.dashes,
    strong: method.label === story.chosen,
    x: cell.methods[method.label][state.spent].slice(0, method.mean.length),
    y: method.mean,
  }));
  const unit = inTime ? "s" : "J";
  chart(find("radio-chart"), {
    series,
    height: high(),
    step: true,
    x: [0, Math.max(1e-9, ...series.map((one) => one.x.at(-1)))],
    y: bounds(
      series.flatMap((one) => one.y),
      0,
      100,
    ),
    xLabel: inTime ? "time in seconds" : "energy of the cell and its users in joules",
    yLabel: `mean test ${measure.words}${measure.unit}`,
    title: `Test ${measure.words} against ${inTime ? "seconds" : "joules"} in ${state.site}.`,
    xTitle: (spent) => `for ${short(spent)} ${unit}`,
    format: (value, one, i) => `${inUnit(value)}  (round ${i})`,
  });
  const rows = stretches(cell.fronts[state.spent]).map(([label, from, to]) => {
      const method = byLabel(label),
        spent = cell.methods[label][state.spent];
      return [
        `from ${short(spent[from])} ${unit}`,
        name(label),
        from === to ? String(from) : `${from} to ${to}`,
        from === to
          ? inUnit(method.mean[from])
          : `${inUnit(method.mean[from])} to ${inUnit(method.mean[to])}`,
      ];
    });
  table(
    find("radio-front"),
    [inTime ? "for a time" : "for an energy", "take", "after round", measure.words],
    // Of two that cost the same as people read it, the better one.
    rows.filter(([spent], i) => spent !== rows[i + 1]?.[0]),
  );
}

// [label, first round, last round] of neighbours on the front that are of one method.
function stretches(front) {
  const found = [];
  for (const [label, round] of front) {
    if (found.at(-1)?.[0] === label) found.at(-1)[2] = round;
    else found.push([label, round, round]);
  }
  return found;
}

function listenToRadio() {
  const button = (kind, value, text) =>
    element(
      "button",
      {
        type: "button",
        [`data-${kind}`]: value,
        on: {
          click: () => {
            state[kind] = value;
            showRadio();
          },
        },
      },
      text,
    );
  find("sites").append(...Object.keys(story.cells).map((site) => button("site", site, site)));
  find("spent").append(button("spent", "time", "Seconds"), button("spent", "joules", "Joules"));
}
