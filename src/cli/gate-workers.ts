import cluster, { type Worker } from 'node:cluster'
import { channel, subscribe } from 'node:diagnostics_channel'
import { startAdmin } from '../admin/server.ts'
import { startGate } from '../gate/gate.ts'
import { EXIT_FAILED, Misuse } from './command.ts'
import { cannotListen, reach, sayReady, untilSignal } from './gate.ts'
import { gateOptions } from './gate-options.ts'
import type { Settings } from './settings.ts'
import { version } from './version.ts'

const CHANNELS = ['oncekey', 'oncekey:gate'] as const
/** A worker that dies is replaced, but not for ever: more than this many in a minute is a fault that restarts do not mend. */
const RESTARTS_PER_MINUTE_MAX = 10

type Told =
  | { readonly oncekey: 'ready'; readonly url: string }
  | { readonly oncekey: 'event'; readonly channel: (typeof CHANNELS)[number]; readonly event: object }
  | { readonly oncekey: 'failed'; readonly message: string }

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
  if (settings.port === 0) throw new Misuse('--port is 0, but workers must share one; name it.')
  const opened = await reach(settings)
  if (opened === undefined) return EXIT_FAILED
  const admin = await startAdmin({
    ...{ store: opened.store, version: version(), host: settings.adminHost, port: settings.adminPort },
    ...{ token: settings.adminToken, readOnly: settings.readOnly, reveal: settings.reveal },
    gate: () => ({
      info: {
        url: `http://${settings.host}:${settings.port}`,
        upstream: settings.upstream,
        workers: settings.workers,
        store: opened.shown,
      },
      gauges: [
        { name: 'oncekey_gate_workers', help: 'Worker processes.', value: Object.keys(cluster.workers ?? {}).length },
      ],
    }),
  }).catch(async (error) => {
    await opened.close()
    throw cannotListen(error, 'admin-port', settings)
  })
  const ready = Promise.withResolvers<string>()
  const restarts: number[] = []
  let isStopping = false
  let hasGivenUp = false
  let waitingFor = settings.workers
  const start = (): Worker => {
    const worker = cluster.fork()
    worker.on('message', (told: Told) => {
      // As if it had happened here: the admin API sees all workers as one gate.
      if (told.oncekey === 'event') channel(told.channel).publish(told.event)
      else if (told.oncekey === 'failed') ready.reject(new Misuse(told.message))
      else if (--waitingFor === 0) ready.resolve(told.url)
    })
    worker.on('exit', (code, signal) => {
      if (isStopping) return
      const now = Date.now()
      restarts.push(now)
      while ((restarts[0] ?? now) < now - 60_000) restarts.shift()
      const why = `worker ${worker.process.pid} ended (${signal ?? code})`
      if (restarts.length > RESTARTS_PER_MINUTE_MAX) {
        console.error(`${why}, the ${restarts.length}th in a minute; giving up.`)
        hasGivenUp = true
        ready.reject(new Misuse('The workers do not stay alive.'))
        process.kill(process.pid, 'SIGTERM')
        return
      }
      console.error(`${why}; another takes its place`)
      start()
    })
    return worker
  }
  try {
    for (let i = 0; i < settings.workers; i++) start()
    sayReady(settings, await ready.promise, admin.url)
    await untilSignal()
    return hasGivenUp ? EXIT_FAILED : 0
  } finally {
    isStopping = true
    await Promise.all(Object.values(cluster.workers ?? {}).map((worker) => worker && ended(worker)))
    await admin.stop()
    await opened.close()
  }
}

function ended(worker: Worker): Promise<void> {
  return new Promise((resolve) => {
    worker.once('exit', () => resolve())
    worker.process.kill('SIGTERM')
  })
}

async function work(settings: Settings): Promise<number> {
  const tell = (told: Told): void => void process.send?.(told)
  const opened = await reach(settings)
  if (opened === undefined) return EXIT_FAILED
  for (const name of CHANNELS)
    subscribe(name, (event) => tell({ oncekey: 'event', channel: name, event: plain(event) }))
  try {
    const gate = await startGate(gateOptions(settings, opened.store))
    tell({ oncekey: 'ready', url: gate.url })
    await untilSignal()
    await gate.stop()
    await opened.close()
    process.disconnect?.()
    return 0
  } catch (error) {
    tell({ oncekey: 'failed', message: (cannotListen(error, 'port', settings) as Error).message })
    return EXIT_FAILED
  }
}

/** Errors do not travel between processes by themselves. */
function plain(event: unknown): object {
  const { error, ...rest } = event as { readonly error?: unknown }
  return error === undefined ? rest : { ...rest, error: error instanceof Error ? error.message : String(error) }
}
