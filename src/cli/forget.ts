import type { Command } from './command.ts'
import { changeOne, STORE_HELP } from './records.ts'

export const forget: Command = {
  name: 'forget',
  summary: 'remove what a record tells of people, and keep its claim',
  help: `oncekey forget KEY|ID [--yes]

For a request to be forgotten (GDPR): body, headers, key and principal go. The claim stays, so that a late retry does
not run the operation again; it is told that the answer was not kept.

${STORE_HELP}
  --yes             do not ask

  oncekey forget order-4711`,

  run: (args) =>
    changeOne(
      args,
      ({ id }) => `Remove body, headers and labels of ${id} for good?`,
      (operations, id) => operations.redact(id),
    ),
}
