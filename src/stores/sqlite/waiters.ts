import { AwaitedRecords } from '../../awaited-records.ts'
import type { Clock } from '../../clock.ts'
import type { Channel } from './channel.ts'
import type { Stamp } from './wire.ts'

/** While anybody waits, the worker looks for commits of other processes; then every awaited record is looked at again. */
export class Waiters extends AwaitedRecords {
  readonly #channel: Channel

  constructor(channel: Channel, clock: Clock, now: () => Stamp) {
    super({ clock, look: (id) => channel.submit(['leaseLeft', now(), id], Number) })
    this.#channel = channel
  }

  override async wait(id: string, signal: AbortSignal): Promise<void> {
    this.#channel.watch(true)
    try {
      await super.wait(id, signal)
    } finally {
      if (this.size === 0) this.#channel.watch(false)
    }
  }
}
