import { bodyBytesOf, scan } from '../admin/scan.ts'
import { type Command, readFlags } from './command.ts'
import { STORE_FLAGS, STORE_HELP, table, withStore } from './records.ts'

/** Says how far it is, every so many. */
const TOLD_EVERY = 1_000

export const stats: Command = {
  name: 'stats',
  summary: 'count the records of a store by state, route and status',
  help: `oncekey stats

Walks through all records, page by page, and counts them.

${STORE_HELP}`,

  async run(args) {
    const { values } = readFlags(args, STORE_FLAGS)
    return withStore(values, async (_, store) => {
      const [states, routes, statuses] = [
        new Map<string, number>(),
        new Map<string, number>(),
        new Map<string, number>(),
      ]
      let [records, bytes] = [0, 0]
      await scan(store, {}, (record) => {
        records += 1
        bytes += bodyBytesOf(record)
        count(states, record.state)
        if (record.labels.route !== undefined) count(routes, `${record.labels.method ?? ''} ${record.labels.route}`)
        if (record.state === 'settled') count(statuses, String(record.answer.status))
        if (records % TOLD_EVERY === 0) process.stderr.write(`\r${records} records`)
        return true
      })
      if (records >= TOLD_EVERY) process.stderr.write('\n')
      if (values.json) {
        const [byState, byRoute, byStatus] = [states, routes, statuses].map((map) => Object.fromEntries(map))
        console.log(
          JSON.stringify({ store: store.name, records, bodyBytes: bytes, byState, byRoute, byStatus }, null, 2),
        )
        return 0
      }
      console.log(`${records} records in ${store.name}, ${bytes} bytes of answers`)
      for (const [title, map] of [
        ['state', states],
        ['status', statuses],
        ['route', routes],
      ] as const) {
        const rows = [...map].sort(([, a], [, b]) => b - a).map(([name, many]) => [name, String(many)])
        if (rows.length > 0) console.log(`\n${table([[title, 'records'], ...rows])}`)
      }
      return 0
    })
  },
}

function count(map: Map<string, number>, name: string): void {
  map.set(name, (map.get(name) ?? 0) + 1)
}
