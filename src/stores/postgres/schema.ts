import type { Table } from '../../sql/table.ts'
import { commentOf, tableFrom, tableMissing, versionFrom } from '../../sql/table.ts'
import { toOncekeyError } from './faults.ts'
import type { Session } from './sessions.ts'

/** PostgreSQL cuts longer names off; room is left for the names of the indexes. */
const NAME_CHARS_MAX = 48

export function tableOf(text: string): Table {
  return tableFrom(text, { home: 'schema', charsMax: NAME_CHARS_MAX, quote: quoted })
}

const quoted = (name: string): string => `"${name}"`

/**
 * Step n takes the table from version n to n + 1, and says so in the table's comment. A step that was released is never
 * edited: tables out there have run it.
 *
 * A settle gives the row a new version. It costs half as much when no index has to learn of that one: when it finds room
 * on its page, which fillfactor leaves, and when it changes no column of an index. Hence `sweep_at`, the time when the
 * sweeper looks at the record, and the only time with an index: a settle leaves it alone where it is good enough.
 *
 * `awaited` says that somebody, somewhere, waits for the end of this operation: only then is the end announced, for
 * announcements make commits queue up.
 */
export function migrationsOf(table: Table): readonly string[] {
  const { sql, home, name } = table
  const makeSchema = `DO $$ BEGIN
  IF to_regnamespace('${quoted(home ?? '')}') IS NULL THEN CREATE SCHEMA ${quoted(home ?? '')}; END IF;
END $$;
`
  return [
    `${home === undefined ? '' : makeSchema}CREATE TABLE ${sql} (
  id          text COLLATE "C" PRIMARY KEY,
  token       text NOT NULL,
  fingerprint text NOT NULL,
  attempt     integer NOT NULL,
  created_at  timestamptz NOT NULL,
  lease_until timestamptz NOT NULL,
  gone_at     timestamptz NOT NULL,
  sweep_at    timestamptz NOT NULL,
  expires_at  timestamptz,
  outcome     text,
  status      integer,
  awaited     boolean NOT NULL DEFAULT false,
  labels      json,
  headers     json,
  body        bytea
) WITH (fillfactor = 45);
CREATE INDEX ${quoted(`${name}_sweep_at`)} ON ${sql} (sweep_at);
COMMENT ON TABLE ${sql} IS '${commentOf(1)}';
`,
  ]
}

const LOOK = `
  SELECT c.oid, obj_description(c.oid, 'pg_class'), c.relpersistence,
    current_setting('synchronous_commit'), current_setting('fsync'), current_setting('full_page_writes')
  FROM (SELECT to_regclass($1) AS oid) AS named LEFT JOIN pg_class AS c ON c.oid = named.oid`

/** Held until the transaction's end, and so also behind a proxy that changes connections between transactions. */
const LOCK = 'SELECT pg_advisory_xact_lock(7308906, 1)'
/** Fifty processes that start at once migrate one after the other. */
const LOCK_MS_MAX = 30_000

/**
 * Makes sure that the table is there, and that it is one that this code knows. Returns what the user should be told of
 * the server's settings: each line says what would be lost.
 */
export async function prepareTable(session: Session, table: Table, mayMigrate: boolean): Promise<readonly string[]> {
  try {
    const look = async () => (await session.send(LOOK, [table.sql]))[0] ?? []
    let found = await look()
    if (versionOf(found[0], found[1], table) < migrationsOf(table).length) {
      if (!mayMigrate) throw tableMissing(table, found[0] !== null, 'postgresMigrations')
      await migrate(session, table)
      found = await look()
    }
    return warningsOf(found.slice(2), table)
  } catch (error) {
    throw toOncekeyError(error, false)
  }
}

async function migrate(session: Session, table: Table): Promise<void> {
  await session.send(`BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = ${LOCK_MS_MAX}`)
  try {
    await session.send(LOCK)
    // Looked at again: of fifty processes, one migrates.
    const [oid, comment] = (await session.send(LOOK, [table.sql]))[0] ?? []
    for (const step of migrationsOf(table).slice(versionOf(oid, comment, table))) await session.send(step)
    await session.send('COMMIT')
  } catch (error) {
    await session.rollBack()
    throw error
  }
}

function versionOf(oid: string | null | undefined, comment: string | null | undefined, table: Table): number {
  const isThere = oid !== null && oid !== undefined
  return versionFrom(isThere ? (comment ?? '') : undefined, table, migrationsOf(table).length)
}

function warningsOf(settings: ReadonlyArray<string | null>, table: Table): readonly string[] {
  const [persistence, synchronousCommit, fsync, fullPageWrites] = settings
  const warnings: string[] = []
  if (persistence === 'u') {
    warnings.push(
      `The table ${table.sql} is UNLOGGED: after a crash of PostgreSQL it is empty, and every operation can run a second ` +
        `time. Run ALTER TABLE ${table.sql} SET LOGGED.`,
    )
  }
  if (synchronousCommit === 'off') {
    warnings.push(
      'synchronous_commit is off: when PostgreSQL crashes, the last moments of acknowledged records are lost, and those ' +
        'operations can run a second time. Set it to on, at least for the user of this pool.',
    )
  }
  for (const [name, value] of Object.entries({ fsync, full_page_writes: fullPageWrites })) {
    if (value !== 'off') continue
    warnings.push(
      `${name} is off: a loss of power can lose or damage any record, and operations can run a second time. Turn it on.`,
    )
  }
  return warnings
}
