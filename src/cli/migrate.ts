import { PROBE_ID } from '../store-checks.ts'
import { mysqlMigrations } from '../stores/mysql.ts'
import { postgresMigrations } from '../stores/postgres.ts'
import { sqliteMigrations } from '../stores/sqlite.ts'
import { type Command, Misuse, readFlags } from './command.ts'
import { reached } from './records.ts'

const MIGRATIONS: Readonly<Record<string, (table?: string) => readonly string[]>> = {
  postgres: postgresMigrations,
  mysql: mysqlMigrations,
  sqlite: sqliteMigrations,
}

export const migrate: Command = {
  name: 'migrate',
  summary: 'bring a store to the schema of this version, or print the SQL that does it',
  help: `oncekey migrate --store ADDRESS
oncekey migrate --print --store postgres|mysql|sqlite [--table NAME]

The stores bring their own tables and indexes to the schema of this version when they are first used; this does it now,
before a service is started. A schema that is newer than this version is refused, and left as it is.

With --print it prints the SQL instead, for those who run migrations themselves
(then give the store the option migrate: false).

  oncekey migrate --store postgres://localhost/shop
  oncekey migrate --print --store postgres
  oncekey migrate --print --store postgres --table system.idempotency_keys`,

  async run(args) {
    const { values } = readFlags(args, {
      print: { type: 'boolean' },
      store: { type: 'string' },
      table: { type: 'string' },
    })
    if (!values.print) return migrateNow(values.store ?? '')
    const migrations = MIGRATIONS[values.store ?? '']
    if (!migrations) {
      const stores = Object.keys(MIGRATIONS).join(', ')
      throw new Misuse(`--store is ${JSON.stringify(values.store ?? '')}; give ${stores}.`)
    }
    for (const statement of migrations(values.table)) console.log(`${statement.trim().replace(/;?$/, ';')}\n`)
    return 0
  },
}

async function migrateNow(address: string): Promise<number> {
  if (!address.includes(':')) {
    throw new Misuse(
      `--store is ${JSON.stringify(address)}; give the address of the store, such as sqlite:once.db, or say --print.`,
    )
  }
  const opened = await reached(address, false)
  try {
    // Enough to make a store look at its schema.
    await opened.store.read(PROBE_ID)
    console.log(`${opened.shown} has the schema of this version.`)
    return 0
  } finally {
    await opened.close()
  }
}
