import { readdirSync, readFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'

interface CpuProfile {
  readonly nodes: readonly { readonly id: number; readonly callFrame: CallFrame }[]
  readonly samples: readonly number[]
  readonly timeDeltas: readonly number[]
}

interface CallFrame {
  readonly functionName: string
  readonly url: string
  readonly lineNumber: number
}

const FUNCTIONS_MAX = 25

/** One folder for each server, one profile for each of its threads: where the time itself was spent, idle time left out. */
export function hottest(directory: string): string {
  const files = readdirSync(directory, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith(SUFFIX))
  return files.map((file) => `\n${titleOf(file)}\n${summary(join(directory, file))}`).join('')
}

const SUFFIX = '.cpuprofile'

/** Node names a profile CPU.date.time.process.thread.number. */
function titleOf(file: string): string {
  const thread = basename(file, SUFFIX).split('.')[4]
  return `${dirname(file)}, ${thread === '0' ? 'main thread' : `thread ${thread}`}`
}

function summary(path: string): string {
  const profile = JSON.parse(readFileSync(path, 'utf8')) as CpuProfile
  const names = new Map(profile.nodes.map(({ id, callFrame }) => [id, nameOf(callFrame)]))
  const selfUs = new Map<string, number>()
  let busyUs = 0
  profile.samples.forEach((id, at) => {
    const name = names.get(id) ?? '?'
    if (name === '(idle)' || name === '(program)') return
    const us = profile.timeDeltas[at] ?? 0
    busyUs += us
    selfUs.set(name, (selfUs.get(name) ?? 0) + us)
  })
  return [...selfUs]
    .toSorted(([, a], [, b]) => b - a)
    .slice(0, FUNCTIONS_MAX)
    .map(([name, us]) => `${((us / busyUs) * 100).toFixed(1).padStart(6)} %  ${name}\n`)
    .join('')
}

function nameOf({ functionName, url, lineNumber }: CallFrame): string {
  const name = functionName === '' ? '(anonymous)' : functionName
  if (url === '') return name
  const path = url.replace(/^.*\/(dist|node_modules)\//, (_all, folder: string) => (folder === 'dist' ? 'dist/' : ''))
  return `${name}  ${path}:${lineNumber + 1}`
}
