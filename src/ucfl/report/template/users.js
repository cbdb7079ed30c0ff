// User by user, and how to repeat it.

function showUsers() {
  const users = population(),
    here = methods.filter((method) => users.final[method.label]);
  const focus = users.final[state.focus] ? state.focus : here[0].label;
  const learnt = users.collaborations[focus] ?? null;
  const against = ["fedavg", "local"].filter((label) => users.final[label] && label !== focus);
  const minus = (a, b) => (a === null || b === null ? null : gain(a, b));
  const rows = users.names.map((text, i) => {
    const gains = against.map((label) => minus(users.final[focus][i], users.final[label][i]));
    return {
      text,
      i,
      gains,
      least: gains.length && !gains.includes(null) ? Math.min(...gains) : null,
    };
  });
  const columns = [
    {
      key: "user",
      head: "user",
      value: (row) => row.i,
      cell: (row) => element("th", { scope: "row" }, name(row.text)),
    },
    ...(users.groups
      ? [
          {
            key: "group",
            head: "true group",
            value: (row) => users.groups[row.i],
            cell: (row) =>
              element(
                "td",
                {},
                swatch(groupColour(users.groups[row.i])),
                String(users.groups[row.i]),
              ),
          },
        ]
      : []),
    ...(users.label_counts
      ? [
          {
            key: "size",
            head: "examples",
            value: (row) => sizeOf(users, row.i),
            cell: (row) => element("td", {}, String(sizeOf(users, row.i))),
          },
        ]
      : []),
    ...(learnt?.own
      ? [
          {
            key: "stream",
            head: `stream of ${focus}`,
            value: (row) => learnt.labels[row.i],
            cell: (row) => element("td", {}, String(learnt.labels[row.i])),
          },
        ]
      : []),
    ...against.map((label, n) => ({
      key: `gain-${label}`,
      head: `gain over ${label}`,
      value: (row) => row.gains[n],
      cell: (row) =>
        element(
          "td",
          { class: row.gains[n] < 0 ? "loss" : row.gains[n] > 0 ? "gain" : null },
          signed(row.gains[n]),
        ),
    })),
    ...here.map((method) => ({
      key: `method-${method.label}`,
      head: method.label,
      method,
      value: (row) => users.final[method.label][row.i],
      cell: (row) =>
        element(
          "td",
          { class: method.label === focus ? "key" : null },
          inUnit(users.final[method.label][row.i]),
        ),
    })),
  ];
  // Without a column chosen, those who lose most by personalisation come first.
  const column = columns.find((one) => one.key === state.sort?.key);
  const value = column ? column.value : (row) => row.least ?? users.final[focus][row.i];
  const direction = column ? state.sort.direction : 1;
  rows.sort((a, b) => {
    const [left, right] = [value(a), value(b)];
    if (left === null || right === null) return (left === null) - (right === null);
    return direction * (left - right) || a.i - b.i;
  });
  const sort = (key) => {
    const again =
      state.sort?.key === key
        ? -state.sort.direction
        : key.startsWith("gain") || ["user", "group", "stream"].includes(key)
          ? 1
          : -1;
    state.sort = { key, direction: again };
    showUsers();
    every("#users-table thead button")
      .find((button) => button.dataset.key === key)
      .focus();
    say(
      `sorted by ${columns.find((one) => one.key === key).head}, ${again > 0 ? "ascending" : "descending"}`,
    );
  };
  find("users-table").replaceChildren(
    element("caption", { class: "unseen" }, `Test ${measure.words} of every user in the final round`),
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        ...columns.map((one) =>
          element(
            "th",
            {
              scope: "col",
              "aria-sort": one === column ? (direction > 0 ? "ascending" : "descending") : null,
            },
            element(
              "button",
              { type: "button", "data-key": one.key, on: { click: () => sort(one.key) } },
              one.method ? sample(one.method) : null,
              wrapped(one.head),
            ),
          ),
        ),
      ),
    ),
    element(
      "tbody",
      {},
      ...rows.map((row) =>
        element(
          "tr",
          { class: row.least !== null && row.least < 0 ? "loser" : null },
          ...columns.map((one) => one.cell(row)),
        ),
      ),
    ),
  );
  const lost = against.map(
    (label, n) =>
      `${rows.filter((row) => row.gains[n] < 0).length} of ${users.names.length} would be better off with ${label}`,
  );
  const redrawn = {
    users: " (another seed draws other users)",
    examples: " (another seed tests the same users on other examples of theirs)",
  };
  const fewest = users.test_sizes ? Math.min(...users.test_sizes.filter((size) => size > 0)) : 0;
  find("users-hint").textContent =
    `Final test ${measure.words}${measure.unit}, seed ${users.seed}${redrawn[story.redrawn] ?? ""}. ` +
    (fewest && fewest < 100 && measure.name === "accuracy" && users.labelled
      ? `With as few as ${plural(fewest, "test example")} a user, one example is worth up to ${short(100 / fewest)} points. `
      : "") +
    (lost.length ? `Under ${focus}, ${lost.join(", and ")}; those who lose most come first.` : "");
  const picker = find("focus"),
    choices = here.filter((method) => !["fedavg", "local"].includes(method.label));
  find("focus-pick").hidden = choices.length < 2 || !against.length;
  picker.replaceChildren(
    ...choices.map((method) =>
      element("option", { value: method.label, selected: method.label === focus }, method.label),
    ),
  );
}

function showRepeat() {
  const { repeat } = story;
  find("commands").append(
    ...repeat.commands.map((command) => element("pre", {}, element("code", {}, command))),
    ...repeat.programs.map((sentence) => element("p", {}, sentence)),
  );
  const facts = [
    ["users' data", repeat.source],
    ["seeds", story.seeds.join(", ")],
    ...repeat.versions.map((one) => [
      "versions",
      Object.entries(one)
        .map(([key, value]) => `${key} ${value}`)
        .join(", "),
    ]),
    ...repeat.machines.map((one) => [
      "machine",
      Object.entries(one)
        .map(([key, value]) => `${key} ${value}`)
        .join(", "),
    ]),
  ];
  find("facts").append(
    ...facts.flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]),
  );
  const mono = (text) =>
    element(
      "td",
      { class: "mono text", title: text },
      text.length > 40 && !text.includes("/") ? `${text.slice(0, 16)}…` : text,
    );
  const checked = repeat.runs.some((run) => run.data !== null);
  table(
    find("runs-table"),
    [
      "method",
      "seed",
      "rounds",
      ...(checked ? ["SHA-256 of the users' data", "of the first model"] : []),
      "kept in",
    ],
    repeat.runs.map((run) => [
      name(run.algorithm),
      String(run.seed),
      String(run.rounds),
      ...(checked ? [mono(run.data ?? "–"), mono(run.model ?? "–")] : []),
      mono(run.kept),
    ]),
  );
  find("notes").append(...story.notes.map((note) => element("li", {}, note)));
}
