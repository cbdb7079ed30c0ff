// The head, the metric over rounds, and time on air.

function showHead() {
  find("title").append(element("bdi", {}, story.scenario.name));
  find("about").textContent =
    `${plural(story.users, "user")} · ${plural(methods.length, "method")} · ${plural(story.rounds, "round")} · ${story.seeds.length === 1 ? `seed ${story.seeds[0]}` : seedCount}${story.scenario.description ? ` · ${story.scenario.description}` : ""}`;
  find("answer").textContent = story.answer[0];
  find("rest").textContent = story.answer.slice(1).join(" ");
  find("rounds-hint").textContent =
    (methods.length > 1 ? "Switch methods on and off. " : "") +
    "Hover over the chart, or focus it and use the arrow keys, to read values.";
  const best = byLabel(story.chosen),
    base = byLabel("fedavg");
  const tile = (term, value, extra) =>
    element(
      "div",
      {},
      element("dt", {}, term),
      element("dd", {}, value),
      extra ? element("dd", { class: "more" }, extra) : null,
    );
  const pair = story.compared.fedavg;
  const over = !pair
    ? ""
    : pair.shown
      ? `${signed(gain(best.final.mean, base.final.mean))} against fedavg`
      : "no difference from fedavg shown";
  find("tiles-of").replaceChildren(
    ...(methods.length > 1
      ? [
          name(best.label),
          story.tied.length ? ", whose mean is the highest of those that no test tells apart:" : ":",
        ]
      : []),
  );
  const several = best.seeds.length > 1,
    within = (value, off) => (several ? `${digits(value)} ± ${inUnit(off)}` : inUnit(value));
  const tiles = [
    tile(`mean ${measure.words}`, within(best.final.mean, best.final.deviation), over),
    tile("worst user", within(best.final.worst, best.final.worst_deviation), fewExamples(best)),
    tile(
      `broadcasts ${isSteady(best) ? "a" : "in the last"} round`,
      short(best.streams),
      `for ${plural(story.users, "user")}`,
    ),
  ];
  if (pair?.shown && pair.mean > 0) tiles.push(...soonest(best, tile));
  find("tiles").append(...tiles);
}

// A worst user of few test examples may be no worse than unlucky.
function fewExamples(method) {
  const found = method.worst_examples;
  if (!found || found[0] >= 100) return "";
  const count = found[0] === found[1] ? found[0] : `${found[0]} to ${found[1]}`;
  return `who has only ${count} test example${found[1] === 1 ? "" : "s"}`;
}

const whole = (time) => (time < 10 ? short(time) : String(Math.round(time)));

// Sooner is said against everything that is there.
function soonest(best, tile) {
  const [system, all] = Object.entries(story.race)[0],
    mine = all[best.label];
  if (!mine) return []; // never, or as good untrained
  const others = Object.entries(all).filter(
    ([label, time]) => label !== best.label && time !== null,
  );
  others.sort((a, b) => a[1] - b[1]);
  const [next, time] = others[0] ?? [null, Infinity];
  const extra =
    mine < time
      ? Number.isFinite(time)
        ? `${(time / mine).toFixed(1)} times sooner than any other method here`
        : "no other method here has it"
      : `${next} is first, after ${whole(time)} T_dl`;
  return [
    tile(
      `to fedavg's ${measure.words}, ${system}`,
      `${whole(mine)} T_dl`,
      `${extra}; T_dl is the time of one broadcast`,
    ),
  ];
}

function showChips() {
  for (const host of every("[data-chips]")) {
    host.replaceChildren(
      ...methods.map((method) => {
        return element(
          "button",
          {
            type: "button",
            "aria-pressed": String(!state.hidden.has(method.label)),
            title: method.label,
            "data-toggle": method.label,
            on: {
              click: () => {
                if (!state.hidden.delete(method.label)) state.hidden.add(method.label);
                every("[data-toggle]")
                  .filter((button) => button.dataset.toggle === method.label)
                  .forEach((button) =>
                    button.setAttribute("aria-pressed", String(!state.hidden.has(method.label))),
                  );
                showRounds();
                showTimes();
                showRadio();
              },
            },
          },
          sample(method),
          element("bdi", {}, method.label),
        );
      }),
    );
  }
}

function showRounds() {
  const worst = state.what === "worst";
  const series = shown().map((method) => {
    const y = worst ? method.worst : method.mean;
    const off = worst ? method.worst_deviation : method.deviation;
    const one = {
      label: method.label,
      colour: method.colour,
      dashes: method.dashes,
      strong: method.label === story.chosen,
      x: y.map((_, i) => i),
      y,
      method,
    };
    if (state.band === "seeds" && method.seeds.length > 1)
      Object.assign(one, {
        low: y.map((value, i) => value - off[i]),
        high: y.map((value, i) => value + off[i]),
      });
    if (state.band === "users" && !worst && method.low)
      Object.assign(one, { low: method.low, high: method.high });
    return one;
  });
  const all = series.flatMap((one) => [...one.y, ...(one.low ?? []), ...(one.high ?? [])]);
  chart(find("rounds-chart"), {
    series,
    height: high(),
    whole: true,
    x: [0, story.rounds],
    y: bounds(all, 0, 100),
    xLabel: "round",
    yLabel: `${worst ? "worst user's" : "mean"} test ${measure.words}${measure.unit}`,
    title: `Test ${measure.words} over rounds. ${series.map((one) => `${one.label} ends at ${inUnit(one.y.at(-1))}`).join("; ")}.`,
    xTitle: (round) => `round ${round}`,
    format: (value, one, i) =>
      one.low
        ? `${inUnit(value)}  (${one.low[i]?.toFixed(0) ?? "–"}–${one.high[i]?.toFixed(0) ?? "–"})`
        : inUnit(value),
  });
  every("[data-what]").forEach((button) =>
    button.setAttribute("aria-pressed", String(button.dataset.what === state.what)),
  );
  every("[data-band]").forEach((button) => {
    button.setAttribute("aria-pressed", String(button.dataset.band === state.band));
    button.disabled =
      (button.dataset.band === "users" && worst) ||
      (button.dataset.band === "seeds" && mostSeeds < 2);
  });
  const lines = mostSeeds > 1 ? `Lines are means over ${seedCount}. ` : "";
  find("rounds-caption").textContent =
    lines +
    (state.band === "none" || (worst && state.band === "users")
      ? ""
      : state.band === "users"
        ? "The band holds the middle 80% of the users (10% do worse, 10% better)."
        : mostSeeds > 1
          ? "The band is one sample deviation over seeds either side."
          : "");
}

function table(host, heads, rows) {
  host.replaceChildren(
    element(
      "thead",
      {},
      element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head))),
    ),
    element(
      "tbody",
      {},
      ...rows.map(([first, ...cells]) =>
        element(
          "tr",
          {},
          element("th", { scope: "row" }, first),
          ...cells.map((cell) =>
            cell instanceof HTMLTableCellElement ? cell : element("td", {}, cell),
          ),
        ),
      ),
    ),
  );
}

function showRoundsTable() {
  const pair = (value, off = null) =>
    value === null ? "–" : off === null ? digits(value) : `${digits(value)} ± ${digits(off)}`;
  const spread = (method, off) => (method.seeds.length > 1 ? off : null);
  const late = methods.some((method) => method.newcomers);
  table(
    find("rounds-table"),
    [
      "method",
      "tested model",
      "mean, final",
      "mean, validation's round",
      "worst, final",
      "worst, validation's round",
      ...(late ? ["newcomers", "newcomers, tuned"] : []),
      "broadcasts",
      "rounds",
      "seeds",
    ],
    methods.map((method) => [
      name(method.label),
      method.tested_model,
      pair(method.final.mean, spread(method, method.final.deviation)),
      pair(method.best.mean, spread(method, method.best.deviation)),
      pair(method.final.worst, spread(method, method.final.worst_deviation)),
      pair(method.best.worst, spread(method, method.best.worst_deviation)),
      ...(late
        ? ["before", "after"].map((when) => pair(method.newcomers?.[when].mean ?? null))
        : []),
      short(method.streams),
      String(method.rounds),
      method.seeds.join(", "),
    ]),
  );
}

function showTimes() {
  const { system } = state;
  for (const key of ["rho", "t_min", "mean_delay"]) {
    find(key).value = system[key];
    find(`${key}-out`).textContent = short(system[key]);
  }
  every("[data-system]").forEach((button) => {
    const wanted = story.systems[button.dataset.system];
    button.setAttribute(
      "aria-pressed",
      String(Object.keys(wanted).every((key) => wanted[key] === system[key])),
    );
  });
  find("streams-out").textContent = String(state.streams);
  find("target-out").textContent = inUnit(state.target);
  showStreamsNote();

  const race = raced();
  const ends = race.map((one) => one.x.at(-1)),
    arrivals = race.map((one) => one.time).filter(Number.isFinite);
  const end = Math.max(1e-9, ...ends),
    finish = state.whole || !arrivals.length ? end : Math.min(end, 1.15 * Math.max(...arrivals));
  const series = race.map(({ method, x, y }) => ({
    label: method.label,
    colour: method.colour,
    dashes: method.dashes,
    strong: method.label === story.chosen,
    x,
    y,
  }));
  chart(find("time-chart"), {
    series,
    height: high(),
    step: true,
    x: [0, finish],
    y: bounds(
      race.flatMap((one) => one.y),
      0,
      100,
    ),
    xLabel: "time in units of one broadcast, T_dl",
    yLabel: `mean test ${measure.words}${measure.unit}`,
    rule: { value: state.target, label: `target ${inUnit(state.target)}` },
    title: `Test ${measure.words} against time. ${race.map(({ method, time }) => `${method.label} ${Number.isFinite(time) ? `reaches the target at ${short(time)}` : "never reaches the target"}`).join("; ")}.`,
    xTitle: (time) => `after ${short(time)} T_dl`,
    format: (value, one, i) => `${inUnit(value)}  (round ${i})`,
  });

  find("bars-head").textContent = `Time to ${inUnit(state.target)} mean ${measure.words}`;
  const longest = Math.max(1e-9, ...arrivals);
  race.sort((a, b) => (a.time === b.time ? b.y.at(-1) - a.y.at(-1) : a.time - b.time));
  find("bars").replaceChildren(
    element(
      "thead",
      { class: "unseen" },
      element(
        "tr",
        {},
        ...["method", "bar", "time in T_dl", "rounds"].map((head) =>
          element("th", { scope: "col" }, head),
        ),
      ),
    ),
    element(
      "tbody",
      {},
      ...race.map(({ method, x, y, reached, time }) => {
        const never = !Number.isFinite(time);
        const each = (x.at(-1) - x[0]) / (x.length - 1);
        return element(
          "tr",
          {
            class: `${never ? "never" : ""} ${method.imagined ? "what-if" : ""}`,
            "data-bar": method.label,
            "data-time": time,
          },
          element("th", { scope: "row" }, sample(method), name(method.label)),
          element(
            "td",
            { class: "track" },
            element("span", {
              class: "fill",
              colour: method.colour,
              "width%": never ? 0 : (100 * time) / longest,
            }),
          ),
          element("td", {}, never ? "never" : short(time)),
          element(
            "td",
            {},
            element(
              "small",
              {},
              never
                ? `ends at ${inUnit(y.at(-1))}`
                : `${plural(reached, "round")}${isSteady(method) ? ` of ${short(each)}` : ""}`,
            ),
          ),
        );
      }),
    ),
  );
}

function showStreamsNote() {
  const note = find("streams-note"),
    guess = whatIf(state.streams),
    k = state.streams;
  if (!guess) {
    note.textContent = "No method here can be run with another number of streams; user-centric can.";
    return;
  }
  const { system } = state;
  const up = guess.measured ?? guess.borrowed,
    traffic = [k, ...up.traffic.at(-1).slice(2)];
  const lasts = roundTime(traffic, system),
    once = roundTime([1, 1, 1], system);
  const parts = `${k} down + ${short(system.rho * traffic[1])} up + ${short(traffic[2] * computing(system))} computing`;
  const slower = (lasts / once).toFixed(2);
  const cost = `A round with ${plural(k, "stream")} lasts ${short(lasts)} T_dl (${parts}), ${slower === "1.00" ? "as long as" : `${slower} times`} FedAvg's.`;
  const origin = guess.measured
    ? ` Measured: k = ${k} was run, as ${guess.measured.label}.`
    : ` k = ${k} was not run. The dotted curve has its true round time and borrows its ${measure.words} from the nearest run, ${guess.borrowed.label} (k = ${short(guess.borrowed.streams)}); to know it, run user-centric:streams=${k}.`;
  note.textContent = cost + origin;
}
