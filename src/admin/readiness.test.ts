import { once } from 'node:events'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { expect, it, onTestFinished } from 'vitest'
import type { StoredRecord } from '../store.ts'
import { memoryStore } from '../stores/memory.ts'
import { startAdmin } from './server.ts'

it('asks the store once for all who want to know at the same time whether it answers', async () => {
  const store = memoryStore()
  const read = store.read.bind(store)
  let asked = 0
  const slow = Object.assign(store, {
    async read(id: string): Promise<StoredRecord | undefined> {
      asked++
      // Until everything that came with the first question has been looked at.
      await new Promise((resolve) => setImmediate(resolve))
      return read(id)
    },
  })
  const admin = await startAdmin({ store: slow, version: '1', port: 0 })
  onTestFinished(() => admin.stop())
  const socket = connect(Number(new URL(admin.url).port), '127.0.0.1')
  await once(socket, 'connect')
  const request = (connection: string) => `GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: ${connection}\r\n\r\n`
  socket.write(request('keep-alive').repeat(4) + request('close'))
  expect((await text(socket)).match(/^HTTP\/1\.1 200 OK/gm)).toHaveLength(5)
  expect(asked).toBe(1)
})
