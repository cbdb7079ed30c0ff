// What the page shows, and what rounds cost: time as ucfl.wireless computes it.

const story = JSON.parse(document.getElementById("story").textContent);

// What methods are judged by: a share in percent, or any number.
const { measure } = story;
const digits = (value) =>
  measure.percent ? value.toFixed(1) : Number(value.toPrecision(4)).toString();
const inUnit = (value) =>
  value === null || value === undefined || Number.isNaN(value)
    ? "–"
    : `${value < 0 ? "−" : ""}${digits(Math.abs(value))}${measure.percent ? "%" : ""}`;
const signed = (value) =>
  value === null ? "–" : `${value < 0 ? "−" : value > 0 ? "+" : ""}${digits(Math.abs(value))}`;
// How much better one value is than another.
const gain = (one, other) => (measure.more_is_better ? one - other : other - one);
const isAsGood = (value, target) => value !== null && gain(value, target) >= 0;

const methods = story.methods.map((method) => ({
  ...method,
  colour: both([method.light, method.dark]),
}));
const personal = methods.filter((method) => method.personal);
const byLabel = (label) => methods.find((method) => method.label === label);
const hasBands = methods.some((method) => method.low);
// How many seeds methods have, which need not all have the same.
const seedCounts = methods.map((method) => method.seeds.length);
const fewestSeeds = Math.min(...seedCounts),
  mostSeeds = Math.max(...seedCounts);
const seedCount =
  fewestSeeds === mostSeeds ? plural(mostSeeds, "seed") : `${fewestSeeds} to ${mostSeeds} seeds`;
// Whether every round sends and computes the same.
const isSteady = (method) => method.traffic.length === 1;
const firstSystem = Object.values(story.systems)[0];
const state = {
  hidden: new Set(),
  what: "mean",
  band: mostSeeds > 1 ? "seeds" : hasBands ? "users" : "none",
  system: { ...firstSystem },
  streams: Math.round(
    (personal.find((method) => method.label === story.personal) ?? personal[0])?.streams ?? 1,
  ),
  target: story.target.value,
  site: "urban-micro",
  spent: "time",
  whole: false,
  population: 0,
  focus: story.personal,
  learner: null,
  sort: null,
  cell: null,
};
const shown = () => methods.filter((method) => !state.hidden.has(method.label));

// H_m: the slowest of m exponential delays, in units of their mean.
const slowest = (m) => Array.from({ length: m }, (_, i) => 1 / (m - i)).reduce((a, b) => a + b, 0);
const computing = (system, m = story.participants) => system.t_min + system.mean_delay * slowest(m);
const roundTime = ([down, up, work], system, m = story.participants) =>
  down + system.rho * up + work * computing(system, m);

// The deadline of a method's rounds, on the system that it is for.
const deadlineOf = ({ deadline }, system) =>
  deadline && Object.keys(deadline.system).every((key) => deadline.system[key] === system[key])
    ? deadline
    : null;

function times(method, system) {
  const found = [roundTime(method.start, system, story.users)],
    limit = deadlineOf(method, system);
  for (const [count, ...traffic] of method.traffic) {
    const lasts = roundTime(traffic, system);
    for (let i = 0; i < count; i++) {
      const late = limit?.late[found.length - 1] ?? 0;
      const waited = limit ? late * limit.time + (1 - late) * Math.min(limit.time, lasts) : lasts;
      found.push(found[found.length - 1] + waited);
    }
  }
  return found;
}

// The run with k streams, or what k streams would cost with the curve of the nearest run.
function whatIf(k) {
  if (!personal.length) return null;
  const near = personal.reduce((best, one) => {
    const gap = Math.abs(one.streams - k) - Math.abs(best.streams - k);
    return gap < 0 || (gap === 0 && one.streams < best.streams) ? one : best;
  });
  if (near.streams === k) return { measured: near };
  const traffic = near.traffic.map(([count, , up, work]) => [count, k, up, work]);
  return {
    borrowed: near,
    method: {
      ...near,
      label: `what if k = ${k}`,
      streams: k,
      traffic,
      dashes: [2, 3],
      imagined: true,
    },
  };
}

function raced() {
  const guess = whatIf(state.streams);
  const running = shown();
  if (guess?.method && !state.hidden.has(guess.borrowed.label)) running.push(guess.method);
  return running.map((method) => {
    const x = times(method, state.system);
    const reached = method.mean.findIndex((value) => isAsGood(value, state.target));
    return { method, x, y: method.mean, reached, time: reached < 0 ? Infinity : x[reached] };
  });
}
