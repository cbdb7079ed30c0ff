"use strict";
// Names come from people and files, so they are only ever text nodes: nothing here writes markup.
(() => {
  const story = JSON.parse(document.getElementById("story").textContent);
  const find = (id) => document.getElementById(id);
  const every = (selector) => [...document.querySelectorAll(selector)];

  // --- elements ---------------------------------------------------------------------------------

  function fill(node, properties, children) {
    for (const [key, value] of Object.entries(properties ?? {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
      else if (key === "colour") node.style.setProperty("--c", value);
      else if (key === "width%") node.style.width = `${value}%`;
      else node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return node;
  }
  const element = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
  const drawn = (tag, properties, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
  // <bdi> keeps a right-to-left name from turning its surroundings around.
  const name = (text) => element("bdi", { class: "name", title: text }, text);
  const sample = (method) => drawn("svg", { class: "sample", width: 18, height: 8, viewBox: "0 0 18 8", "aria-hidden": "true" },
    drawn("path", { class: "line strong", colour: method.colour, d: "M0,4H18", "stroke-dasharray": method.dashes?.length ? method.dashes.join(" ") : null }));
  const swatch = (colour) => element("i", { class: "swatch", colour, "aria-hidden": "true" });

  // --- numbers ----------------------------------------------------------------------------------

  const percent = (value) => (value === null || value === undefined || Number.isNaN(value) ? "–" : `${value.toFixed(1)}%`);
  const signed = (value) => (value === null ? "–" : `${value < 0 ? "−" : value > 0 ? "+" : ""}${Math.abs(value).toFixed(1)}`);
  const short = (value) => Number(value.toFixed(value < 10 ? 2 : value < 1000 ? 1 : 0)).toString();
  const both = (colours) => `light-dark(${colours[0]}, ${colours[1]})`;
  const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

  function ticks(low, high, wanted) {
    const rough = (high - low) / Math.max(1, wanted);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= rough * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
    return found;
  }

  // --- what the page shows ----------------------------------------------------------------------

  const methods = story.methods.map((method) => ({ ...method, colour: both([method.light, method.dark]) }));
  const personal = methods.filter((method) => method.personal);
  const byLabel = (label) => methods.find((method) => method.label === label);
  const firstSystem = Object.values(story.systems)[0];
  const state = {
    hidden: new Set(),
    what: "mean",
    band: story.seeds.length > 1 ? "seeds" : "users",
    system: { ...firstSystem },
    streams: Math.round((personal.find((method) => method.label === story.personal) ?? personal[0])?.streams ?? 1),
    target: story.target.accuracy,
    whole: false,
    population: 0,
    focus: story.personal,
    sort: null,
    cell: null,
  };
  const shown = () => methods.filter((method) => !state.hidden.has(method.label));

  // --- time, as ucfl.wireless computes it -------------------------------------------------------

  let slowest = 0; // H_m: the slowest of m exponential delays, in units of their mean
  for (let i = story.users; i >= 1; i--) slowest += 1 / i;
  const computing = (system) => system.t_min + system.mean_delay * slowest;
  const roundTime = ([down, up, work], system) => down + system.rho * up + work * computing(system);

  function times(method, system) {
    const found = [roundTime(method.start, system)];
    for (const [count, ...traffic] of method.traffic) {
      const lasts = roundTime(traffic, system);
      for (let i = 0; i < count; i++) found.push(found[found.length - 1] + lasts);
    }
    return found;
  }

  // The run with k streams, or what k streams would cost with the accuracy of the nearest run.
  function whatIf(k) {
    if (!personal.length) return null;
    const near = personal.reduce((best, one) => {
      const gap = Math.abs(one.streams - k) - Math.abs(best.streams - k);
      return gap < 0 || (gap === 0 && one.streams < best.streams) ? one : best;
    });
    if (near.streams === k) return { measured: near };
    const traffic = near.traffic.map(([count, , up, work]) => [count, k, up, work]);
    return { borrowed: near, method: { ...near, label: `what if k = ${k}`, streams: k, traffic, dashes: [2, 3], imagined: true } };
  }

  function raced() {
    const guess = whatIf(state.streams);
    const running = shown();
    if (guess?.method && !state.hidden.has(guess.borrowed.label)) running.push(guess.method);
    return running.map((method) => {
      const x = times(method, state.system);
      const reached = method.mean.findIndex((value) => value !== null && value >= state.target);
      return { method, x, y: method.mean, reached, time: reached < 0 ? Infinity : x[reached] };
    });
  }

  // --- charts -----------------------------------------------------------------------------------

  const tooltip = find("tooltip");
  const say = (text) => { find("live").textContent = text; };

  function showTooltip(event, title, rows) {
    tooltip.replaceChildren(
      element("b", {}, title),
      ...rows.map(([mark, label, value]) => element("div", {}, element("span", {}, mark, element("bdi", {}, label)), element("span", {}, value))),
    );
    tooltip.hidden = false;
    const { innerWidth, scrollX, scrollY } = window;
    const left = event.clientX + 18 + tooltip.offsetWidth > innerWidth ? event.clientX - 18 - tooltip.offsetWidth : event.clientX + 18;
    tooltip.style.left = `${Math.max(4, left) + scrollX}px`;
    tooltip.style.top = `${event.clientY + scrollY - tooltip.offsetHeight / 2}px`;
  }
  const hideTooltip = () => { tooltip.hidden = true; };

  function chart(host, { series, xLabel, yLabel, x: [x0, x1], y: [y0, y1], height, title, xTitle, format, step, rule, whole, marks }) {
    const width = Math.max(280, host.clientWidth);
    const edge = { left: 46, right: 14, top: 22, bottom: 42 };
    const right = width - edge.right, bottom = height - edge.bottom;
    const px = (value) => edge.left + ((value - x0) / (x1 - x0 || 1)) * (right - edge.left);
    const py = (value) => bottom - ((value - y0) / (y1 - y0 || 1)) * (bottom - edge.top);
    const picture = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": title });
    for (const tick of ticks(y0, y1, 5)) {
      picture.append(drawn("line", { class: "grid", x1: edge.left, x2: right, y1: py(tick), y2: py(tick) }));
      picture.append(drawn("text", { x: edge.left - 8, y: py(tick) + 4, "text-anchor": "end" }, String(tick)));
    }
    for (const tick of ticks(x0, x1, Math.min(10, width / 80)).filter((value) => !whole || Number.isInteger(value))) {
      picture.append(drawn("text", { x: px(tick), y: bottom + 18, "text-anchor": "middle" }, String(tick)));
      picture.append(drawn("line", { class: "axis", x1: px(tick), x2: px(tick), y1: bottom, y2: bottom + 4 }));
    }
    picture.append(drawn("line", { class: "axis", x1: edge.left, x2: right, y1: bottom, y2: bottom }));
    picture.append(drawn("text", { x: right, y: height - 6, "text-anchor": "end" }, xLabel));
    picture.append(drawn("text", { x: 0, y: 11 }, yLabel));
    const clip = `clip-${host.id}`;
    picture.append(drawn("clipPath", { id: clip }, drawn("rect", { x: edge.left, y: 0, width: right - edge.left, height: bottom })));
    const inside = drawn("g", { "clip-path": `url(#${clip})` });
    picture.append(inside);
    if (rule !== undefined) {
      inside.append(drawn("line", { class: "rule", x1: edge.left, x2: right, y1: py(rule.value), y2: py(rule.value) }));
      picture.append(drawn("text", { class: "halo", x: edge.left + 4, y: py(rule.value) - 5 }, rule.label));
    }
    const line = (xs, ys) => {
      let path = "", last = null;
      ys.forEach((value, i) => {
        if (value === null) { last = null; return; }
        const at = `${px(xs[i]).toFixed(2)},${py(value).toFixed(2)}`;
        path += last === null ? `M${at}` : step ? `H${px(xs[i]).toFixed(2)}V${py(value).toFixed(2)}` : `L${at}`;
        last = value;
      });
      return path;
    };
    for (const one of series) {
      if (!one.low) continue;
      const there = one.low.map((value, i) => i).filter((i) => one.low[i] !== null);
      const points = [...there.map((i) => `${px(one.x[i]).toFixed(2)},${py(one.high[i]).toFixed(2)}`),
        ...there.toReversed().map((i) => `${px(one.x[i]).toFixed(2)},${py(one.low[i]).toFixed(2)}`)];
      inside.append(drawn("path", { class: "band", colour: one.colour, d: points.length ? `M${points.join("L")}Z` : "" }));
    }
    for (const one of series) {
      const path = drawn("path", { class: one.strong ? "line strong" : "line", colour: one.colour, "data-method": one.label, d: line(one.x, one.y), "stroke-dasharray": one.dashes?.length ? one.dashes.map((dash) => dash * 1.4).join(" ") : null, opacity: one.faint ? 0.3 : null });
      path.series = { x: one.x, y: one.y };
      inside.append(path);
      if (one.dots) one.x.forEach((at, i) => picture.append(drawn("circle", { class: "dot", colour: one.colour, cx: px(at), cy: py(one.y[i]), r: one.x.length > 40 ? 2 : 3.5 })));
    }
    for (const mark of marks ?? []) {
      picture.append(drawn("circle", { class: "ring", colour: mark.colour, cx: px(mark.x), cy: py(mark.y), r: 8 }));
      picture.append(drawn("text", { class: "strong-text halo", x: px(mark.x) + 13, y: py(mark.y) + 1 }, mark.label));
    }

    // The cursor reads the value that stands at x: at a round's end, and until the next one ends.
    const cursor = drawn("line", { class: "cursor", y1: edge.top, y2: bottom, visibility: "hidden" });
    const spots = drawn("g", {});
    picture.append(cursor, spots);
    let at = x0;
    const read = (value) => series.filter((one) => !one.faint).map((one) => {
      let index = -1;
      if (step) for (let i = 0; i < one.x.length && one.x[i] <= value; i++) index = i;
      else one.x.forEach((there, i) => { if (index < 0 || Math.abs(there - value) < Math.abs(one.x[index] - value)) index = i; });
      return { one, index, value: index < 0 ? null : one.y[index] };
    }).filter(({ value: height }) => height !== null).sort((a, b) => b.value - a.value);
    const point = (value) => {
      at = Math.min(x1, Math.max(x0, value));
      if (whole) at = Math.round(at);
      const rows = read(at);
      cursor.setAttribute("x1", px(at));
      cursor.setAttribute("x2", px(at));
      cursor.setAttribute("visibility", "visible");
      spots.replaceChildren(...rows.map(({ one, value: height }) => drawn("circle", { class: "dot", colour: one.colour, cx: px(at), cy: py(height), r: 4 })));
      return rows.map(({ one, index, value: height }) => [sample(one), one.label, format(height, one, index)]);
    };
    const leave = () => {
      cursor.setAttribute("visibility", "hidden");
      spots.replaceChildren();
      hideTooltip();
    };
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const value = x0 + ((((event.clientX - box.left) * width) / box.width - edge.left) / (right - edge.left)) * (x1 - x0);
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
      showTooltip({ clientX: box.left + (px(at) * box.width) / width, clientY: box.top + box.height / 2 }, xTitle(at), rows);
      say(`${xTitle(at)}: ${rows.map(([, label, value]) => `${label} ${value}`).join(", ")}`);
    });
    host.replaceChildren(picture);
  }

  const bounds = (values, floor, ceiling) => {
    const real = values.filter((value) => value !== null && Number.isFinite(value));
    if (!real.length) return [floor, ceiling];
    const low = Math.min(...real), high = Math.max(...real), room = Math.max(1e-9, (high - low) * 0.05);
    return [Math.max(floor, low - room), Math.min(ceiling, high + room)];
  };
  const high = () => Math.max(230, Math.min(380, window.innerHeight * 0.5));

  // --- sections ---------------------------------------------------------------------------------

  function showHead() {
    const seeds = story.seeds.length;
    find("title").append(element("bdi", {}, story.scenario.name));
    find("about").textContent = `${plural(story.users, "user")} · ${plural(methods.length, "method")} · ${plural(story.rounds, "round")} · ${seeds === 1 ? `seed ${story.seeds[0]}` : `${seeds} seeds`}${story.scenario.description ? ` · ${story.scenario.description}` : ""}`;
    find("answer").textContent = story.answer[0];
    find("rest").textContent = story.answer.slice(1).join(" ");
    const best = byLabel(story.chosen), base = byLabel("fedavg");
    const tile = (term, value, extra) => element("div", {}, element("dt", {}, term), element("dd", {}, value, extra ? element("small", {}, extra) : null));
    const over = base && base !== best ? `${signed(best.final.mean - base.final.mean)} over fedavg` : "";
    const worst = base && base !== best ? `${signed(best.final.worst - base.final.worst)} over fedavg` : "";
    const tiles = [tile("mean accuracy", percent(best.final.mean), over), tile("worst user", percent(best.final.worst), worst), tile("broadcasts a round", String(best.streams), `for ${plural(story.users, "user")}`)];
    if (base && base !== best) {
      const time = (method) => {
        const reached = method.mean.findIndex((value) => value >= story.target.accuracy);
        return reached < 0 ? Infinity : times(method, firstSystem)[reached];
      };
      const ratio = time(base) / time(best);
      if (Number.isFinite(ratio)) tiles.push(tile(`to fedavg's accuracy, ${Object.keys(story.systems)[0]}`, `${ratio.toFixed(1)}×`, ratio >= 1 ? "sooner than fedavg" : "of fedavg's pace"));
    }
    find("tiles").append(...tiles);
  }

  function showChips() {
    for (const host of every("[data-chips]")) {
      host.replaceChildren(...methods.map((method) => {
        return element("button", { type: "button", "aria-pressed": String(!state.hidden.has(method.label)), title: method.label, "data-toggle": method.label, on: { click: () => {
          if (!state.hidden.delete(method.label)) state.hidden.add(method.label);
          every("[data-toggle]").filter((button) => button.dataset.toggle === method.label).forEach((button) => button.setAttribute("aria-pressed", String(!state.hidden.has(method.label))));
          showRounds();
          showTimes();
        } } }, sample(method), element("bdi", {}, method.label));
      }));
    }
  }

  function showRounds() {
    const seeds = story.seeds.length;
    const worst = state.what === "worst";
    const series = shown().map((method) => {
      const y = worst ? method.worst : method.mean;
      const off = worst ? method.worst_deviation : method.deviation;
      const one = { label: method.label, colour: method.colour, dashes: method.dashes, strong: method.label === story.chosen, x: y.map((_, i) => i), y, method };
      if (state.band === "seeds" && seeds > 1) Object.assign(one, { low: y.map((value, i) => value - off[i]), high: y.map((value, i) => value + off[i]) });
      if (state.band === "users" && !worst) Object.assign(one, { low: method.low, high: method.high });
      return one;
    });
    const all = series.flatMap((one) => [...one.y, ...(one.low ?? []), ...(one.high ?? [])]);
    chart(find("rounds-chart"), {
      series, height: high(), whole: true, x: [0, story.rounds], y: bounds(all, 0, 100),
      xLabel: "round", yLabel: `${worst ? "worst user's" : "mean"} test accuracy in %`,
      title: `Accuracy over rounds. ${series.map((one) => `${one.label} ends at ${percent(one.y.at(-1))}`).join("; ")}.`,
      xTitle: (round) => `round ${round}`,
      format: (value, one, i) => (one.low ? `${percent(value)}  (${one.low[i]?.toFixed(0) ?? "–"}–${one.high[i]?.toFixed(0) ?? "–"})` : percent(value)),
    });
    every("[data-what]").forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.what === state.what)));
    every("[data-band]").forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.band === state.band));
      button.disabled = (button.dataset.band === "users" && worst) || (button.dataset.band === "seeds" && seeds < 2);
    });
    const lines = seeds > 1 ? `Lines are means over ${seeds} seeds. ` : "";
    find("rounds-caption").textContent = lines + (state.band === "none" || (worst && state.band === "users") ? "" : state.band === "users"
      ? "The band holds the middle 80% of the users (10% do worse, 10% better)."
      : seeds > 1 ? "The band is one sample deviation over seeds either side." : "");
  }

  function table(host, heads, rows) {
    host.replaceChildren(
      element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
      element("tbody", {}, ...rows.map(([first, ...cells]) => element("tr", {}, element("th", { scope: "row" }, first), ...cells.map((cell) => (cell instanceof HTMLTableCellElement ? cell : element("td", {}, cell)))))),
    );
  }

  function showRoundsTable() {
    const pair = (value, off) => (value === null ? "–" : off ? `${value.toFixed(1)} ± ${off.toFixed(1)}` : value.toFixed(1));
    table(find("rounds-table"), ["method", "tested model", "mean, final", "mean, validation's round", "worst, final", "worst, validation's round", "broadcasts", "rounds", "seeds"],
      methods.map((method) => [name(method.label), method.tested_model, pair(method.final.mean, method.final.deviation), pair(method.best.mean, method.best.deviation),
        pair(method.final.worst, method.final.worst_deviation), pair(method.best.worst, method.best.worst_deviation), short(method.streams), String(method.rounds), method.seeds.join(", ")]));
  }

  function showTimes() {
    const { system } = state;
    for (const key of ["rho", "t_min", "mean_delay"]) {
      find(key).value = system[key];
      find(`${key}-out`).textContent = short(system[key]);
    }
    every("[data-system]").forEach((button) => {
      const wanted = story.systems[button.dataset.system];
      button.setAttribute("aria-pressed", String(Object.keys(wanted).every((key) => wanted[key] === system[key])));
    });
    find("streams-out").textContent = String(state.streams);
    find("target-out").textContent = percent(state.target);
    showStreamsNote();

    const race = raced();
    const ends = race.map((one) => one.x.at(-1)), arrivals = race.map((one) => one.time).filter(Number.isFinite);
    const end = Math.max(1e-9, ...ends), finish = state.whole || !arrivals.length ? end : Math.min(end, 1.15 * Math.max(...arrivals));
    const series = race.map(({ method, x, y }) => ({ label: method.label, colour: method.colour, dashes: method.dashes, strong: method.label === story.chosen, x, y }));
    chart(find("time-chart"), {
      series, height: high(), step: true, x: [0, finish], y: bounds(race.flatMap((one) => one.y), 0, 100),
      xLabel: "time in units of one broadcast, T_dl", yLabel: "mean test accuracy in %", rule: { value: state.target, label: `target ${percent(state.target)}` },
      title: `Accuracy against time. ${race.map(({ method, time }) => `${method.label} ${Number.isFinite(time) ? `reaches the target at ${short(time)}` : "never reaches the target"}`).join("; ")}.`,
      xTitle: (time) => `after ${short(time)} T_dl`, format: (value, one, i) => `${percent(value)}  (round ${i})`,
    });

    find("bars-head").textContent = `Time to ${percent(state.target)} mean accuracy`;
    const longest = Math.max(1e-9, ...arrivals);
    race.sort((a, b) => (a.time === b.time ? b.y.at(-1) - a.y.at(-1) : a.time - b.time));
    find("bars").replaceChildren(
      element("thead", { class: "unseen" }, element("tr", {}, ...["method", "bar", "time in T_dl", "rounds"].map((head) => element("th", { scope: "col" }, head)))),
      element("tbody", {}, ...race.map(({ method, x, y, reached, time }) => {
        const never = !Number.isFinite(time);
        const each = roundTime(method.traffic.at(-1).slice(1), system);
        return element("tr", { class: `${never ? "never" : ""} ${method.imagined ? "what-if" : ""}`, "data-bar": method.label, "data-time": time },
          element("th", { scope: "row" }, sample(method), name(method.label)),
          element("td", { class: "track" }, element("span", { class: "fill", colour: method.colour, "width%": never ? 0 : (100 * time) / longest })),
          element("td", {}, never ? "never" : short(time)),
          element("td", {}, element("small", {}, never ? `ends at ${percent(y.at(-1))}` : `${plural(reached, "round")} of ${short(each)}`)));
      })),
    );
  }

  function showStreamsNote() {
    const note = find("streams-note"), guess = whatIf(state.streams), k = state.streams;
    if (!guess) {
      note.textContent = "No run of user-centric is here, so there are no streams to choose.";
      return;
    }
    const { system } = state;
    const up = guess.measured ?? guess.borrowed, traffic = [k, ...up.traffic.at(-1).slice(2)];
    const lasts = roundTime(traffic, system), once = roundTime([1, 1, 1], system);
    const parts = `${k} down + ${short(system.rho * traffic[1])} up + ${short(traffic[2] * computing(system))} computing`;
    const cost = `A round with ${plural(k, "stream")} lasts ${short(lasts)} T_dl (${parts}), ${(lasts / once).toFixed(2)} times FedAvg's.`;
    const origin = guess.measured
      ? ` Measured: k = ${k} was run, as ${guess.measured.label}.`
      : ` k = ${k} was not run. The dotted curve has its true round time and borrows its accuracy from the nearest run, ${guess.borrowed.label} (k = ${short(guess.borrowed.streams)}); to know its accuracy, run user-centric:streams=${k}.`;
    note.textContent = cost + origin;
  }

  // --- who learns from whom ---------------------------------------------------------------------

  const population = () => story.populations[state.population];
  const groupColour = (group) => both(story.groups[group % story.groups.length]);
  const sizeOf = (users, i) => (users.label_counts ? users.label_counts[i].reduce((sum, count) => sum + count, 0) : null);

  function showCollaboration() {
    const users = population(), learnt = users.collaboration;
    find("collaboration-body").hidden = !learnt;
    if (!learnt) {
      find("collaboration-hint").textContent = `No run of user-centric has seed ${users.seed}, so nobody measured who learns usefully from whom.`;
      return;
    }
    const count = Math.max(...learnt.labels) + 1;
    find("collaboration-hint").textContent = `Row i holds the weights with which user i's model mixes everybody's, measured in one round before training (${learnt.of}, seed ${users.seed}). ` +
      (learnt.own ? `Frames are the ${plural(count, "stream")} that the run used.` : `The run has a stream for each user; frames are the ${plural(count, "stream")} that the silhouette suggests.`);
    showHeat(users, learnt);
    showGraph(users, learnt, count);
    showSilhouettes(users, learnt);
  }

  let heat = null;

  function showHeat(users, learnt) {
    const canvas = find("heat"), host = canvas.parentElement;
    canvas.hidden = find("ramp").hidden = find("heat-details").hidden = !learnt.weights;
    if (!learnt.weights) {
      heat = null;
      find("heat-caption").textContent = "Left out, so that this file stays small.";
      return;
    }
    const order = learnt.labels.map((_, i) => i).sort((a, b) => learnt.labels[a] - learnt.labels[b] || a - b);
    const m = order.length, strip = users.groups ? 9 : 0;
    const most = Math.max(...learnt.weights.map((row) => Math.max(...row)), 1);
    const side = Math.max(240, Math.min(500, host.clientWidth)), sharp = window.devicePixelRatio || 1;
    canvas.width = canvas.height = Math.round(side * sharp);
    canvas.style.aspectRatio = "1";
    const cell = (side - strip - 1) / m;
    const style = getComputedStyle(document.documentElement);
    const probe = element("i", {});
    document.body.append(probe);
    const colour = (value) => { probe.style.color = value; return getComputedStyle(probe).color; };
    const channels = (value) => colour(value).match(/[\d.]+/g).slice(0, 3).map(Number);
    const low = channels("var(--heat-low)"), top = channels("var(--heat-high)"), frame = colour("var(--frame)"), ink = colour("var(--ink)");
    const groups = users.groups?.map((group) => colour(groupColour(group)));
    probe.remove();
    const shade = (share) => `rgb(${low.map((from, i) => Math.round(from + (top[i] - from) * share ** 0.8)).join(" ")})`;
    const brush = canvas.getContext("2d");
    const draw = () => {
      brush.setTransform(sharp, 0, 0, sharp, 0, 0);
      brush.clearRect(0, 0, side, side);
      order.forEach((i, row) => {
        order.forEach((j, column) => {
          brush.fillStyle = shade(learnt.weights[i][j] / most);
          brush.fillRect(strip + column * cell, strip + row * cell, Math.ceil(cell * sharp) / sharp, Math.ceil(cell * sharp) / sharp);
        });
        if (groups) {
          brush.fillStyle = groups[i];
          brush.fillRect(0, strip + row * cell, strip - 3, cell + 0.3);
          brush.fillRect(strip + row * cell, 0, cell + 0.3, strip - 3);
        }
      });
      brush.strokeStyle = frame;
      brush.lineWidth = 1.5;
      for (let start = 0, end = 1; end <= m; end++) {
        if (end < m && learnt.labels[order[end]] === learnt.labels[order[start]]) continue;
        brush.strokeRect(strip + start * cell + 0.5, strip + start * cell + 0.5, (end - start) * cell - 1, (end - start) * cell - 1);
        start = end;
      }
      const [row, column] = state.cell;
      brush.strokeStyle = ink;
      brush.lineWidth = 2;
      brush.strokeRect(strip + column * cell, strip + row * cell, Math.max(3, cell), Math.max(3, cell));
    };
    const choose = (row, column) => {
      state.cell = [Math.min(m - 1, Math.max(0, row)), Math.min(m - 1, Math.max(0, column))];
      draw();
      showPair(users, learnt, order[state.cell[0]], order[state.cell[1]]);
    };
    heat = { draw, choose, at: (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientY - box.top, event.clientX - box.left].map((place) => Math.floor(((place * side) / box.width - strip) / cell));
    } };
    canvas.setAttribute("aria-label", `Heat map of the ${m} by ${m} weights, ordered by stream. Arrow keys move from cell to cell.`);
    find("ramp").replaceChildren("0", element("i", {}), `${(most * story.weight_step).toFixed(3)}`);
    find("heat-caption").textContent = users.groups ? "The coloured edges show each user's true group, which nobody told the method." : "";
    // To begin with, the first user and the one whom it learns most from.
    const others = order.map((j, column) => (column ? learnt.weights[order[0]][j] : -1));
    choose(...(state.cell ?? [0, Math.max(0, others.indexOf(Math.max(...others)))]));
  }

  function histogram(counts, colour) {
    const most = Math.max(...counts, 1), height = 46, wide = 240;
    const each = wide / counts.length;
    return drawn("svg", { viewBox: `0 0 ${wide} ${height + 12}`, width: wide, height: height + 12, role: "img", "aria-label": `examples of each label: ${counts.map((count, label) => `${label}: ${count}`).join(", ")}` },
      ...counts.map((count, label) => drawn("rect", { class: "who", colour, x: label * each + each * 0.1, width: each * 0.8, y: height - (height * count) / most, height: (height * count) / most })),
      ...counts.map((_, label) => (each >= 12 || label % 10 === 0 ? drawn("text", { x: (label + 0.5) * each, y: height + 11, "text-anchor": "middle" }, String(label)) : null)));
  }

  function showPair(users, learnt, i, j) {
    const about = (user) => {
      const size = sizeOf(users, user), parts = [`stream ${learnt.labels[user]}`];
      if (users.groups) parts.push(`true group ${users.groups[user]}`);
      if (size !== null) parts.push(`${size} training examples`);
      return [element("p", {}, parts.join(" · ")), users.label_counts ? histogram(users.label_counts[user], users.groups ? groupColour(users.groups[user]) : "var(--accent)") : null];
    };
    const share = learnt.weights[i].reduce((sum, value, user) => sum + (learnt.labels[user] === learnt.labels[i] ? value : 0), 0) * story.weight_step;
    find("heat-details").replaceChildren(
      element("p", { class: "weight" }, `${(100 * learnt.weights[i][j] * story.weight_step).toFixed(2)}%`),
      element("p", {}, "of ", name(users.names[i]), i === j ? "'s model is its own update" : "'s model comes from ", i === j ? "" : name(users.names[j]), `; ${(100 * share).toFixed(0)}% comes from its own stream, an even share would be ${(100 / users.names.length).toFixed(1)}%.`),
      element("div", { class: "two" }, ...(i === j ? [i] : [i, j]).map((user) => element("div", {}, element("h4", {}, name(users.names[user])), ...about(user)))),
    );
  }

  function showGraph(users, learnt, count) {
    const host = find("graph"), width = Math.max(280, host.clientWidth);
    const serverX = 34, streamX = Math.min(150, width * 0.3), dotsX = streamX + 34, gap = 15;
    const perLine = Math.max(4, Math.floor((width - dotsX - 6) / gap));
    const members = Array.from({ length: count }, (_, s) => learnt.labels.flatMap((label, user) => (label === s ? [user] : [])));
    let y = 8;
    const rows = members.map((inside) => {
      const height = 24 + Math.ceil(inside.length / perLine) * gap + 10;
      const row = { inside, top: y, middle: y + height / 2 - 5 };
      y += height;
      return row;
    });
    const middle = y / 2 - 5;
    const picture = drawn("svg", { width, height: y, viewBox: `0 0 ${width} ${y}`, role: "img", "aria-label": `The server sends ${plural(count, "stream")}: ${members.map((inside, s) => `stream ${s} to ${plural(inside.length, "user")}, ${(100 * learnt.own_share[s]).toFixed(0)}% of whose weight lies on its own users`).join("; ")}.` });
    for (const row of rows) picture.append(drawn("path", { class: "link", d: `M${serverX},${middle}C${(serverX + streamX) / 2},${middle} ${(serverX + streamX) / 2},${row.middle} ${streamX},${row.middle}` }));
    rows.forEach((row, s) => {
      picture.append(drawn("circle", { class: "node", cx: streamX, cy: row.middle, r: 12 }), drawn("text", { class: "on-node", x: streamX, y: row.middle + 4, "text-anchor": "middle" }, String(s)));
      picture.append(drawn("text", { x: dotsX - 6, y: row.top + 14 }, `${plural(row.inside.length, "user")} · ${(100 * learnt.own_share[s]).toFixed(0)}% from their own`));
      row.inside.forEach((user, i) => {
        const dot = drawn("circle", { class: "who", colour: users.groups ? groupColour(users.groups[user]) : "var(--accent)", cx: dotsX + (i % perLine) * gap, cy: row.top + 28 + Math.floor(i / perLine) * gap, r: 5.5 });
        dot.addEventListener("pointermove", (event) => showTooltip(event, element("bdi", {}, users.names[user]), [
          ...(users.groups ? [[swatch(groupColour(users.groups[user])), "true group", String(users.groups[user])]] : []),
          ...methods.filter((method) => users.accuracy[method.label]).map((method) => [sample(method), method.label, percent(users.accuracy[method.label][user])])]));
        dot.addEventListener("pointerleave", hideTooltip);
        picture.append(dot);
      });
    });
    picture.append(drawn("rect", { class: "node", x: serverX - 29, y: middle - 13, width: 58, height: 26, rx: 6 }), drawn("text", { class: "on-node", x: serverX, y: middle + 4, "text-anchor": "middle" }, "server"));
    host.replaceChildren(element("h3", {}, "The streams"), picture, element("p", { class: "caption" }, `Dots are users${users.groups ? ", coloured by true group" : ""}; the share is what a stream's mixture takes from its own users.`));
  }

  function showSilhouettes(users, learnt) {
    const others = story.populations.filter((one) => one.collaboration && one !== users);
    const along = (scores) => scores.map((_, i) => i + 1);
    const series = [...others.map((one) => ({ label: `seed ${one.seed}`, colour: "var(--soft)", faint: true, x: along(one.collaboration.silhouettes), y: one.collaboration.silhouettes })),
      { label: "silhouette", colour: "var(--accent)", strong: true, dots: true, x: along(learnt.silhouettes), y: learnt.silhouettes }];
    const k = learnt.suggested, last = Math.max(...series.map((one) => one.x.length), 2);
    chart(find("silhouette-chart"), {
      series, height: 250, whole: true, x: [1, last], y: bounds([...series.flatMap((one) => one.y), 0], -1, 1), xLabel: "number of streams k", yLabel: "silhouette",
      title: `Silhouette against the number of streams; the recommended number is ${k}, with ${learnt.silhouettes[k - 1].toFixed(2)}.`,
      xTitle: (streams) => `k = ${streams}`, format: (value) => value.toFixed(3), marks: [{ x: k, y: learnt.silhouettes[k - 1], colour: "var(--accent)", label: `k = ${k}` }],
    });
    find("verdict").textContent = `Take k = ${k}`;
    find("reason").textContent = learnt.reason + (others.length ? " Faint lines are the other seeds." : "");
  }

  // --- user by user -----------------------------------------------------------------------------

  function showUsers() {
    const users = population(), here = methods.filter((method) => users.accuracy[method.label]);
    const focus = users.accuracy[state.focus] ? state.focus : here[0].label;
    const against = ["fedavg", "local"].filter((label) => users.accuracy[label] && label !== focus);
    const minus = (a, b) => (a === null || b === null ? null : a - b);
    const rows = users.names.map((text, i) => {
      const gains = against.map((label) => minus(users.accuracy[focus][i], users.accuracy[label][i]));
      return { text, i, gains, least: gains.length && !gains.includes(null) ? Math.min(...gains) : null };
    });
    const columns = [
      { key: "user", head: "user", value: (row) => row.i, cell: (row) => element("th", { scope: "row" }, name(row.text)) },
      ...(users.groups ? [{ key: "group", head: "true group", value: (row) => users.groups[row.i], cell: (row) => element("td", {}, swatch(groupColour(users.groups[row.i])), String(users.groups[row.i])) }] : []),
      ...(users.label_counts ? [{ key: "size", head: "examples", value: (row) => sizeOf(users, row.i), cell: (row) => element("td", {}, String(sizeOf(users, row.i))) }] : []),
      ...(users.collaboration ? [{ key: "stream", head: "stream", value: (row) => users.collaboration.labels[row.i], cell: (row) => element("td", {}, String(users.collaboration.labels[row.i])) }] : []),
      ...against.map((label, n) => ({ key: `gain-${label}`, head: `gain over ${label}`, value: (row) => row.gains[n], cell: (row) => element("td", { class: row.gains[n] < 0 ? "loss" : row.gains[n] > 0 ? "gain" : null }, signed(row.gains[n])) })),
      ...here.map((method) => ({ key: `method-${method.label}`, head: method.label, method, value: (row) => users.accuracy[method.label][row.i], cell: (row) => element("td", { class: method.label === focus ? "key" : null }, percent(users.accuracy[method.label][row.i])) })),
    ];
    // Without a column chosen, those who lose most by personalisation come first.
    const column = columns.find((one) => one.key === state.sort?.key);
    const value = column ? column.value : (row) => row.least ?? users.accuracy[focus][row.i];
    const direction = column ? state.sort.direction : 1;
    rows.sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      if (left === null || right === null) return (left === null) - (right === null);
      return direction * (left - right) || a.i - b.i;
    });
    const sort = (key) => {
      const again = state.sort?.key === key ? -state.sort.direction : key.startsWith("gain") || ["user", "group", "stream"].includes(key) ? 1 : -1;
      state.sort = { key, direction: again };
      showUsers();
      every("#users-table thead button").find((button) => button.dataset.key === key).focus();
      say(`sorted by ${columns.find((one) => one.key === key).head}, ${again > 0 ? "ascending" : "descending"}`);
    };
    find("users-table").replaceChildren(
      element("caption", { class: "unseen" }, "Accuracy of every user in the final round"),
      element("thead", {}, element("tr", {}, ...columns.map((one) => element("th", { scope: "col", "aria-sort": one === column ? (direction > 0 ? "ascending" : "descending") : null },
        element("button", { type: "button", "data-key": one.key, on: { click: () => sort(one.key) } }, one.method ? sample(one.method) : null, name(one.head)))))),
      element("tbody", {}, ...rows.map((row) => element("tr", { class: row.least !== null && row.least < 0 ? "loser" : null }, ...columns.map((one) => one.cell(row))))),
    );
    const lost = against.map((label, n) => `${rows.filter((row) => row.gains[n] < 0).length} of ${users.names.length} would be better off with ${label}`);
    const fewest = users.test_sizes ? Math.min(...users.test_sizes.filter((size) => size > 0)) : 0;
    find("users-hint").textContent = `Final test accuracy, seed ${users.seed} (another seed draws other users). ` +
      (fewest && Number.isFinite(fewest) ? `With as few as ${plural(fewest, "test example")} a user, one example is worth up to ${short(100 / fewest)} points. ` : "") +
      (lost.length ? `Under ${focus}, ${lost.join(", and ")}; those who lose most come first.` : "");
    const picker = find("focus"), choices = here.filter((method) => !["fedavg", "local"].includes(method.label));
    find("focus-pick").hidden = choices.length < 2 || !against.length;
    picker.replaceChildren(...choices.map((method) => element("option", { value: method.label, selected: method.label === focus }, method.label)));
  }

  function showRepeat() {
    const { repeat } = story;
    find("commands").append(...repeat.commands.map((command) => element("pre", {}, element("code", {}, command))));
    const facts = [["users' data", repeat.source], ["seeds", story.seeds.join(", ")],
      ...repeat.versions.map((one) => ["versions", Object.entries(one).map(([key, value]) => `${key} ${value}`).join(", ")]),
      ...repeat.machines.map((one) => ["machine", Object.entries(one).map(([key, value]) => `${key} ${value}`).join(", ")])];
    find("facts").append(...facts.flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]));
    const mono = (text) => element("td", { class: "mono text", title: text }, text.length > 40 && !text.includes("/") ? `${text.slice(0, 16)}…` : text);
    table(find("runs-table"), ["method", "seed", "rounds", "SHA-256 of the users' data", "of the first model", "folder"],
      repeat.runs.map((run) => [name(run.algorithm), String(run.seed), String(run.rounds), mono(run.data), mono(run.model), mono(run.folder)]));
    find("notes").append(...story.notes.map((note) => element("li", {}, note)));
  }

  // --- what people do ---------------------------------------------------------------------------

  function listen() {
    every("[data-what]").forEach((button) => button.addEventListener("click", () => { state.what = button.dataset.what; showRounds(); }));
    every("[data-band]").forEach((button) => button.addEventListener("click", () => { state.band = button.dataset.band; showRounds(); }));
    find("systems").append(...Object.keys(story.systems).map((key) => element("button", { type: "button", "data-system": key, on: { click: () => { state.system = { ...story.systems[key] }; showTimes(); } } }, key)));
    for (const key of ["rho", "t_min", "mean_delay"]) find(key).addEventListener("input", () => { state.system = { ...state.system, [key]: Number(find(key).value) }; showTimes(); });
    find("controls").addEventListener("submit", (event) => event.preventDefault());
    const streams = find("streams");
    streams.max = story.users;
    streams.value = state.streams;
    find("streams-control").hidden = !personal.length;
    streams.addEventListener("input", () => { state.streams = Number(streams.value); showTimes(); });
    const target = find("target"), means = methods.flatMap((method) => method.mean).filter((value) => value !== null);
    if (means.length) {
      target.min = Math.floor(Math.min(...means));
      target.max = Math.ceil(Math.max(...means));
      target.value = state.target;
    }
    target.addEventListener("input", () => { state.target = Number(target.value); showTimes(); });
    find("whole").addEventListener("change", () => { state.whole = find("whole").checked; showTimes(); });
    const canvas = find("heat");
    canvas.addEventListener("pointermove", (event) => heat?.choose(...heat.at(event)));
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      heat?.choose(state.cell[0] + move[0], state.cell[1] + move[1]);
    });
    for (const picker of every("[data-seed]")) {
      picker.append(...story.populations.map((one, i) => element("option", { value: i }, String(one.seed))));
      picker.parentElement.hidden = story.populations.length < 2;
      picker.addEventListener("change", () => {
        state.population = Number(picker.value);
        every("[data-seed]").forEach((other) => { other.value = picker.value; });
        showCollaboration();
        showUsers();
      });
    }
    find("focus").addEventListener("change", () => { state.focus = find("focus").value; showUsers(); });
    const theme = find("theme"), dark = window.matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
    const showTheme = () => {
      theme.setAttribute("aria-pressed", String(isDark()));
      theme.textContent = isDark() ? "Light" : "Dark";
      theme.setAttribute("aria-label", "Dark colours");
    };
    theme.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; showTheme(); showCollaboration(); });
    dark.addEventListener("change", () => { showTheme(); showCollaboration(); });
    showTheme();
    // Charts are drawn to the pixel, so another width draws them anew.
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return;
      width = window.innerWidth;
      showRounds();
      showTimes();
      showCollaboration();
    });
  }

  listen();
  showHead();
  showChips();
  showRounds();
  showRoundsTable();
  showTimes();
  showCollaboration();
  showUsers();
  showRepeat();
  document.documentElement.dataset.ready = "true";
})();
