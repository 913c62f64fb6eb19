/** One worker of a gate on SQLite: `UPSTREAM`, `DATABASE`. `BROKEN`: it ends before it is ready. `LATE`: it never is. */
import { startGate } from '../../src/gate/gate.ts'
import { workerReady, workerStarts } from '../../src/gate/workers.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'

const { UPSTREAM = '', DATABASE = '', BROKEN, LATE } = process.env
if (BROKEN) process.exit(3)
workerStarts()
if (LATE) {
  process.send?.('started')
  await new Promise(() => {})
}
const store = sqliteStore({ path: DATABASE })
const gate = await startGate({ upstream: UPSTREAM, store, port: 0, principal: 'public' })
workerReady(gate, () => store.close())
