import cluster from 'node:cluster'
import { startAdmin } from '../admin/server.ts'
import { startGate } from '../gate/gate.ts'
import { startWorkers, type Workers, workerFailed, workerReady, workerStarts } from '../gate/workers.ts'
import { EXIT_FAILED, Misuse } from './command.ts'
import { cannotListen, reach, sayReady, untilSignal } from './gate.ts'
import { gateOptions } from './gate-options.ts'
import type { Settings } from './settings.ts'
import { version } from './version.ts'

/** Several processes on one port and one store. The first process holds no gate: it keeps the others and the admin API. */
export async function runWorkers(settings: Settings): Promise<number> {
  return cluster.isPrimary ? keepWorkers(settings) : work(settings)
}

async function keepWorkers(settings: Settings): Promise<number> {
  if (settings.store.startsWith('memory:')) {
    throw new Misuse(
      '--store is memory:, which each worker would have for itself; use sqlite:PATH or a server, or one worker.',
    )
  }
  const opened = await reach(settings)
  if (opened === undefined) return EXIT_FAILED
  let workers: Workers | undefined
  const admin = await startAdmin({
    ...{ store: opened.store, version: version(), host: settings.adminHost, port: settings.adminPort },
    ...{ token: settings.adminToken, readOnly: settings.readOnly, reveal: settings.reveal },
    gate: () => ({
      info: {
        url: workers?.url,
        upstream: settings.upstream,
        workers: settings.workers,
        store: opened.shown,
      },
      gauges: [{ name: 'oncekey_gate_workers', help: 'Worker processes.', value: workers?.pids.length ?? 0 }],
    }),
  }).catch(async (error) => {
    await opened.close()
    throw cannotListen(error, 'admin-port', settings)
  })
  // Heard from before the workers start: one that comes in between ends them as soon as they are there.
  const signal = untilSignal()
  try {
    workers = await startWorkers({
      count: settings.workers,
      script: process.argv[1] ?? '',
      args: process.argv.slice(2),
      onReplaced: (pid, how) => console.error(`worker ${pid} ended (${how}); another takes its place`),
    })
    sayReady(settings, workers.url, admin.url)
    const failed = await Promise.race([signal, workers.ended])
    if (failed) throw failed
    return 0
  } finally {
    await workers?.stop()
    await admin.stop()
    await opened.close()
  }
}

async function work(settings: Settings): Promise<number> {
  // Before the store is waited for.
  workerStarts()
  const opened = await reach(settings)
  if (opened === undefined) return EXIT_FAILED
  try {
    workerReady(await startGate(gateOptions(settings, opened.store)), () => opened.close())
  } catch (error) {
    workerFailed((cannotListen(error, 'port', settings) as Error).message)
  }
  // From here on the primary says when it ends.
  return new Promise(() => {})
}
