// What people do, and the first drawing.

function listen() {
  every("[data-what]").forEach((button) =>
    button.addEventListener("click", () => {
      state.what = button.dataset.what;
      showRounds();
    }),
  );
  every("[data-band]").forEach((button) =>
    button.addEventListener("click", () => {
      state.band = button.dataset.band;
      showRounds();
    }),
  );
  if (!hasBands) every('[data-band="users"]').forEach((button) => button.remove());
  find("systems").append(
    ...Object.keys(story.systems).map((key) =>
      element(
        "button",
        {
          type: "button",
          "data-system": key,
          on: {
            click: () => {
              state.system = { ...story.systems[key] };
              showTimes();
            },
          },
        },
        key,
      ),
    ),
  );
  for (const key of ["rho", "t_min", "mean_delay"])
    find(key).addEventListener("input", () => {
      state.system = { ...state.system, [key]: Number(find(key).value) };
      showTimes();
    });
  find("controls").addEventListener("submit", (event) => event.preventDefault());
  const streams = find("streams");
  streams.max = story.users;
  streams.value = state.streams;
  find("streams-control").hidden = !personal.length;
  streams.addEventListener("input", () => {
    state.streams = Number(streams.value);
    showTimes();
  });
  find("rounds-head").textContent =
    `${measure.words[0].toUpperCase()}${measure.words.slice(1)} over rounds`;
  find("target-of").textContent = `mean ${measure.words}`;
  const target = find("target"),
    means = methods.flatMap((method) => method.mean).filter((value) => value !== null);
  if (means.length) {
    const whole = measure.percent;
    target.min = whole ? Math.floor(Math.min(...means)) : Math.min(...means);
    target.max = whole ? Math.ceil(Math.max(...means)) : Math.max(...means);
    target.step = whole ? 0.1 : (target.max - target.min) / 500 || "any";
    target.value = state.target;
  }
  target.addEventListener("input", () => {
    state.target = Number(target.value);
    showTimes();
  });
  find("whole").addEventListener("change", () => {
    state.whole = find("whole").checked;
    showTimes();
  });
  const canvas = find("heat");
  canvas.addEventListener("pointermove", (event) => heat?.choose(...heat.at(event)));
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[
      event.key
    ];
    if (!move) return;
    event.preventDefault();
    heat?.choose(state.cell[0] + move[0], state.cell[1] + move[1]);
  });
  for (const picker of every("[data-seed]")) {
    picker.append(
      ...story.populations.map((one, i) => element("option", { value: i }, String(one.seed))),
    );
    picker.parentElement.hidden = story.populations.length < 2;
    picker.addEventListener("change", () => {
      state.population = Number(picker.value);
      every("[data-seed]").forEach((other) => {
        other.value = picker.value;
      });
      showCollaboration();
      showUsers();
    });
  }
  find("learner").addEventListener("change", () => {
    state.learner = find("learner").value;
    showCollaboration();
  });
  find("focus").addEventListener("change", () => {
    state.focus = find("focus").value;
    showUsers();
  });
  const theme = find("theme"),
    dark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () =>
    (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const showTheme = () => {
    theme.setAttribute("aria-pressed", String(isDark()));
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", "Dark colours");
  };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
    showCollaboration();
  });
  dark.addEventListener("change", () => {
    showTheme();
    showCollaboration();
  });
  showTheme();
  // Charts are drawn to the pixel, so another width draws them anew.
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    showRounds();
    showTimes();
    showRadio();
    showCollaboration();
  });
}

listen();
listenToRadio();
showHead();
showChips();
showRounds();
showRoundsTable();
showTimes();
showRadio();
showCollaboration();
showUsers();
showRepeat();
document.documentElement.dataset.ready = "true";
