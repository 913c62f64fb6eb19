/** Two data centres on this machine: in each a gate and a manager, as processes of their own, and NATS between them. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { connect as connectSocket, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { jetstream } from '@nats-io/jetstream'
import { Kvm } from '@nats-io/kv'
import { connect } from '@nats-io/transport-node'
import { jobsFromEnvironment } from '../../src/contracts/index.ts'
import { freePort } from '../../test/services/index.ts'
import { BUCKET, LEDGER_FILE } from './process.ts'

export interface Centre {
  readonly name: string
  readonly gate: Instance
  readonly manager: Instance
  /** Its way to NATS. */
  readonly link: Link
  /** The manager's SQLite file. */
  readonly ledgerPath: string
}

/** A process at a fixed address. */
export interface Instance {
  readonly url: string
  /** SIGKILL. */
  kill(): Promise<void>
  /** Starts it again, on what it has left on the disk. */
  start(): Promise<void>
}

/** A connection that can be cut and healed. */
export interface Link {
  readonly port: number
  cut(): void
  heal(): void
  close(): void
}

export interface Centres {
  readonly centres: readonly [Centre, Centre]
  stop(): Promise<void>
}

export interface CentresOptions {
  readonly natsUrl: string
  readonly env: Readonly<Record<string, string | undefined>>
  /** The port of the first gate; 0 for any. */
  readonly port?: number
  /** For tests of crashes: see process.ts. */
  readonly slowLedgerMs?: number
}

export async function startCentres({ natsUrl, env, port = 0, slowLedgerMs = 0 }: CentresOptions): Promise<Centres> {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-jobs-'))
  const undo: Array<() => unknown> = [() => rmSync(folder, { recursive: true, force: true })]
  const stop = async () => {
    for (const end of undo.reverse()) await end()
  }
  try {
    await makeBucket(natsUrl, env)
    const managerPorts = [await freePort(), await freePort()]
    const centres = await Promise.all(
      [0, 1].map(async (number): Promise<Centre> => {
        const name = `dc${number + 1}`
        const link = await openLink(natsUrl)
        undo.push(() => link.close())
        const data = join(folder, name)
        const managerUrl = `http://127.0.0.1:${managerPorts[number]}`
        const peer = `http://127.0.0.1:${managerPorts[1 - number]}`
        const gatePort = number === 0 && port !== 0 ? port : await freePort()
        const options = {
          name,
          data,
          nats: `nats://127.0.0.1:${link.port}`,
          peer,
          'slow-ledger-ms': String(slowLedgerMs),
        }
        const manager = launch('manager', { ...options, port: String(managerPorts[number]) }, env)
        const gate = launch('gate', { name, manager: managerUrl, port: String(gatePort) }, env)
        undo.push(manager.kill, gate.kill)
        await Promise.all([manager.start(), gate.start()])
        return { name, gate, manager, link, ledgerPath: join(data, LEDGER_FILE) }
      }),
    )
    return { centres: centres as [Centre, Centre], stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/** An operator's step: the bucket forgets nothing that a record still needs. */
async function makeBucket(natsUrl: string, env: CentresOptions['env']): Promise<void> {
  const { lease, ttl } = jobsFromEnvironment(env).contract
  const connection = await connect({ servers: natsUrl })
  const longestMs = lease.ms + Math.max(ttl.committedMs, ttl.rejectedMs, ttl.unknownMs)
  await new Kvm(jetstream(connection)).create(BUCKET, { ttl: 2 * longestMs + HOUR_MS })
  await connection.close()
}

const HOUR_MS = 3_600_000

function launch(role: 'gate' | 'manager', options: Record<string, string>, env: CentresOptions['env']): Instance {
  const script = join(import.meta.dirname, 'process.ts')
  const flags = Object.entries(options).flatMap(([name, value]) => [`--${name}`, value])
  const args = ['--disable-warning=ExperimentalWarning', script, role, ...flags]
  let child: ChildProcess | undefined
  return {
    url: `http://127.0.0.1:${options.port}`,
    async start() {
      const started = spawn(process.execPath, args, {
        stdio: ['pipe', 'pipe', 'inherit'],
        env: { ...process.env, ...env },
      })
      child = started
      const lines = createInterface({ input: started.stdout })
      const ended = once(started, 'exit').then(([code, signal]) => {
        throw new Error(`The ${role} of ${options.name} ended before it listened: ${code ?? signal}`)
      })
      await Promise.race([once(lines, 'line'), ended])
      ended.catch(() => {})
    },
    async kill() {
      if (!child || child.exitCode !== null || child.signalCode !== null) return
      const gone = once(child, 'exit')
      child.kill('SIGKILL')
      await gone
    },
  }
}

async function openLink(natsUrl: string): Promise<Link> {
  const target = new URL(natsUrl)
  const sockets = new Set<Socket>()
  let isCut = false
  const server = createServer((near) => {
    if (isCut) return void near.destroy()
    const far = connectSocket(Number(target.port), target.hostname)
    near.pipe(far)
    far.pipe(near)
    for (const [one, other] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(one)
      one.on('error', () => {})
      one.once('close', () => {
        sockets.delete(one)
        other.destroy()
      })
    }
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const drop = () => {
    for (const socket of sockets) socket.destroy()
  }
  return {
    port: (server.address() as { port: number }).port,
    cut() {
      isCut = true
      drop()
    },
    heal() {
      isCut = false
    },
    close() {
      server.close()
      drop()
    },
  }
}
