import { isSuccess, replayMark, sameContent, shown } from '../answers.ts'
import { fail, pass, warn } from '../finding.ts'
import type { Case } from '../session.ts'

const reads: Case = {
  id: 'reads.untouched',
  title: 'Reads with a used key are not answered from the record',
  sent: 'A request, then GET and HEAD of the same address with its key.',
  basis: 'RFC 9110 9.2.2: reads are idempotent by themselves; for information',
  requestsMax: 3,
  async run(session) {
    const operation = session.operation()
    const first = await session.first(operation)
    const changes = { payload: undefined }
    const get = await session.send(operation, { ...changes, method: 'GET' })
    const head = await session.send(operation, { ...changes, method: 'HEAD' })
    const came = `GET ${shown(get)}; HEAD ${head.status}.`
    const mark = replayMark(get) ?? replayMark(head)
    if (mark !== undefined || (first.body.length > 0 && isSuccess(get) && sameContent(first, get))) {
      const meaning = `A read got the recorded answer of the write${mark ? ` (${mark})` : ''}: clients read stale data.`
      return fail(came, meaning, 'Cover only the methods that write.')
    }
    if (get.status >= 500 || head.status >= 500) {
      return warn(came, 'Reads of this address fail.', 'Answer 404 or 405 where there is nothing to read.')
    }
    return pass(came, 'Reads are not touched by the key.')
  },
}

export const readCases: readonly Case[] = [reads]
