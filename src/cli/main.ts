#!/usr/bin/env node
/** The command line. So far it has one command; `--help` lists what there is. */
import { parseArgs } from 'node:util'
import { OncekeyError } from '../error.ts'
import { mysqlMigrations } from '../stores/mysql.ts'
import { postgresMigrations } from '../stores/postgres.ts'
import { sqliteMigrations } from '../stores/sqlite.ts'

const HELP = `oncekey migrate --print --store postgres|mysql|sqlite [--table NAME]

Prints the SQL that makes the store's table, for those who run migrations themselves
(then give the store the option migrate: false). The stores run it by themselves otherwise.

  oncekey migrate --print --store postgres
  oncekey migrate --print --store postgres --table system.idempotency_keys
`

const USAGE_EXIT_CODE = 2

const MIGRATIONS: Readonly<Record<string, (table?: string) => readonly string[]>> = {
  postgres: postgresMigrations,
  mysql: mysqlMigrations,
  sqlite: sqliteMigrations,
}

try {
  run(process.argv.slice(2))
} catch (error) {
  if (!(error instanceof OncekeyError) && !(error instanceof TypeError)) throw error
  console.error(`${error.message}\n\n${HELP}`)
  process.exitCode = USAGE_EXIT_CODE
}

function run(args: string[]): void {
  const { values, positionals } = parseArgs({
    args,
    allowPositionals: true,
    options: {
      print: { type: 'boolean', default: false },
      store: { type: 'string' },
      table: { type: 'string' },
      help: { type: 'boolean', short: 'h', default: false },
    },
  })
  if (values.help) return console.log(HELP)
  if (positionals[0] !== 'migrate') throw misuse(`There is no command ${JSON.stringify(positionals[0] ?? '')}.`)
  if (!values.print) throw misuse('Say --print: the stores run their migrations by themselves.')
  const migrations = MIGRATIONS[values.store ?? '']
  if (!migrations)
    throw misuse(`--store is ${JSON.stringify(values.store ?? '')}; give ${Object.keys(MIGRATIONS).join(', ')}.`)
  for (const statement of migrations(values.table)) console.log(`${statement.trim().replace(/;?$/, ';')}\n`)
}

function misuse(message: string): OncekeyError {
  return new OncekeyError('config-invalid', message)
}
