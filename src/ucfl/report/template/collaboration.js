// Who learns from whom: W, the streams, the silhouettes.

const population = () => story.populations[state.population];
const groupColour = (group) => both(story.groups[group % story.groups.length]);
// What a method measured with the users of this seed: the chosen one, or the first that has W.
const learners = (users) => Object.keys(users.collaborations);
const learntBy = (users) =>
  users.collaborations[state.learner] ?? Object.values(users.collaborations)[0] ?? null;
const sizeOf = (users, i) =>
  users.label_counts ? users.label_counts[i].reduce((sum, count) => sum + count, 0) : null;

function showCollaboration() {
  const users = population(),
    learnt = learntBy(users),
    picker = find("learner");
  find("collaboration-body").hidden = !learnt;
  find("learner-pick").hidden = learners(users).length < 2;
  picker.replaceChildren(
    ...learners(users).map((label) =>
      element("option", { value: label, selected: label === learnt.of }, label),
    ),
  );
  if (!learnt) {
    find("collaboration-hint").textContent =
      `No run of seed ${users.seed} has measured who learns usefully from whom (W). ` +
      "Add user-centric to the runs; an algorithm of your own shows its W here when it has collaboration(state).";
    return;
  }
  const count = Math.max(...learnt.labels) + 1;
  find("collaboration-hint").textContent =
    `Row i holds the weights with which user i's model mixes everybody's, as the method found them (${learnt.of}, seed ${users.seed}). ` +
    (learnt.own
      ? `Frames are the ${plural(count, "stream")} that the run used.`
      : `The run has a stream for each user; frames are the ${plural(count, "stream")} that the silhouette suggests.`);
  showHeat(users, learnt);
  showGraph(users, learnt, count);
  showSilhouettes(users, learnt);
}

let heat = null;
// With more users, names at the edges of W would be too small to read.
const MOST_NAMED_USERS = 30;

// A text's beginning that is no wider than that.
function cut(brush, text, width) {
  if (brush.measureText(text).width <= width) return text;
  let letters = [...text];
  while (letters.length > 1 && brush.measureText(`${letters.join("")}…`).width > width)
    letters = letters.slice(0, -1);
  return `${letters.join("")}…`;
}

function showHeat(users, learnt) {
  const canvas = find("heat"),
    host = canvas.parentElement;
  canvas.hidden = find("ramp").hidden = find("heat-details").hidden = !learnt.weights;
  if (!learnt.weights) {
    heat = null;
    find("heat-caption").textContent = "Left out, so that this file stays small.";
    return;
  }
  const order = learnt.labels
    .map((_, i) => i)
    .sort((a, b) => learnt.labels[a] - learnt.labels[b] || a - b);
  const m = order.length,
    brush = canvas.getContext("2d");
  const most = Math.max(...learnt.weights.map((row) => Math.max(...row)), 1);
  const side = Math.max(240, Math.min(500, host.clientWidth)),
    sharp = window.devicePixelRatio || 1;
  canvas.width = canvas.height = Math.round(side * sharp);
  canvas.style.aspectRatio = "1";
  const named = m <= MOST_NAMED_USERS && side / m >= 14;
  brush.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const font = brush.font,
    widths = users.names.map((text) => brush.measureText(text).width);
  const room = named ? Math.min(84, Math.ceil(Math.max(...widths)) + 6) : 0,
    strip = room + (users.groups ? 9 : 0);
  const cell = (side - strip - 1) / m;
  const style = getComputedStyle(document.documentElement);
  const probe = element("i", {});
  document.body.append(probe);
  const colour = (value) => {
    probe.style.color = value;
    return getComputedStyle(probe).color;
  };
  const channels = (value) =>
    colour(value)
      .match(/[\d.]+/g)
      .slice(0, 3)
      .map(Number);
  const low = channels("var(--heat-low)"),
    top = channels("var(--heat-high)"),
    frame = colour("var(--frame)"),
    soft = colour("var(--soft)"),
    ink = colour("var(--ink)");
  const groups = users.groups?.map((group) => colour(groupColour(group)));
  probe.remove();
  const shade = (share) =>
    `rgb(${low.map((from, i) => Math.round(from + (top[i] - from) * share ** 0.8)).join(" ")})`;
  const draw = () => {
    brush.setTransform(sharp, 0, 0, sharp, 0, 0);
    brush.clearRect(0, 0, side, side);
    order.forEach((i, row) => {
      order.forEach((j, column) => {
        brush.fillStyle = shade(learnt.weights[i][j] / most);
        brush.fillRect(
          strip + column * cell,
          strip + row * cell,
          Math.ceil(cell * sharp) / sharp,
          Math.ceil(cell * sharp) / sharp,
        );
      });
      if (groups) {
        brush.fillStyle = groups[i];
        brush.fillRect(room, strip + row * cell, strip - room - 3, cell + 0.3);
        brush.fillRect(strip + row * cell, room, cell + 0.3, strip - room - 3);
      }
    });
    if (named) {
      brush.font = font;
      brush.fillStyle = soft;
      brush.textAlign = "right";
      brush.textBaseline = "middle";
      order.forEach((user, row) => {
        const middle = strip + (row + 0.5) * cell,
          text = cut(brush, users.names[user], room - 6);
        brush.fillText(text, room - 4, middle);
        // Of a column, read from the bottom to the top.
        brush.save();
        brush.translate(middle, room - 4);
        brush.rotate(-Math.PI / 2);
        brush.textAlign = "left";
        brush.fillText(text, 0, 0);
        brush.restore();
      });
    }
    brush.strokeStyle = frame;
    brush.lineWidth = 1.5;
    for (let start = 0, end = 1; end <= m; end++) {
      if (end < m && learnt.labels[order[end]] === learnt.labels[order[start]]) continue;
      brush.strokeRect(
        strip + start * cell + 0.5,
        strip + start * cell + 0.5,
        (end - start) * cell - 1,
        (end - start) * cell - 1,
      );
      start = end;
    }
    const [row, column] = state.cell;
    brush.strokeStyle = ink;
    brush.lineWidth = 2;
    brush.strokeRect(
      strip + column * cell,
      strip + row * cell,
      Math.max(3, cell),
      Math.max(3, cell),
    );
  };
  const choose = (row, column) => {
    state.cell = [Math.min(m - 1, Math.max(0, row)), Math.min(m - 1, Math.max(0, column))];
    draw();
    showPair(users, learnt, order[state.cell[0]], order[state.cell[1]]);
  };
  heat = {
    draw,
    choose,
    at: (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientY - box.top, event.clientX - box.left].map((place) =>
        Math.floor(((place * side) / box.width - strip) / cell),
      );
    },
  };
  canvas.setAttribute(
    "aria-label",
    `Heat map of the ${m} by ${m} weights, ordered by stream. Arrow keys move from cell to cell.`,
  );
  find("ramp").replaceChildren("0", element("i", {}), `${(most * story.weight_step).toFixed(3)}`);
  find("heat-caption").textContent =
    "Rows: whose model; columns: whose update." +
    (users.groups
      ? " The coloured edges show each user's true group, which nobody told the method."
      : "");
  // To begin with, the first user and the one whom it learns most from.
  const others = order.map((j, column) => (column ? learnt.weights[order[0]][j] : -1));
  choose(...(state.cell ?? [0, Math.max(0, others.indexOf(Math.max(...others)))]));
}

function histogram(counts, colour, names) {
  const most = Math.max(...counts, 1),
    height = 46,
    wide = 240;
  const each = wide / counts.length,
    fits = Math.floor(each / 6.5);
  const called = (label) => names?.[label] ?? String(label);
  // A name that is too long for its bar is cut; its title has the whole.
  const below = (label) => {
    const letters = [...called(label)];
    if (letters.length <= fits) return called(label);
    return fits < 3 ? String(label) : `${letters.slice(0, fits - 1).join("")}…`;
  };
  const title = (label) => drawn("title", {}, `${called(label)}: ${counts[label]}`);
  return drawn(
    "svg",
    {
      viewBox: `0 0 ${wide} ${height + 12}`,
      width: wide,
      height: height + 12,
      role: "img",
      "aria-label": `examples of each label: ${counts.map((count, label) => `${called(label)}: ${count}`).join(", ")}`,
    },
    ...counts.map((count, label) =>
      drawn(
        "rect",
        {
          class: "who",
          colour,
          x: label * each + each * 0.1,
          width: each * 0.8,
          y: height - (height * count) / most,
          height: (height * count) / most,
        },
        title(label),
      ),
    ),
    ...counts.map((_, label) =>
      each >= 12 || label % 10 === 0
        ? drawn(
            "text",
            { x: (label + 0.5) * each, y: height + 11, "text-anchor": "middle" },
            below(label),
            title(label),
          )
        : null,
    ),
  );
}

function showPair(users, learnt, i, j) {
  const about = (user) => {
    const size = sizeOf(users, user),
      parts = [`stream ${learnt.labels[user]}`];
    if (users.groups) parts.push(`true group ${users.groups[user]}`);
    if (size !== null) parts.push(`${size} training examples`);
    return [
      element("p", {}, parts.join(" · ")),
      users.label_counts
        ? histogram(
            users.label_counts[user],
            users.groups ? groupColour(users.groups[user]) : "var(--accent)",
            users.class_names,
          )
        : null,
    ];
  };
  const share =
    learnt.weights[i].reduce(
      (sum, value, user) => sum + (learnt.labels[user] === learnt.labels[i] ? value : 0),
      0,
    ) * story.weight_step;
  find("heat-details").replaceChildren(
    element(
      "p",
      { class: "weight" },
      `${(100 * learnt.weights[i][j] * story.weight_step).toFixed(2)}%`,
    ),
    element(
      "p",
      {},
      "of ",
      name(users.names[i]),
      i === j ? "'s model is its own update" : "'s model comes from ",
      i === j ? "" : name(users.names[j]),
      `; ${(100 * share).toFixed(0)}% comes from its own stream, an even share would be ${(100 / users.names.length).toFixed(1)}%.`,
    ),
    element(
      "div",
      { class: "two" },
      ...(i === j ? [i] : [i, j]).map((user) =>
        element("div", {}, element("h4", {}, name(users.names[user])), ...about(user)),
      ),
    ),
  );
}

function showGraph(users, learnt, count) {
  const host = find("graph"),
    width = Math.max(280, host.clientWidth);
  const serverX = 34,
    streamX = Math.min(150, width * 0.3),
    dotsX = streamX + 34,
    gap = 15;
  const perLine = Math.max(4, Math.floor((width - dotsX - 6) / gap));
  const members = Array.from({ length: count }, (_, s) =>
    learnt.labels.flatMap((label, user) => (label === s ? [user] : [])),
  );
  let y = 8;
  const rows = members.map((inside) => {
    const height = 24 + Math.ceil(inside.length / perLine) * gap + 10;
    const row = { inside, top: y, middle: y + height / 2 - 5 };
    y += height;
    return row;
  });
  const middle = y / 2 - 5;
  const picture = drawn("svg", {
    width,
    height: y,
    viewBox: `0 0 ${width} ${y}`,
    role: "img",
    "aria-label": `The server sends ${plural(count, "stream")}: ${members.map((inside, s) => `stream ${s} to ${plural(inside.length, "user")}, ${(100 * learnt.own_share[s]).toFixed(0)}% of whose weight lies on its own users`).join("; ")}.`,
  });
  for (const row of rows)
    picture.append(
      drawn("path", {
        class: "link",
        d: `M${serverX},${middle}C${(serverX + streamX) / 2},${middle} ${(serverX + streamX) / 2},${row.middle} ${streamX},${row.middle}`,
      }),
    );
  rows.forEach((row, s) => {
    picture.append(
      drawn("circle", { class: "node", cx: streamX, cy: row.middle, r: 12 }),
      drawn(
        "text",
        { class: "on-node", x: streamX, y: row.middle + 4, "text-anchor": "middle" },
        String(s),
      ),
    );
    picture.append(
      drawn(
        "text",
        { x: dotsX - 6, y: row.top + 14 },
        `${plural(row.inside.length, "user")} · ${(100 * learnt.own_share[s]).toFixed(0)}% from their own`,
      ),
    );
    row.inside.forEach((user, i) => {
      const dot = drawn("circle", {
        class: "who",
        colour: users.groups ? groupColour(users.groups[user]) : "var(--accent)",
        cx: dotsX + (i % perLine) * gap,
        cy: row.top + 28 + Math.floor(i / perLine) * gap,
        r: 5.5,
      });
      dot.addEventListener("pointermove", (event) =>
        showTooltip(event, element("bdi", {}, users.names[user]), [
          ...(users.groups
            ? [[swatch(groupColour(users.groups[user])), "true group", String(users.groups[user])]]
            : []),
          ...methods
            .filter((method) => users.final[method.label])
            .map((method) => [
              sample(method),
              method.label,
              inUnit(users.final[method.label][user]),
            ]),
        ]),
      );
      dot.addEventListener("pointerleave", hideTooltip);
      picture.append(dot);
    });
  });
  picture.append(
    drawn("rect", { class: "node", x: serverX - 29, y: middle - 13, width: 58, height: 26, rx: 6 }),
    drawn(
      "text",
      { class: "on-node", x: serverX, y: middle + 4, "text-anchor": "middle" },
      "server",
    ),
  );
  host.replaceChildren(
    element("h3", {}, "The streams"),
    picture,
    element(
      "p",
      { class: "caption" },
      `Dots are users${users.groups ? ", coloured by true group" : ""}; the share is what a stream's mixture takes from its own users.`,
    ),
  );
}

function showSilhouettes(users, learnt) {
  const others = story.populations
    .filter((one) => one !== users && one.collaborations[learnt.of])
    .map((one) => ({ seed: one.seed, collaboration: one.collaborations[learnt.of] }));
  const along = (scores) => scores.map((_, i) => i + 1);
  const series = [
    ...others.map((one) => ({
      label: `seed ${one.seed}`,
      colour: "var(--soft)",
      faint: true,
      x: along(one.collaboration.silhouettes),
      y: one.collaboration.silhouettes,
    })),
    {
      label: "silhouette",
      colour: "var(--accent)",
      strong: true,
      dots: true,
      x: along(learnt.silhouettes),
      y: learnt.silhouettes,
    },
  ];
  const k = learnt.suggested,
    last = Math.max(...series.map((one) => one.x.length), 2);
  chart(find("silhouette-chart"), {
    series,
    height: 250,
    whole: true,
    x: [1, last],
    y: bounds([...series.flatMap((one) => one.y), 0], -1, 1),
    xLabel: "number of streams k",
    yLabel: "silhouette",
    title: `Silhouette against the number of streams; the recommended number is ${k}, with ${learnt.silhouettes[k - 1].toFixed(2)}.`,
    xTitle: (streams) => `k = ${streams}`,
    format: (value) => value.toFixed(3),
    marks: [{ x: k, y: learnt.silhouettes[k - 1], colour: "var(--accent)", label: `k = ${k}` }],
  });
  find("verdict").textContent = `By silhouette, k = ${k}`;
  find("reason").textContent =
    learnt.reason + (others.length ? " Faint lines are the other seeds." : "");
}
