import { AwaitedRecords } from '../../awaited-records.ts'
import type { Clock } from '../../clock.ts'
import type { Subscription } from './drivers.ts'

const LOOK_MS = 1_000
const LOOK_MS_UNHEARD = 50
const SUBSCRIBE_AGAIN_MS = 10_000

/**
 * One connection of its own listens to one channel, from the first wait on; the scripts publish to it the keys that
 * somebody waits for.
 *
 * A message may be lost with its connection. So nobody relies on it: every awaited record is looked at again when
 * anything happens to the connection, when its lease ends, and every second; more often while nobody listens.
 */
export class Waiters extends AwaitedRecords {
  /** `look` gives how long the lease still runs, 0 when the record is not running. */
  constructor(clock: Clock, look: (id: string) => Promise<number>, subscribe: (onChange: () => void) => Subscription) {
    super({
      clock,
      look: async (id) => Math.min(await look(id), this.isHeard ? LOOK_MS : LOOK_MS_UNHEARD),
      // It is the driver that connects again.
      subscription: {
        open: () => subscribe(() => void this.lookAtAll()),
        pauseMs: { failed: SUBSCRIBE_AGAIN_MS, lost: 0 },
      },
    })
  }
}
