import { parseArgs } from 'node:util'
import { OncekeyError } from '../error.ts'
import { type AuditVerdict, verifyAudit } from '../guards/audit.ts'

export const AUDIT_HELP = `oncekey audit verify FILE [--head HASH] [--json]

Reads an audit log from end to end and names the first line that is not as it was written: changed, removed,
inserted, moved or replaced. Ends with 0 when the chain is intact, with 1 when it is broken.

A chain alone cannot show that its last lines were cut off. Note the head that this prints where the writer of the log
cannot reach it, and give it back with --head some other day: the chain must still contain it.

  oncekey audit verify audit.log
  oncekey audit verify audit.log --head 5f2c… --json
`

const BROKEN_EXIT_CODE = 1

/** What comes after `oncekey audit`. Returns the exit code. */
export async function audit(args: string[]): Promise<number> {
  const { values, positionals } = parseArgs({
    args,
    allowPositionals: true,
    options: { head: { type: 'string' }, json: { type: 'boolean', default: false } },
  })
  const [command, file, ...more] = positionals
  if (command !== 'verify') throw misuse(`There is no command ${JSON.stringify(`audit ${command ?? ''}`.trim())}.`)
  if (file === undefined) throw misuse('Name the audit log: oncekey audit verify FILE.')
  if (more.length > 0) throw misuse(`One log at a time: ${JSON.stringify(more[0])} is too many.`)
  const head = values.head?.toLowerCase()
  if (head !== undefined && !HASH.test(head)) throw misuse('--head must be 64 hex characters, as verify prints them.')
  const verdict = await verify(file, head)
  console.log(values.json ? JSON.stringify({ file, ...verdict }) : inWords(file, verdict))
  return verdict.state === 'intact' ? 0 : BROKEN_EXIT_CODE
}

const HASH = /^[0-9a-f]{64}$/

async function verify(file: string, head: string | undefined): Promise<AuditVerdict> {
  const onProgress = (readBytes: number, totalBytes: number) => {
    console.error(`${file}: ${megabytes(readBytes)} of ${megabytes(totalBytes)} MB`)
  }
  try {
    return await verifyAudit(file, { onProgress, ...(head !== undefined && { head }) })
  } catch (error) {
    if ((error as NodeJS.ErrnoException).syscall === undefined) throw error
    throw misuse(`${file} cannot be read: ${(error as Error).message}.`)
  }
}

function inWords(file: string, verdict: AuditVerdict): string {
  if (verdict.state === 'broken')
    return `${file} is broken at line ${verdict.line} (${verdict.problem}): ${verdict.reason}.`
  const { lines, head, time } = verdict
  return `${file} is intact: ${lines} lines, the last of ${time}.\nhead ${head}`
}

function megabytes(bytes: number): string {
  return (bytes / 1_000_000).toFixed(0)
}

function misuse(message: string): OncekeyError {
  return new OncekeyError('config-invalid', message)
}
