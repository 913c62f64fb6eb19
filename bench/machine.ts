import { closeSync, fsyncSync, openSync, rmSync, writeSync } from 'node:fs'
import { availableParallelism, cpus, loadavg, release, totalmem, type } from 'node:os'
import { join } from 'node:path'
import { median } from './results.ts'

export interface Machine {
  readonly node: string
  readonly system: string
  readonly cpu: string
  readonly cores: number
  readonly memoryGb: number
  /** What one durable write costs on the disk that the SQLite rows use. */
  readonly fsyncUs: number
  /** The load before the run: above 0.5 or so, others were at work. */
  readonly loadBefore: number
  readonly measuredAt: string
}

export function describeMachine(directory: string): Machine {
  return {
    node: process.version,
    system: `${type()} ${release()} ${process.arch}`,
    cpu: cpus()[0]?.model ?? 'unknown',
    cores: availableParallelism(),
    memoryGb: Math.round(totalmem() / 2 ** 30),
    fsyncUs: Math.round(measureFsyncUs(directory)),
    loadBefore: Number((loadavg()[0] ?? 0).toFixed(2)),
    measuredAt: new Date().toISOString(),
  }
}

const FSYNC_SAMPLES = 100
const PAGE_BYTES = 4096

function measureFsyncUs(directory: string): number {
  const path = join(directory, 'fsync')
  const file = openSync(path, 'w')
  const page = Buffer.alloc(PAGE_BYTES, 1)
  const samples: number[] = []
  for (let count = 0; count < FSYNC_SAMPLES; count++) {
    const startedAt = performance.now()
    writeSync(file, page)
    fsyncSync(file)
    samples.push((performance.now() - startedAt) * 1000)
  }
  closeSync(file)
  rmSync(path)
  return median(samples)
}
