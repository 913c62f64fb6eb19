import { type AuditVerdict, verifyAudit } from '../guards/audit.ts'
import { type Command, EXIT_FAILED, Misuse, readFlags } from './command.ts'

export const audit: Command = {
  name: 'audit',
  summary: 'verify an audit log and name its first broken line',
  help: `oncekey audit verify FILE [--head HASH] [--json]

Reads an audit log from end to end and names the first line that is not as it was written: changed, removed,
inserted, moved or replaced. Ends with 0 when the chain is intact, with 1 when it is broken.

A chain alone cannot show that its last lines were cut off. Note the head that this prints where the writer of the
log cannot reach it, and give it back with --head some other day: the chain must still contain it.

  --head HASH   a head that was noted earlier
  --json        the verdict as one line of JSON

  oncekey audit verify audit.log
  oncekey audit verify audit.log --json | jq .head`,

  async run(args) {
    const { values, positionals } = readFlags(args, { head: { type: 'string' }, json: { type: 'boolean' } })
    const [command, file, ...more] = positionals
    if (command !== 'verify') throw new Misuse(`There is no command ${JSON.stringify(command ?? '')}; say verify.`)
    if (file === undefined) throw new Misuse('Name the audit log: oncekey audit verify FILE.')
    if (more.length > 0) throw new Misuse(`One log at a time: ${JSON.stringify(more[0])} is too many.`)
    const head = values.head?.toLowerCase()
    if (head !== undefined && !HASH.test(head)) {
      throw new Misuse(
        `--head is ${JSON.stringify(values.head)}, but must be 64 hex characters, as verify prints them.`,
      )
    }
    const verdict = await verify(file, head)
    console.log(values.json ? JSON.stringify({ file, ...verdict }) : inWords(file, verdict))
    return verdict.state === 'intact' ? 0 : EXIT_FAILED
  },
}

const HASH = /^[0-9a-f]{64}$/

async function verify(file: string, head: string | undefined): Promise<AuditVerdict> {
  const onProgress = (readBytes: number, totalBytes: number) => {
    console.error(`${megabytes(readBytes)} of ${megabytes(totalBytes)} MB`)
  }
  try {
    return await verifyAudit(file, { onProgress, ...(head !== undefined && { head }) })
  } catch (error) {
    if ((error as NodeJS.ErrnoException).syscall === undefined) throw error
    throw new Misuse(`${file} cannot be read: ${(error as Error).message}.`)
  }
}

function inWords(file: string, verdict: AuditVerdict): string {
  if (verdict.state === 'broken') {
    return `${file} is broken at line ${verdict.line} (${verdict.problem}): ${verdict.reason}.`
  }
  return `${file} is intact: ${verdict.lines} lines, the last of ${verdict.time}.\nhead ${verdict.head}`
}

function megabytes(bytes: number): number {
  return Math.round(bytes / 1_000_000)
}
