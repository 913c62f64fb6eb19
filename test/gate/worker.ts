/** One worker of a gate on SQLite: `UPSTREAM`, `DATABASE`. With `BROKEN` it ends before it is ready. */
import { startGate } from '../../src/gate/gate.ts'
import { workerReady } from '../../src/gate/workers.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'

const { UPSTREAM = '', DATABASE = '', BROKEN } = process.env
if (BROKEN) process.exit(3)
const store = sqliteStore({ path: DATABASE })
const gate = await startGate({ upstream: UPSTREAM, store, port: 0, principal: 'public' })
workerReady(gate, () => store.close())
