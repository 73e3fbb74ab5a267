// Reads the snapshots of /events, and computes with their histograms.

// `models`: those that count, by name; null for all.
export function readSnapshot(snapshot, chosen = null) {
  const models = snapshot.models.filter(({name}) => chosen === null || name === chosen);
  // The samples of a metric, of all models: {model, value, and the metric's labels}.
  const of = (name) => models.flatMap(({name: model, metrics}) => {
    const found = metrics[name];
    if (found === undefined) return [];
    return (Array.isArray(found) ? found : [{value: found}]).map((sample) => ({...sample, model}));
  });
  const sum = (name) => of(name).reduce((total, {value}) => total + value, 0);
  // Cumulative counts by upper bound, summed over models.
  const histogram = (name) => {
    const buckets = new Map();
    for (const {metrics} of models) {
      const {bounds = [], counts = []} = metrics[name] ?? {};
      let total = 0;
      counts.forEach((count, index) => {
        total += count;
        const bound = bounds[index] ?? Infinity;
        buckets.set(bound, (buckets.get(bound) ?? 0) + total);
      });
    }
    return [...buckets].sort(([a], [b]) => a - b);
  };
  const histogramSum = (name) => models.reduce((total, {metrics}) => total + (metrics[name]?.sum ?? 0), 0);
  return {names: models.map(({name}) => name), of, sum, histogram, histogramSum};
}

// What a histogram gained between two readings.
export function gained(before, now) {
  const known = new Map(before);
  return now.map(([bound, count]) => [bound, Math.max(0, count - (known.get(bound) ?? 0))]);
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
