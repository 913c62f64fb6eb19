import { closeSync, existsSync, fsyncSync, openSync, rmSync, statfsSync, writeSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { type Finding, fail, ok, warn } from './finding.ts'

const SYNCS = 5
const SYNC_MS_HIGH = 25
const PAGE_BYTES = 4_096
const FREE_BYTES_LOW = 1024 ** 3
const FREE_BYTES_MIN = 100 * 1024 ** 2

/** As statfs(2) numbers them. */
const VOLATILE: Readonly<Record<number, string>> = { 16914836: 'tmpfs', 2240043254: 'ramfs' }
const REMOTE: Readonly<Record<number, string>> = { 26985: 'NFS', 4283649346: 'CIFS', 4266872130: 'SMB2' }

/** The disk under an SQLite file: its kind, its room, and what one durable write costs. */
export function judgeDisk(path: string): readonly Finding[] {
  const folder = dirname(resolve(path))
  if (!existsSync(folder)) {
    return [
      fail(
        'disk',
        `There is no folder ${folder}.`,
        'The database cannot be made there.',
        'Make it, or correct --store.',
      ),
    ]
  }
  try {
    return [judgeRoom(folder), judgeKind(folder), judgeSync(folder)]
  } catch (error) {
    const what = `${folder}: ${(error as Error).message}`
    return [fail('disk', what, 'The database cannot be written there.', 'Give this user the right to write there.')]
  }
}

function judgeRoom(folder: string): Finding {
  const { bavail, bsize } = statfsSync(folder)
  const freeBytes = bavail * bsize
  const found = `${Math.round(freeBytes / 1024 ** 2)} MiB are free under ${folder}.`
  if (freeBytes >= FREE_BYTES_LOW) return ok('disk', found)
  const judge = freeBytes < FREE_BYTES_MIN ? fail : warn
  return judge(
    'disk',
    found,
    'On a full disk nothing can be claimed, and protected requests are refused.',
    'Make room, or shorten the TTLs; oncekey stats counts the records.',
  )
}

function judgeKind(folder: string): Finding {
  const { type } = statfsSync(folder)
  const remote = REMOTE[type]
  if (remote !== undefined) {
    return fail(
      'disk-kind',
      `${folder} is on ${remote}.`,
      'SQLite’s shared memory and locks do not work over a network: two machines would both win a claim.',
      'Use a local disk, or a database server as the store.',
    )
  }
  const kind = VOLATILE[type]
  if (kind === undefined) return ok('disk-kind', 'The disk is local.')
  return warn(
    'disk-kind',
    `${folder} is on ${kind}, which is memory.`,
    'A restart of the machine forgets every key, and retries run again.',
    'Use a folder on a disk.',
  )
}

function judgeSync(folder: string): Finding {
  const file = join(folder, `.oncekey-doctor-${process.pid}`)
  const tookMs: number[] = []
  const opened = openSync(file, 'wx')
  try {
    for (let i = 0; i < SYNCS; i++) {
      const startedMs = performance.now()
      writeSync(opened, Buffer.alloc(PAGE_BYTES))
      fsyncSync(opened)
      tookMs.push(performance.now() - startedMs)
    }
  } finally {
    closeSync(opened)
    rmSync(file)
  }
  const medianMs = tookMs.sort((a, b) => a - b)[Math.floor(SYNCS / 2)] ?? 0
  const found = `A durable write takes ${medianMs.toFixed(1)} ms.`
  if (medianMs <= SYNC_MS_HIGH) return ok('fsync', found)
  return warn(
    'fsync',
    found,
    'Every protected request waits for two of them, although those of one moment share theirs.',
    'Use a faster disk, or a database server as the store.',
  )
}
