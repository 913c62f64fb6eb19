import type { IncomingMessage } from 'node:http'

/**
 * Reads the whole body and puts it back, so that whoever reads the request next finds it as it came.
 * `undefined`: it is larger than `bytesMax`. Rejects when the client goes away before the end.
 */
export function readNodeBody(incoming: IncomingMessage, bytesMax: number): Promise<Buffer | undefined> {
  if (Number(incoming.headers['content-length'] ?? 0) > bytesMax) return Promise.resolve(undefined)
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    let bytes = 0
    const stop = () => {
      incoming.off('readable', onReadable)
      incoming.off('error', onGone)
      incoming.off('close', onGone)
    }
    const onGone = (error?: Error) => {
      stop()
      const gone = error ?? new Error('The client went away before it had sent the whole request.')
      // No failure of the server, for those who count them.
      reject(Object.assign(gone, { status: 400, statusCode: 400 }))
    }
    const onReadable = () => {
      // Never read past the last byte: that would let the stream emit its end, after which nothing can be put back.
      while (incoming.readableLength > 0) {
        const chunk: Buffer | string | null = incoming.read()
        if (chunk === null) break
        const buffer = typeof chunk === 'string' ? Buffer.from(chunk, incoming.readableEncoding ?? 'utf8') : chunk
        bytes += buffer.length
        if (bytes > bytesMax) {
          stop()
          return resolve(undefined)
        }
        chunks.push(buffer)
      }
      if (!incoming.complete || incoming.readableLength > 0) return
      stop()
      const body = chunks.length === 1 && chunks[0] ? chunks[0] : Buffer.concat(chunks)
      if (body.length > 0) incoming.unshift(body)
      resolve(body)
    }
    incoming.on('readable', onReadable)
    incoming.on('error', onGone)
    incoming.on('close', onGone)
    if (incoming.readableLength > 0 || incoming.complete) onReadable()
  })
}

export function announcesBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0'
}
