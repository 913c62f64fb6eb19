import { type Command, readFlags } from './command.ts'
import { STORE_FLAGS, STORE_HELP, withStore } from './records.ts'

const STEP = 1_000

export const sweep: Command = {
  name: 'sweep',
  summary: 'free the records that are gone',
  help: `oncekey sweep

The stores do it by themselves, or their servers do; this does all of it now, in small steps.

${STORE_HELP}`,

  async run(args) {
    const { values } = readFlags(args, STORE_FLAGS)
    return withStore(values, async (_, store) => {
      let freed = 0
      for (;;) {
        const step = await store.sweep(STEP)
        freed += step
        if (step < STEP) break
        process.stderr.write(`\r${freed} freed`)
      }
      if (freed >= STEP) process.stderr.write('\n')
      console.log(values.json ? JSON.stringify({ freed }) : `${freed} records freed.`)
      return 0
    })
  },
}
