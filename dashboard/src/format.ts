const NUMBER = new Intl.NumberFormat('en')
const RATE = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 })
const CLOCK = new Intl.DateTimeFormat('en', { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' })
const DAY = new Intl.DateTimeFormat('en', { day: 'numeric', month: 'short' })

const UNITS: ReadonlyArray<readonly [name: string, ms: number]> = [
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['min', 60_000],
  ['s', 1_000],
]

export function number(value: number): string {
  return NUMBER.format(value)
}

export function rate(perSecond: number): string {
  return `${RATE.format(perSecond)}/s`
}

/** `count('operation', 1)`: 1 operation. */
export function count(noun: string, value: number): string {
  return `${number(value)} ${noun}${value === 1 ? '' : 's'}`
}

/** In the largest unit that leaves something before the point, and the next one where it says something. */
export function duration(ms: number): string {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`
  const at = UNITS.findIndex(([, unitMs]) => ms >= unitMs)
  const [name, unitMs] = UNITS[at] ?? ['s', 1_000]
  const whole = Math.floor(ms / unitMs)
  const next = UNITS[at + 1]
  const rest = next === undefined ? 0 : Math.floor((ms % unitMs) / next[1])
  if (next === undefined) return `${ms < 10_000 ? Math.floor(ms / 100) / 10 : whole} s`
  return whole >= 10 || rest === 0 ? `${whole} ${name}` : `${whole} ${name} ${rest} ${next[0]}`
}

export function ago(at: number, now: number = Date.now()): string {
  const ms = now - at
  return ms < 1_000 ? 'now' : `${duration(Math.floor(ms / 1_000) * 1_000)} ago`
}

/** 14:03:22, with the day before it when it was another one. */
export function clock(at: number): string {
  const date = new Date(at)
  const time = CLOCK.format(date)
  return date.toDateString() === new Date().toDateString() ? time : `${DAY.format(date)} ${time}`
}

export function preciseClock(at: number): string {
  return `${clock(at)}.${String(new Date(at).getMilliseconds()).padStart(3, '0')}`
}

export function bytes(value: number): string {
  if (value < 1_000) return count('byte', value)
  if (value < 1_000_000) return `${(value / 1_000).toFixed(1)} kB`
  return `${(value / 1_000_000).toFixed(1)} MB`
}

export function shortId(id: string): string {
  return id.length > 12 ? id.slice(0, 12) : id
}
