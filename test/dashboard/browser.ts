import { execFile } from 'node:child_process'
import { accessSync, constants, globSync, statSync } from 'node:fs'
import { delimiter, join, resolve } from 'node:path'
import { promisify } from 'node:util'
import { type Browser, chromium } from 'playwright-core'

const ROOT = resolve(import.meta.dirname, '../..')
const NAMES = ['chromium', 'chromium-browser', 'google-chrome', 'chrome']
const PLACES = ['/usr/bin', ...(process.env.PATH ?? '').split(delimiter)]

/** A browser of this machine; `undefined` when it has none. */
export const CHROMIUM: string | undefined = PLACES.flatMap((place) => NAMES.map((name) => join(place, name))).find(
  isExecutable,
)

export function startBrowser(executablePath: string): Promise<Browser> {
  // Root has no sandbox of its own, containers have little shared memory, and grey text makes small pictures.
  return chromium.launch({
    executablePath,
    args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--disable-lcd-text'],
  })
}

/** dist/dashboard, made anew when it is missing or older than what it is made of. */
export async function buildDashboard(): Promise<void> {
  const built = modifiedMs(join(ROOT, 'dist/dashboard/index.html'))
  const sources = globSync('{dashboard/**/*,scripts/build-dashboard.ts}', { cwd: ROOT })
  if (sources.every((file) => modifiedMs(join(ROOT, file)) < built)) return
  await promisify(execFile)(process.execPath, ['scripts/build-dashboard.ts'], { cwd: ROOT })
}

function modifiedMs(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.mtimeMs ?? 0
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK)
    return true
  } catch {
    return false
  }
}
