import type { Command } from './command.ts'
import { changeOne, STORE_HELP } from './records.ts'

export const release: Command = {
  name: 'release',
  summary: 'remove a record: the next request with its key runs',
  help: `oncekey release KEY|ID [--yes]

Only when you know that the operation did not take place: the next request with this key runs it.

${STORE_HELP}
  --yes             do not ask
  --force           also one that is running: a retry runs beside it, and the effect may happen twice

  oncekey release order-4711`,

  run: (args) =>
    changeOne(
      args,
      ({ id, state }) => `Remove ${id} (${state})? The next request with its key runs.`,
      (operations, id, force) => operations.release(id, force),
    ),
}
