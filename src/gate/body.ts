import type { Exchange } from './exchange.ts'

export type ReadEnd = 'whole' | 'too-large' | 'no-room' | 'gone'

/**
 * Reads the whole body of a protected request into `exchange.body`. Its bytes are taken from the gate's budget: all at
 * once where the length is announced, else as they come.
 */
export function readBody(exchange: Exchange, bytesMax: number, done: (end: ReadEnd) => void): void {
  const { incoming } = exchange
  const announced = incoming.headers['content-length']
  const length = announced === undefined ? undefined : Number(announced)
  if (length !== undefined) {
    if (length > bytesMax) return done('too-large')
    if (!exchange.take(length)) return done('no-room')
  }
  exchange.receivingSinceMs = performance.now()
  const chunks: Buffer[] = []
  let bytes = 0
  const finish = (end: ReadEnd): void => {
    if (exchange.receivingSinceMs === undefined) return
    exchange.receivingSinceMs = undefined
    incoming.off('data', onData)
    if (end === 'whole') exchange.body = chunks.length === 1 && chunks[0] ? chunks[0] : Buffer.concat(chunks, bytes)
    done(end)
  }
  const onData = (chunk: Buffer): void => {
    bytes += chunk.length
    if (bytes > bytesMax) return finish('too-large')
    if (length === undefined && !exchange.take(chunk.length)) return finish('no-room')
    chunks.push(chunk)
  }
  incoming.on('data', onData)
  incoming.on('end', () => finish('whole'))
  exchange.clientGone = () => finish('gone')
}
