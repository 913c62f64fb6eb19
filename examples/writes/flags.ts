import { readFileSync, renameSync, statSync, writeFileSync } from 'node:fs'

/** Which routes are covered, such as `POST /orders`. One that is not named is. */
export interface Flags {
  isOn(route: string): boolean
}

/**
 * Flags in a file that all instances see, such as `{"POST /orders": false}`. It is looked at for every request, which
 * costs some microseconds, so that a flip counts from the next request on: no restart, no signal. A file that cannot be
 * read changes nothing.
 */
export function fileFlags(path: string): Flags {
  let seen = ''
  let flags: Readonly<Record<string, unknown>> = {}
  const refresh = (): void => {
    const stat = statSync(path, { bigint: true, throwIfNoEntry: false })
    const version = stat ? `${stat.ino} ${stat.mtimeNs} ${stat.size}` : ''
    if (version === seen) return
    seen = version
    try {
      flags = stat ? Object(JSON.parse(readFileSync(path, 'utf8'))) : {}
    } catch (error) {
      console.error(`${path} was left as it was last read: ${(error as Error).message}`)
    }
  }
  return {
    isOn(route) {
      refresh()
      return flags[route] !== false
    },
  }
}

/** Whole or not at all: nobody reads half a file. */
export function setFlag(path: string, route: string, isOn: boolean): void {
  const flags = statSync(path, { throwIfNoEntry: false }) ? JSON.parse(readFileSync(path, 'utf8')) : {}
  writeFileSync(`${path}.new`, JSON.stringify({ ...flags, [route]: isOn }))
  renameSync(`${path}.new`, path)
}
