import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join, resolve } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { connect, tempFile } from '../../../test/support/sqlite.ts'
import { oncekey } from '../../oncekey.ts'
import { sqliteStore } from '../sqlite.ts'

const FIXTURE = resolve(import.meta.dirname, '../../../test/fixtures/sqlite-transaction.ts')
const order = { key: 'order-1', scope: 'tenant-1', payload: { amount: 5 } }

function openShop() {
  const path = tempFile()
  const db = connect(path)
  db.exec('CREATE TABLE charge (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL)')
  const store = sqliteStore({ path, sweepEveryMs: 0 })
  onTestFinished(() => store.close())
  const charges = () => Number(db.prepare('SELECT count(*) AS n FROM charge').get()?.n)
  return { path, db, store, once: oncekey({ store }), charges }
}

describe('X3: once.transaction on SQLite', () => {
  it('commits the record and the application’s rows together, and replays', async () => {
    const { once, charges, db } = openShop()
    const charge = () =>
      once.transaction(order, (tx) => {
        const { lastInsertRowid } = tx.prepare('INSERT INTO charge (amount) VALUES (?)').run(5)
        return { id: Number(lastInsertRowid) }
      })
    expect(await charge()).toEqual({ id: 1 })
    expect(await charge()).toEqual({ id: 1 })
    expect(charges()).toBe(1)
    expect(db.prepare('SELECT state FROM oncekey_operation').all()).toEqual([{ state: 'settled' }])
  })

  it('leaves nothing of either when the handler throws, and runs again', async () => {
    const { once, charges, db } = openShop()
    const declined = new Error('declined')
    await expect(
      once.transaction(order, (tx) => {
        tx.exec('INSERT INTO charge (amount) VALUES (5)')
        throw declined
      }),
    ).rejects.toBe(declined)
    expect(charges()).toBe(0)
    expect(db.prepare('SELECT * FROM oncekey_operation').all()).toEqual([])
    await once.transaction(order, (tx) => tx.exec('INSERT INTO charge (amount) VALUES (5)'))
    expect(charges()).toBe(1)
  })

  it('a concurrent duplicate waits for the commit, and gets its value', async () => {
    const { once, charges } = openShop()
    const gate = Promise.withResolvers<void>()
    const first = once.transaction(order, async (tx) => {
      tx.exec('INSERT INTO charge (amount) VALUES (5)')
      await gate.promise
      return 'first'
    })
    const others = Array.from({ length: 10 }, () => once.transaction(order, () => 'never'))
    gate.resolve()
    expect(await first).toBe('first')
    expect(await Promise.all(others)).toEqual(Array(10).fill('first'))
    expect(charges()).toBe(1)
  })

  it('shares its records with once.run, which does not take part in the transaction', async () => {
    const { once } = openShop()
    await once.run(order, () => 'ran')
    expect(await once.transaction(order, () => 'never')).toBe('ran')
    const conflict = once.transaction({ ...order, payload: 6 }, () => 'never')
    await expect(conflict).rejects.toMatchObject({ code: 'key-conflict' })
  })

  it('a private database is refused with a text that says why', async () => {
    const store = sqliteStore({ path: ':memory:' })
    onTestFinished(() => store.close())
    const refused = oncekey({ store }).transaction(order, () => 'never')
    await expect(refused).rejects.toMatchObject({ code: 'config-invalid' })
  })

  it('many processes, killed at random moments: each order has exactly one charge in the end', async () => {
    const { path, db, once } = openShop()
    const orders = 5
    for (let round = 0; round < 3; round++) {
      const doomed = Array.from({ length: 4 }, () => startProcess(path, orders))
      // The first line says that it works; from then on any moment is as good as another.
      await Promise.all(doomed.map(({ working }) => working))
      await Promise.all(doomed.map(({ kill }) => kill()))
    }
    for (let n = 0; n < orders; n++) {
      await once.transaction({ key: `order-${n}`, scope: 'race' }, (tx) => {
        tx.prepare('INSERT INTO charge (amount) VALUES (?)').run(n)
      })
    }
    const perOrder = db.prepare('SELECT amount, count(*) AS n FROM charge GROUP BY amount ORDER BY amount').all()
    expect(perOrder).toEqual(Array.from({ length: orders }, (_, amount) => ({ amount, n: 1 })))
  })
})

function startProcess(path: string, orders: number) {
  const child = spawn(process.execPath, [join(FIXTURE), path, String(orders)], { stdio: ['ignore', 'pipe', 'inherit'] })
  const exited = once(child, 'exit')
  return {
    working: once(child.stdout, 'data'),
    async kill() {
      child.kill('SIGKILL')
      await exited
    },
  }
}
