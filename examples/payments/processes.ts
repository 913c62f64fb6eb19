/** What can go wrong around the daemon, for the tour and the tests: processes that are killed, a network that loses answers. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { resolve } from 'node:path'
import { createInterface } from 'node:readline'
import { TOKENS } from './daemon.ts'
import { PAYMENTS_PATH } from './service.ts'

const RUN = resolve(import.meta.dirname, '../run.ts')

export interface DaemonProcess {
  readonly url: string
  readonly exited: Promise<unknown>
  kill(signal: 'SIGKILL' | 'SIGTERM'): Promise<void>
}

/** `npm run example payments`, as a process of its own. */
export async function spawnDaemon(
  env: Readonly<Record<string, string>>,
  nodeOptions: readonly string[] = [],
): Promise<DaemonProcess> {
  const child = spawn(process.execPath, [...nodeOptions, RUN, 'payments', '--port', '0'], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const exited = once(child, 'exit')
  const lines = createInterface({ input: child.stdout })
  const url = await new Promise<string>((found, failed) => {
    lines.on('line', (line) => line.startsWith('http://') && found(line))
    lines.on('close', () => failed(new Error('The daemon ended before it listened.')))
  })
  return {
    url,
    exited,
    async kill(signal) {
      child.kill(signal)
      await exited
    },
  }
}

/**
 * A client in a process of its own, which prints the answer's status and body on one line. One that `dies` is killed by
 * itself as soon as its request is on the way, and never sees an answer.
 */
export function spawnClient(url: string, key: string, body: string, dies = false): ChildProcess {
  const script = `
    import { request } from 'node:http'
    const [url, key, body, token] = process.argv.slice(1)
    const headers = { authorization: 'Bearer ' + token, 'idempotency-key': key, 'content-type': 'application/json' }
    const asked = request(url, { method: 'POST', headers }, async (answer) => {
      const chunks = []
      for await (const chunk of answer) chunks.push(chunk)
      console.log(answer.statusCode + ' ' + Buffer.concat(chunks))
      process.exit()
    })
    asked.end(body, () => { if (${dies}) process.kill(process.pid, 'SIGKILL') })`
  const args = ['--input-type=module', '-e', script, '--', `${url}${PAYMENTS_PATH}`, key, body, TOKENS.anna]
  return spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
}

export interface Network {
  readonly url: string
  /** `loses-answers`: requests arrive, and the connection breaks before the first byte comes back. */
  state: 'whole' | 'loses-requests' | 'loses-answers'
  close(): Promise<void>
}

/** The way to a server, which can be cut: a TCP proxy on the loopback. */
export async function networkTo(url: string): Promise<Network> {
  const port = Number(new URL(url).port)
  const open = new Set<Socket>()
  const server = createServer((near) => {
    const far = connect(port, '127.0.0.1')
    const cut = () => {
      near.destroy()
      far.destroy()
    }
    for (const socket of [near, far]) {
      open.add(socket)
      socket.on('error', cut).on('close', () => open.delete(socket))
    }
    near.on('data', (bytes) => (network.state === 'loses-requests' ? cut() : far.write(bytes)))
    far.on('data', (bytes) => (network.state === 'loses-answers' ? cut() : near.write(bytes)))
    near.on('end', () => far.end())
    far.on('end', () => near.end())
  })
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening))
  const network: Network = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    state: 'whole',
    async close() {
      for (const socket of open) socket.destroy()
      await new Promise((closed) => server.close(closed))
    },
  }
  return network
}
