import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import { onTestFinished } from 'vitest'

/** A way to the server on which the connection breaks once the word was sent, before its reply comes back. */
export async function losingReplyTo(word: string, url: string): Promise<string> {
  const sockets: Socket[] = []
  const proxy = createServer((client) => {
    const server = connect(Number(new URL(url).port), '127.0.0.1')
    sockets.push(client, server)
    let isLost = false
    client.on('data', (chunk: Buffer) => {
      isLost ||= chunk.includes(word)
      server.write(chunk)
    })
    server.on('data', (chunk) => {
      if (isLost) client.destroy()
      else client.write(chunk)
    })
    for (const socket of [client, server]) {
      socket.on('error', () => {})
      socket.on('close', () => (socket === client ? server : client).destroy())
    }
  }).listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy()
    proxy.close()
  })
  const address = proxy.address()
  const through = new URL(url)
  through.port = String(typeof address === 'object' ? address?.port : '')
  return through.href
}
