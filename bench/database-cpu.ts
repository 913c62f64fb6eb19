import { readdirSync, readFileSync } from 'node:fs'

/** Linux counts processor time in hundredths of a second, whatever its kernel's own clock is. */
const TICK_US = 10_000

/**
 * The processor time of all processes that this one has started, and of theirs: its database. `undefined` where there
 * is no telling.
 */
export function descendantsCpuUs(): number | undefined {
  if (process.platform !== 'linux') return undefined
  const all = readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  const stats = all.flatMap((pid) => statOf(pid) ?? [])
  const family = new Set([process.pid])
  // A child that was started before its parent is found in the next round.
  for (let known = 0; known < family.size; ) {
    known = family.size
    for (const { pid, parent } of stats) if (family.has(parent)) family.add(pid)
  }
  let ticks = 0
  for (const { pid, own } of stats) if (family.has(pid) && pid !== process.pid) ticks += own
  return ticks * TICK_US
}

interface Stat {
  readonly pid: number
  readonly parent: number
  /** Of the process and of those of its children that have ended. */
  readonly own: number
}

function statOf(pid: string): Stat | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'latin1')
    // The name stands in brackets and may hold anything, brackets too.
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
    const [, parent, ...rest] = fields
    const own = rest.slice(9, 13).reduce((sum, field) => sum + Number(field), 0)
    return { pid: Number(pid), parent: Number(parent), own }
  } catch {
    return undefined
  }
}
