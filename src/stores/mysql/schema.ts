import { OncekeyError } from '../../error.ts'
import type { Table } from '../../sql/table.ts'
import { commentOf, tableFrom, tableMissing, versionFrom } from '../../sql/table.ts'
import { TEXT_BYTES_MAX } from './checks.ts'
import { toOncekeyError } from './faults.ts'
import type { Row, Session } from './sessions.ts'

const NAME_CHARS_MAX = 64

export function tableOf(text: string): Table {
  return tableFrom(text, { home: 'database', charsMax: NAME_CHARS_MAX, quote: (name) => `\`${name}\`` })
}

/**
 * Step n takes the table from version n to n + 1, and says so in the table's comment. A step that was released is never
 * edited: tables out there have run it. Each is one statement, for MySQL commits every change of a table by itself.
 *
 * What is compared is kept as bytes: every collation that both MySQL and MariaDB have takes `a` for `a ` or for `A`.
 * `turn` names the claim or settle that wrote the record last. `sweep_at` is when there is something to free: the answer
 * first, where the record outlives it, and then the record; so one index serves both.
 */
export function migrationsOf(table: Table): readonly string[] {
  return [
    `CREATE TABLE ${table.sql} (
  id          VARBINARY(${TEXT_BYTES_MAX}) NOT NULL PRIMARY KEY,
  token       VARBINARY(${TEXT_BYTES_MAX}) NOT NULL,
  fingerprint VARBINARY(${TEXT_BYTES_MAX}) NOT NULL,
  turn        BINARY(8) NOT NULL,
  attempt     INT UNSIGNED NOT NULL,
  created_at  DATETIME(3) NOT NULL,
  lease_until DATETIME(3) NOT NULL,
  gone_at     DATETIME(3) NOT NULL,
  sweep_at    DATETIME(3) NOT NULL,
  expires_at  DATETIME(3) NULL,
  outcome     VARCHAR(16) CHARACTER SET ascii NULL,
  status      INT NULL,
  labels      MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  headers     MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  body        LONGBLOB NULL,
  KEY sweep_at (sweep_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = '${commentOf(1)}'`,
  ]
}

const databaseOf = ({ home }: Table): string => (home === undefined ? 'DATABASE()' : `'${home}'`)

const lookSql = (table: Table): string => `
  SELECT @@autocommit, @@max_allowed_packet, @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog,
    TABLE_COMMENT, ENGINE
  FROM (SELECT 1 AS one) AS one LEFT JOIN information_schema.TABLES
    ON TABLE_SCHEMA = ${databaseOf(table)} AND TABLE_NAME = '${table.name}'`

const lockName = (table: Table): string =>
  `CONCAT('oncekey ', SHA1(CONCAT(COALESCE(${databaseOf(table)}, ''), '.${table.name}')))`
/** Fifty processes that start at once migrate one after the other. */
const LOCK_WAITS_MAX = 30
const LOCK_WAIT_SECONDS = 1

/** What the server says of itself. Each warning says what would be lost. */
export interface Prepared {
  readonly packetBytesMax: number
  readonly warnings: readonly string[]
}

/** Makes sure that the table is there, and that it is one that this code knows. */
export async function prepareTable(session: Session, table: Table, mayMigrate: boolean): Promise<Prepared> {
  try {
    let found = await look(session, table)
    assertAutocommit(found)
    if (versionOf(found, table) < migrationsOf(table).length) {
      if (!mayMigrate) throw tableMissing(table, found.engine !== undefined, 'mysqlMigrations')
      await migrate(session, table)
      found = await look(session, table)
    }
    return { packetBytesMax: found.packetBytesMax, warnings: warningsOf(found, table) }
  } catch (error) {
    throw toOncekeyError(error, false)
  }
}

interface Found {
  readonly autocommit: string
  readonly packetBytesMax: number
  readonly flushLog: string
  readonly hasBinlog: boolean
  readonly syncBinlog: string
  readonly comment: string
  /** `undefined`: there is no table. */
  readonly engine: string | undefined
}

async function look(session: Session, table: Table): Promise<Found> {
  const [row = []] = await session.rows(lookSql(table))
  const text = (value: Row[number] | undefined): string => value?.toString() ?? ''
  const [autocommit, packet, flushLog, logBin, syncBinlog, comment, engine] = row
  return {
    autocommit: text(autocommit),
    packetBytesMax: Number(text(packet)),
    flushLog: text(flushLog),
    hasBinlog: text(logBin) === '1',
    syncBinlog: text(syncBinlog),
    comment: text(comment),
    engine: engine === null || engine === undefined ? undefined : text(engine),
  }
}

/** The lock is the session's, so it goes with the connection when this process dies. */
async function migrate(session: Session, table: Table): Promise<void> {
  await lock(session, table)
  try {
    // Looked at again: of fifty processes, one migrates.
    const version = versionOf(await look(session, table), table)
    for (const step of migrationsOf(table).slice(version)) await session.write(step)
  } finally {
    await session.rows(`SELECT RELEASE_LOCK(${lockName(table)})`).catch(() => {
      session.isGood = false
    })
  }
}

async function lock(session: Session, table: Table): Promise<void> {
  for (let waits = 0; waits < LOCK_WAITS_MAX; waits++) {
    const [row] = await session.rows(`SELECT GET_LOCK(${lockName(table)}, ${LOCK_WAIT_SECONDS})`)
    if (String(row?.[0]) === '1') return
  }
  throw new OncekeyError(
    'store-unavailable',
    `Another process has been migrating the table ${table.sql} for ${LOCK_WAITS_MAX * LOCK_WAIT_SECONDS} s. Nothing was ` +
      'recorded; try again.',
  )
}

function versionOf({ engine, comment }: Found, table: Table): number {
  return versionFrom(engine === undefined ? undefined : comment, table, migrationsOf(table).length)
}

function assertAutocommit({ autocommit }: Found): void {
  if (autocommit === '1') return
  throw new OncekeyError(
    'config-invalid',
    'autocommit is off on the connections of this pool: what the store writes would not be committed. Nothing was ' +
      'recorded. Leave it on, or give the store a pool of its own.',
  )
}

function warningsOf({ engine, flushLog, hasBinlog, syncBinlog }: Found, table: Table): readonly string[] {
  const warnings: string[] = []
  if (engine !== 'InnoDB') {
    warnings.push(
      `The table ${table.sql} is of the engine ${engine}, which has no transactions: a crash can lose or damage records, ` +
        `and operations can run a second time. Run ALTER TABLE ${table.sql} ENGINE = InnoDB.`,
    )
  }
  if (flushLog !== '1') {
    warnings.push(
      `innodb_flush_log_at_trx_commit is ${flushLog}: when the machine${flushLog === '2' ? '' : ' or MySQL'} crashes, the ` +
        'last second of acknowledged records is lost, and those operations can run a second time. Set it to 1.',
    )
  }
  if (hasBinlog && syncBinlog !== '1') {
    warnings.push(
      `sync_binlog is ${syncBinlog}: after a loss of power the last acknowledged records can be rolled back, and those ` +
        'operations can run a second time. Set it to 1.',
    )
  }
  return warnings
}
