// Write values for people. Pure.

const MINUTE_S = 60;
const HOUR_S = 3600;
const DAY_S = 86400;
const MOST_MS = 8.64e15; // A Date can tell no time beyond it.
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const NOTHING = "–";

/** Return a number with four significant digits. */
export function formatNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) {
    return NOTHING;
  }
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) {
    return value.toLocaleString("en");
  }
  return size !== 0 && (size < 1e-3 || size >= 1e6)
    ? value.toExponential(3)
    : String(Number(value.toPrecision(4)));
}

/** Return a duration, given in seconds. */
export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined) {
    return NOTHING;
  }
  const s = Math.max(0, seconds);
  if (s < MINUTE_S) {
    return `${s < 10 ? s.toFixed(2) : s.toFixed(0)} s`;
  }
  if (s < HOUR_S) {
    return `${Math.floor(s / MINUTE_S)} min ${Math.floor(s % MINUTE_S)} s`;
  }
  return s < DAY_S
    ? `${Math.floor(s / HOUR_S)} h ${Math.floor((s % HOUR_S) / MINUTE_S)} min`
    : `${Math.floor(s / DAY_S)} d ${Math.floor((s % DAY_S) / HOUR_S)} h`;
}

/** Return an age in whole seconds: it is told again each second. */
export function formatAge(seconds) {
  return seconds < MINUTE_S ? `${Math.max(0, Math.floor(seconds))} s` : formatDuration(seconds);
}

/** Return a number of bytes. */
export function formatBytes(count) {
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(1)} ${UNITS[unit]}`;
}

function dateOf(atS) {
  return new Date(Math.max(-MOST_MS, Math.min(MOST_MS, atS * 1000)));
}

/** Return a time for programs, of seconds since 1970. */
export function formatIso(atS) {
  return dateOf(atS).toISOString();
}

/** Return the time of day where the reader is, of seconds since 1970. */
export function formatTime(atS) {
  return dateOf(atS).toLocaleTimeString("en-GB");
}

/** Return the day and the time where the reader is, of seconds since 1970. */
export function formatMoment(atS) {
  const at = dateOf(atS);
  const day = [at.getFullYear(), at.getMonth() + 1, at.getDate()];
  return `${day.map((part) => String(part).padStart(2, "0")).join("-")} ${formatTime(atS)}`;
}
