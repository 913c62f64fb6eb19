import { mysqlMigrations } from '../stores/mysql.ts'
import { postgresMigrations } from '../stores/postgres.ts'
import { sqliteMigrations } from '../stores/sqlite.ts'
import { type Command, Misuse, readFlags } from './command.ts'

const MIGRATIONS: Readonly<Record<string, (table?: string) => readonly string[]>> = {
  postgres: postgresMigrations,
  mysql: mysqlMigrations,
  sqlite: sqliteMigrations,
}

export const migrate: Command = {
  name: 'migrate',
  summary: 'print the SQL that makes the table of a store',
  help: `oncekey migrate --print --store postgres|mysql|sqlite [--table NAME]

Prints the SQL that makes the store's table, for those who run migrations themselves
(then give the store the option migrate: false). The stores run it by themselves otherwise.

  oncekey migrate --print --store postgres
  oncekey migrate --print --store postgres --table system.idempotency_keys`,

  async run(args) {
    const { values } = readFlags(args, {
      print: { type: 'boolean' },
      store: { type: 'string' },
      table: { type: 'string' },
    })
    if (!values.print) throw new Misuse('Say --print: the stores run their migrations by themselves.')
    const migrations = MIGRATIONS[values.store ?? '']
    if (!migrations) {
      const stores = Object.keys(MIGRATIONS).join(', ')
      throw new Misuse(`--store is ${JSON.stringify(values.store ?? '')}; give ${stores}.`)
    }
    for (const statement of migrations(values.table)) console.log(`${statement.trim().replace(/;?$/, ';')}\n`)
    return 0
  },
}
