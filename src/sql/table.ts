import { OncekeyError } from '../error.ts'

/** A table as the user names it, as SQL writes it, and what stands before its name when that was given. */
export interface Table {
  readonly sql: string
  /** Of PostgreSQL the schema, of MySQL the database. */
  readonly home: string | undefined
  readonly name: string
}

export interface NameRules {
  /** What stands before the dot: `schema` or `database`. */
  readonly home: string
  readonly charsMax: number
  readonly quote: (name: string) => string
}

const NAME = /^[A-Za-z_][A-Za-z0-9_$]*$/

/** `records` or `home.records`. Taken as written: quoted, so that upper case stays upper case. */
export function tableFrom(text: string, { home: homeWord, charsMax, quote }: NameRules): Table {
  const parts = text.split('.')
  if (parts.length > 2 || parts.some((part) => !NAME.test(part) || part.length > charsMax)) {
    throw new OncekeyError(
      'config-invalid',
      `table is ${JSON.stringify(text)}; it must be a name or ${homeWord}.name of letters, digits and _, each of ` +
        `${charsMax} characters at most.`,
    )
  }
  const [name = '', home] = parts.toReversed()
  return { sql: parts.map(quote).join('.'), home, name }
}

/** The table's comment says which version of the schema it is. */
export const commentOf = (version: number): string => `oncekey schema ${version}`
const COMMENT = /^oncekey schema (\d+)$/

/** 0: there is no table, and so no comment. Refuses a table that is not ours, or newer than this code. */
export function versionFrom(comment: string | undefined, table: Table, newest: number): number {
  if (comment === undefined) return 0
  const version = Number(COMMENT.exec(comment)?.[1] ?? Number.NaN)
  if (Number.isNaN(version)) {
    throw new OncekeyError(
      'store-incompatible',
      `The table ${table.sql} is not oncekey's: its comment does not say so. It was left as it is; give another name ` +
        'by the option "table".',
    )
  }
  if (version > newest) {
    throw new OncekeyError(
      'store-incompatible',
      `The table ${table.sql} was made by a newer oncekey (schema ${version}; this one knows up to ${newest}). It was ` +
        'left as it is; update oncekey in this process too.',
    )
  }
  return version
}

export function tableMissing(table: Table, isThere: boolean, migrations: string): OncekeyError {
  return new OncekeyError(
    'store-unavailable',
    `The table ${table.sql} is ${isThere ? 'of an older schema' : 'missing'}, and migrate is false. Nothing was ` +
      `recorded. Run the SQL that ${migrations}() gives, and go on; no restart of this process is needed.`,
  )
}
