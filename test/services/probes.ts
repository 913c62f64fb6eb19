import { once } from 'node:events'
import { connect } from 'node:net'

/** Sends a few bytes and waits for an answer that fits: enough to know that a server really serves. */
export async function expectReply(port: number, send: Uint8Array | string, pattern: RegExp): Promise<void> {
  const socket = connect(port, '127.0.0.1')
  try {
    await once(socket, 'connect')
    if (send.length > 0) socket.write(send)
    const [reply] = (await Promise.race([once(socket, 'data'), timeout()])) as [Buffer]
    if (!pattern.test(reply.toString('latin1'))) throw new Error('an unexpected reply')
  } finally {
    socket.destroy()
  }
}

function timeout(): Promise<never> {
  return new Promise((_resolve, reject) => setTimeout(reject, PROBE_MS_MAX, new Error('no reply')))
}

const PROBE_MS_MAX = 2_000
