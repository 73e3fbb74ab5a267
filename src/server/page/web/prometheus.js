// Reads the Prometheus text format as the server writes it.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

export function parseMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : SAMPLE.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) labels[name] = value.replace(/\\(.)/g, "$1");
    samples.push({name: match[1], labels, value: Number(match[3])});
  }
  const of = (name) => samples.filter((sample) => sample.name === name);
  const sum = (name) => of(name).reduce((total, sample) => total + sample.value, 0);
  // Cumulative counts by upper bound, summed over models.
  const histogram = (name) => {
    const buckets = new Map();
    for (const {labels, value} of of(`${name}_bucket`)) {
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      buckets.set(bound, (buckets.get(bound) ?? 0) + value);
    }
    return [...buckets].sort(([a], [b]) => a - b);
  };
  return {of, sum, histogram};
}

// What a histogram gained between two readings.
export function gained(before, now) {
  const known = new Map(before);
  return now.map(([bound, count]) => [bound, count - (known.get(bound) ?? 0)]);
}

// The quantile by linear interpolation in its bucket, as Prometheus does; null without samples.
export function quantile(buckets, share) {
  const total = buckets.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  const at = buckets.findIndex(([, count]) => count >= share * total);
  const [bound, count] = buckets[at];
  const [lower, below] = at > 0 ? buckets[at - 1] : [0, 0];
  if (bound === Infinity) return lower;
  return lower + (bound - lower) * (count > below ? (share * total - below) / (count - below) : 1);
}

// How many samples are not above the limit, which must be one of the bounds.
export const within = (buckets, limit) => buckets.find(([bound]) => bound === limit)?.[1] ?? 0;
