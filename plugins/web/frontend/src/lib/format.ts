// Writes numbers for people.

const UNITS = ["B", "KB", "MB", "GB", "TB"];

/** Write a number of bytes, with units of 1000. */
export function bytes(value: number): string {
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** Write a time given in seconds. */
export function seconds(value: number): string {
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${value < 0.01 ? (value * 1e3).toFixed(1) : Math.round(value * 1e3)} ms`;
  if (value < 120) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  return `${Math.round(value / 60)} min`;
}

/** Write layers, given as the first one and the one after the last. */
export function layers(range: readonly number[]): string {
  return range[1]! - range[0]! === 1 ? `${range[0]}` : `${range[0]}–${range[1]! - 1}`;
}

/** Write a time given in seconds since 1970, by the clock of this machine; with the day if it is not today's. */
export function clock(value: number, language: string): string {
  const then = new Date(value * 1000);
  const time = then.toLocaleTimeString(language, { hour12: false });
  return then.toDateString() === new Date().toDateString() ? time : `${then.toLocaleDateString(language)} ${time}`;
}

/** Write a large number: of parameters, or of downloads. */
export function count(value: number): string {
  for (const [unit, name] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]] as const)
    if (value >= unit) return `${value >= 10 * unit ? Math.round(value / unit) : (value / unit).toFixed(1)} ${name}`;
  return `${value}`;
}
